"""Packets of two pods with four rails, in one subnet and in four: counted on the rails that they take."""

import os
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from tests.kubernetes.networks.golden_pods import profile_of
from tests.kubernetes.networks.rails import NEEDED, PACKETS, PLUGINS, packets_by_rail

MISSING = [name for name in NEEDED if not (PLUGINS / name).exists()]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"),
    pytest.mark.skipif(bool(MISSING), reason="apt-get install containernetworking-plugins: no " + ", ".join(MISSING)),
]
RAILS = range(4)
SUBNETS = {"one": ["10.0.0.0/24"] * 4, "four": [f"10.0.{rail}.0/24" for rail in RAILS]}


def counted(subnets: str, *, chained: bool) -> dict[str, Counter[tuple[int, int]]]:
    """Return the packets by way, rail of the address and rail of the interface."""
    profile = profile_of("macvlan")
    rails = zip(profile.rails, SUBNETS[subnets], strict=True)
    profile = replace(
        profile, address_range="10.0.0.0/16", rails=tuple(replace(rail, subnet=subnet) for rail, subnet in rails)
    )
    return packets_by_rail(profile, chained=chained)


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
