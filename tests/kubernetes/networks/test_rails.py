"""Packets of two pods with four rails, in one subnet and in four: counted on the rails that they take."""

import os
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from ganger.model.network_profile import NetworkProfile
from tests.kubernetes.networks.golden_pods import profile_of
from tests.kubernetes.networks.rails import NEEDED, PACKETS, PLUGINS, check_findings, packets_by_rail

MISSING = [name for name in NEEDED if not (PLUGINS / name).exists()]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"),
    pytest.mark.skipif(bool(MISSING), reason="apt-get install containernetworking-plugins: no " + ", ".join(MISSING)),
]
RAILS = range(4)
SUBNETS = {"one": ["10.0.0.0/24"] * 4, "four": [f"10.0.{rail}.0/24" for rail in RAILS]}


def four_rails(subnets: str, gateway: str | None = None) -> NetworkProfile:
    """Return a profile with four rails in these subnets, the first with a gateway."""
    profile = profile_of("macvlan")
    rails = [replace(rail, subnet=subnet) for rail, subnet in zip(profile.rails, SUBNETS[subnets], strict=True)]
    rails[0] = replace(rails[0], gateway=gateway)
    return replace(profile, address_range="10.0.0.0/16", rails=tuple(rails))


def counted(subnets: str, *, chained: bool) -> dict[str, Counter[tuple[int, int]]]:
    """Return the packets by way, rail of the address and rail of the interface."""
    return packets_by_rail(four_rails(subnets), chained=chained)


@pytest.mark.parametrize("subnets", SUBNETS)
def test_with_the_profile_every_packet_takes_its_own_rail(subnets: str) -> None:
    on_its_own = Counter({(rail, rail): PACKETS for rail in RAILS})
    assert counted(subnets, chained=True) == {"out": on_its_own, "in": on_its_own}


def test_without_it_all_packets_of_one_subnet_leave_by_one_rail() -> None:
    packets = counted("one", chained=False)
    assert {interface for _, interface in packets["out"]} == {0}, "the kernel takes the first route"
    assert packets["out"].total() == PACKETS * len(RAILS)
    assert packets["in"][1, 1] == packets["in"][2, 2] == 0, "they arrive wherever ARP was answered"


def test_without_it_packets_of_four_subnets_arrive_on_wrong_rails() -> None:
    packets = counted("four", chained=False)
    assert packets["in"].total() == PACKETS * len(RAILS)
    wrong = sum(count for (rail, interface), count in packets["in"].items() if rail != interface)
    assert wrong > 0, "every rail of the peer answers ARP requests for all of its addresses"


@pytest.mark.parametrize("subnets", SUBNETS)
def test_the_init_check_finds_that_the_chain_is_missing_and_nothing_with_it(subnets: str) -> None:
    assert check_findings(four_rails(subnets), chained=True) == []
    found = "\n".join(check_findings(four_rails(subnets), chained=False))
    ways = "leave by net1" if subnets == "one" else "net2 has no routing table of its own"
    assert ways in found
    assert "arp_ignore of net4 is 0, not 1" in found


def test_the_init_check_asks_the_gateway() -> None:
    """The second pod is the gateway of the first rail; another one does not exist."""
    assert check_findings(four_rails("four", "10.0.0.2"), chained=True) == []
    (found,) = check_findings(four_rails("four", "10.0.0.9"), chained=True)
    assert "the gateway 10.0.0.9 of net1 does not answer" in found
