"""The check of a pod's network, as the init container runs it: by the interpreter of an image, on what the pod has."""

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.networks import init_check
from ganger.networks.attachments import ARP_SYSCTLS
from ganger.networks.init_check import Kernel, faults
from ganger.networks.render import PodFacts, render
from tests.kubernetes.networks.golden_pods import profile_of
from tests.kubernetes.networks.host_files import write

RAIL: dict[str, Any] = {"interface": "net1", "mtu": 9000, "subnet": "", "gateway": "", "beyond": ""}
EXPECTED: dict[str, Any] = {"rails": [RAIL], "rdma_devices": 1, "locked_memory": False, "routed": {}}
ROUTED: dict[str, Any] = {
    "rails": [
        {
            "interface": f"net{index + 1}",
            "mtu": 0,
            "subnet": f"10.{index}.0.0/24",
            "gateway": f"10.{index}.0.1",
            "beyond": "10.255.255.254",
        }
        for index in range(2)
    ],
    "rdma_devices": 0,
    "locked_memory": False,
    "routed": {"sysctls": ARP_SYSCTLS, "fix": "add the plug-ins tuning and sbr"},
}


class FakeKernel(Kernel):
    """A kernel with two rails: their addresses, ways of packets, and the gateways that answer."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: dict[str, str | None] = {"net1": "10.0.0.5", "net2": "10.1.0.5"}
        self.ways: dict[tuple[str, str], tuple[str, int] | None] = {
            (f"10.{index}.0.5", target): (f"net{index + 1}", 100 + index)
            for index in range(2)
            for target in (f"10.{index}.0.1", "10.255.255.254", f"10.{index}.0.2")
        }
        self.silent: set[str] = set()

    def address(self, interface: str) -> str | None:
        return self.addresses[interface]

    def route(self, source: str, target: str) -> tuple[str, int] | None:
        return self.ways[source, target]

    def answers(self, source: str, gateway: str, interface: str) -> bool:
        assert self.addresses[interface] == source
        return gateway not in self.silent


def rails_of_pod(root: Path, **settings: str) -> str:
    """Write the files of a pod with two rails, and settings of the second; return its root."""
    for name in ("net1", "net2"):
        write(root, f"sys/class/net/{name}/mtu", "9000")
        for key, value in (ARP_SYSCTLS | (settings if name == "net2" else {})).items():
            write(root, f"proc/sys/net/ipv4/conf/{name}/{key}", value)
    return str(root)


def test_rails_with_a_table_each_lack_nothing(tmp_path: Path) -> None:
    assert faults(ROUTED, rails_of_pod(tmp_path), FakeKernel()) == []


@pytest.mark.parametrize(
    ("ways", "says"),
    [
        (
            {("10.1.0.5", "10.1.0.1"): ("net1", 100)},
            (
                "packets from 10.1.0.5 (net2) to 10.1.0.1 leave by net1: add the plug-ins tuning and sbr",
                "ip rule add from 10.1.0.5",
            ),
        ),
        (
            {("10.1.0.5", "10.1.0.1"): ("net2", 254)},
            ("net2 has no routing table of its own", "10.1.0.0/24 dev net2 table TABLE"),
        ),
        ({("10.1.0.5", "10.255.255.254"): ("eth0", 254)}, ("to 10.255.255.254 leave by eth0", "via 10.1.0.1 dev net2")),
        ({("10.1.0.5", "10.255.255.254"): None}, ("there is no route from 10.1.0.5 (net2) to 10.255.255.254",)),
        (
            dict.fromkeys([("10.1.0.5", "10.1.0.1"), ("10.1.0.5", "10.255.255.254")], ("net2", 100)),
            ("net2 and net1 share the routing table 100",),
        ),
    ],
)
def test_each_wrong_way_of_a_rail_is_one_sentence_with_its_repair(
    ways: dict[tuple[str, str], tuple[str, int] | None], says: tuple[str, ...], tmp_path: Path
) -> None:
    kernel = FakeKernel()
    kernel.ways |= ways
    (found,) = faults(ROUTED, rails_of_pod(tmp_path), kernel)
    assert all(text in found for text in says), found


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"arp_ignore": "0"}, "arp_ignore of net2 is 0, not 1: add the plug-ins tuning"),
        ({"arp_announce": "0"}, "by hand, in the pod: sysctl -w net.ipv4.conf.net2.arp_announce=2"),
        ({"rp_filter": "1"}, "rp_filter of net2 is 1, not 2"),
        ({"rp_filter": "0"}, ""),
    ],
)
def test_settings_of_arp_are_those_of_the_profile(settings: dict[str, str], says: str, tmp_path: Path) -> None:
    found = faults(ROUTED, rails_of_pod(tmp_path, **settings), FakeKernel())
    assert len(found) == bool(says)
    assert not says or says in found[0]


def test_a_setting_of_all_interfaces_counts_where_it_is_larger(tmp_path: Path) -> None:
    root = rails_of_pod(tmp_path, arp_ignore="0", rp_filter="0")
    write(tmp_path, "proc/sys/net/ipv4/conf/all/arp_ignore", "1")
    assert faults(ROUTED, root, FakeKernel()) == []
    write(tmp_path, "proc/sys/net/ipv4/conf/all/rp_filter", "1")
    assert [line.split(":")[0] for line in faults(ROUTED, root, FakeKernel())] == ["rp_filter of net2 is 1, not 2"]


def test_a_gateway_has_to_answer(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.silent.add("10.1.0.1")
    (found,) = faults(ROUTED, rails_of_pod(tmp_path), kernel)
    assert found.startswith("the gateway 10.1.0.1 of net2 does not answer: see the port of the switch and its VLAN")
    assert "ping -I net2 10.1.0.1" in found


def test_the_kernel_of_this_machine_knows_its_ways() -> None:
    kernel = Kernel()
    assert kernel.address("lo") == "127.0.0.1"
    route = kernel.route("127.0.0.1", "127.0.0.2")
    assert route is not None
    assert route[0] == "lo"
    assert kernel.route("203.0.113.7", "203.0.113.8") is None, "an address that this machine does not have"


@pytest.mark.parametrize(
    ("name", "routed", "beyond"),
    [
        ("roce-sriov", True, "10.255.255.254"),
        ("dranet", True, "10.255.255.254"),
        ("macvlan", True, ""),
        ("infiniband", False, ""),
        ("tcp", False, ""),
    ],
)
def test_routes_are_expected_of_several_rails_of_ethernet(name: str, routed: bool, beyond: str) -> None:
    expected = render(profile_of(name), PodFacts()).expected
    assert bool(expected.get("routed")) == routed
    assert {rail["beyond"] for rail in expected.get("rails", ())} <= {beyond}


def pod(root: Path, *, mtu: int = 9000, devices: int = 1) -> str:
    """Write the files of a pod with an interface and RDMA devices; return its root."""
    write(root, "sys/class/net/net1/mtu", str(mtu))
    for index in range(devices):
        write(root, f"sys/class/infiniband/mlx5_{index}/node_type", "1: CA")
    return str(root)


def test_a_pod_that_has_its_rails_lacks_nothing(tmp_path: Path) -> None:
    assert faults(EXPECTED, pod(tmp_path)) == []


@pytest.mark.parametrize(
    ("files", "expected", "says"),
    [
        ({"mtu": 1500}, EXPECTED, "the MTU of net1 is 1500, not 9000"),
        ({"devices": 0}, EXPECTED, "0 RDMA devices for 1 rails"),
        ({}, EXPECTED | {"rails": [RAIL | {"interface": "net2"}]}, "there is no interface net2"),
        (
            {},
            EXPECTED | {"rails": [RAIL | {"subnet": "10.0.0.0/24"}]},
            "the address of net1 is missing, outside of 10.0.",
        ),
    ],
)
def test_what_a_pod_lacks_is_one_sentence_each(
    files: dict[str, Any], expected: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (found,) = faults(expected, pod(tmp_path, **files))
    assert found.startswith(says)


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 65536])
def test_locked_memory_has_to_be_unlimited(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_check, "_has_capability", lambda _: False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = faults(EXPECTED | {"locked_memory": True}, pod(tmp_path))
    assert [line.split(":")[0] for line in found] == [f"locked memory is limited to {limit} bytes"] * (limit > 0)


def test_its_source_runs_by_itself_and_prints_what_is_missing() -> None:
    expected = EXPECTED | {
        "rails": [RAIL | {"interface": "lo", "mtu": 0, "subnet": "127.0.0.0/8"}, RAIL],
        "rdma_devices": 0,
    }
    command = [sys.executable, "-I", "-S", "-c", Path(init_check.__file__).read_text(), json.dumps(expected)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "network: there is no interface net1: see the events of the pod and the log of Multus\n"


@pytest.mark.parametrize(("subnet", "asked"), [("10.1.0.4/31", "10.1.0.4"), ("10.1.0.5/32", "")])
def test_a_subnet_of_one_or_two_addresses_has_another_one_or_none(subnet: str, asked: str, tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.ways = {("10.0.0.5", "10.0.0.1"): ("net1", 100), ("10.1.0.5", asked): ("net2", 101)}
    first, second = (rail | {"beyond": ""} for rail in ROUTED["rails"])
    rails = [first, second | {"subnet": subnet, "gateway": ""}]
    assert faults(ROUTED | {"rails": rails}, rails_of_pod(tmp_path), kernel) == []


def test_the_way_within_a_subnet_is_that_to_an_address_of_no_rail_of_the_pod(tmp_path: Path) -> None:
    """IPAM gives the rails of one subnet addresses in sequence: to each other they are local."""
    kernel = FakeKernel()
    kernel.addresses = {"net1": "10.0.0.1", "net2": "10.0.0.2"}
    kernel.ways = {(f"10.0.0.{index + 1}", "10.0.0.3"): (f"net{index + 1}", 100 + index) for index in range(2)}
    rails = [rail | {"subnet": "10.0.0.0/24", "gateway": "", "beyond": ""} for rail in ROUTED["rails"]]
    assert faults(ROUTED | {"rails": rails}, rails_of_pod(tmp_path), kernel) == []


def test_a_claim_is_repaired_at_its_driver_and_sets_no_rp_filter() -> None:
    routed = render(profile_of("dranet"), PodFacts()).expected["routed"]
    assert "log of the DRA driver" in routed["fix"]
    assert set(routed["sysctls"]) == {"arp_ignore", "arp_announce"}


def test_a_range_of_one_address_has_nothing_beyond() -> None:
    profile = profile_of("roce-sriov")
    one = replace(profile.rails[0], subnet="10.0.0.1/32", gateway="10.0.0.1")
    narrow = replace(profile, address_range="10.0.0.1/32", rails=(one,))
    assert render(narrow, PodFacts()).expected["rails"][0]["beyond"] == ""
