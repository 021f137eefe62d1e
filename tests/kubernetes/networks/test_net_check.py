"""Findings of `ganger net check` on a node and of a cluster: each is found where it is, alone, and names its repair."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ganger.cli.cluster.net import net_command
from ganger.cli.output.error_output import Problem
from ganger.networks.attachments import definitions
from ganger.networks.findings import MEANINGS
from ganger.networks.host_checks import check_host
from ganger.networks.host_tree import HostTree
from ganger.networks.profile_checks import check
from ganger.networks.profile_text import read_profile
from tests.kubernetes.networks.golden_pods import PROFILES
from tests.kubernetes.networks.host_files import BRIDGES, MEMLOCK, bridge_config, healthy, link, set_gid, write

NET = "sys/class/net/ens1f0"
HCA = "sys/class/infiniband/mlx5_0"
PCI = "sys/bus/pci/devices"
VLANS = "VLAN Dev name    | VLAN ID\nens1f0 | 100 | card1\nens2f0         | 200  | ens2f0p"
"""The cards' interfaces as those of VLANs."""
Harm = Callable[[Path], Any]


def other_hca(root: Path) -> None:
    (root / HCA).unlink()
    link(root, HCA, str((root / "sys/class/infiniband/mlx5_1").resolve().relative_to(root)))
    for index in ("gids", "gid_attrs/types"):
        shutil.rmtree(root / HCA / "ports/1" / index)


FAULTS: list[tuple[str, str, Harm, str]] = [
    ("roce-sriov", "wrong_trust", lambda r: write(r, f"{NET}/qos/trust", "pcp"), "mlnx_qos -i ens1f0 --trust dscp"),
    ("roce-sriov", "no_pfc", lambda r: write(r, "pfc/ens1f0", "prio-pfc 0:off 3:off"), "--pfc 0,0,0,1,0,0,0,0"),
    ("roce-sriov", "no_ecn", lambda r: write(r, f"{NET}/ecn/roce_np/enable/3", "0"), "echo 1 > /sys/class/net/ens1f0"),
    ("roce-sriov", "no_dcqcn", lambda r: write(r, f"{NET}/ecn/roce_rp/enable/3", "0"), "ens1f0/ecn/roce_rp/enable/3"),
    ("roce-sriov", "mtu_mismatch", lambda r: write(r, f"{NET}/mtu", "1500"), "ip link set ens1f0 mtu 9000"),
    ("roce-sriov", "link_down", lambda r: write(r, f"{NET}/operstate", "down"), "ip link set ens1f0 up"),
    ("roce-sriov", "gid_mismatch", lambda r: set_gid(r, "ens1f0", 5, "10.0.0.5"), "leave NCCL_IB_GID_INDEX"),
    ("roce-hostdev", "wrong_rail", lambda r: set_gid(r, "ens1f0", 3, "10.1.0.9"), "exchange the rails in the profile"),
    ("roce-hostdev", "no_gid", lambda r: set_gid(r, "ens1f0", 3, "172.16.0.1"), "ip addr add ADDRESS/24 dev ens1f0"),
    (
        "roce-sriov",
        "vf_maximum",
        lambda r: write(r, f"{NET}/device/sriov_numvfs", "1"),
        "echo 2 > /sys/class/net/ens1f",
    ),
    ("roce-sriov", "vf_maximum", lambda r: write(r, f"{NET}/device/sriov_totalvfs", "1"), "set NUM_OF_VFS=2"),
    ("roce-sriov", "vf_maximum", lambda r: (r / NET / "device/sriov_totalvfs").unlink(), "set SRIOV_EN=1"),
    (
        "roce-sriov",
        "acs_redirect",
        lambda r: write(r, f"sys/devices/pci0000:00/{BRIDGES['0000:18:00.0']}/config", bridge_config(0x1D)),
        "setpci -s 0000:17:01.0 ECAP_ACS+0x6.w=0000",
    ),
    (
        "roce-hostdev",
        "acs_redirect",
        lambda r: write(r, f"sys/devices/pci0000:01/{BRIDGES['0000:3b:00.0']}/config", bridge_config(0x1D)),
        "setpci -s 0000:3a:01.0 ECAP_ACS+0x6.w=0000",
    ),
    (
        "roce-hostdev",
        "iommu_translates",
        lambda r: write(r, f"{PCI}/0000:19:00.0/iommu_group/type", "DMA-FQ"),
        "iommu=pt",
    ),
    ("roce-sriov", "no_gpudirect", lambda r: shutil.rmtree(r / "sys/module/nvidia_peermem"), "modprobe nvidia-peermem"),
    (
        "roce-sriov",
        "memlock_limited",
        lambda r: write(r, "proc/812/limits", MEMLOCK.replace("unlimited", "8388608")),
        "systemctl edit containerd: [Service] LimitMEMLOCK=infinity",
    ),
    (
        "on-vlan",
        "wrong_vlan",
        lambda r: write(r, "proc/net/vlan/config", VLANS.replace("200", "300")),
        "type vlan id 200",
    ),
    (
        "on-vlan",
        "wrong_vlan",
        lambda r: (r / "proc/net/vlan/config").unlink(),
        "ip link add link ens2f0 name ens2f0.200",
    ),
    ("no-mtu", "mtu_mismatch", lambda r: write(r, f"{NET}/mtu", "1500"), "ip link set ens1f0 mtu 9000"),
    ("roce-sriov", "neighbours_cold", lambda r: write(r, "proc/net/arp", "IP address"), "ip neigh replace PEER"),
    ("roce-sriov", "wrong_fabric", lambda r: write(r, f"{HCA}/ports/1/link_layer", "InfiniBand"), "LINK_TYPE_P1"),
    ("roce-sriov", "wrong_rail", other_hca, "rdma link: write hca and host_interface of the same network card"),
    (
        "roce-sriov",
        "wrong_traffic_class",
        lambda r: write(r, "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "0"),
        "cma_roce_tos -d mlx5_0 -t 106",
    ),
    (
        "roce-sriov",
        "rdma_shared",
        lambda r: write(r, "sys/module/ib_core/parameters/netns_mode", "Y"),
        "rdma system set netns exclusive",
    ),
    ("roce-sriov", "no_interface", lambda r: (r / NET).unlink(), "write its host_interface"),
    (
        "roce-sriov",
        "vfs_of_one_card",
        lambda r: link(r, f"{NET}/device/physfn", str((r / "sys/class/net/ens2f0/device").resolve().relative_to(r))),
        "write the host_interface of another network card for rail rail1",
    ),
]


def profile_text(name: str) -> str:
    """Return a profile with the subnets that the cards of the host have: one of PROFILES, or a variant of one."""
    text = (PROFILES / f"{VARIANTS.get(name, name)}.yaml").read_text()
    text = text.replace("10.0.1.0/24", "10.1.0.0/24").replace("range: 10.0.0.0/16", "range: 10.0.0.0/8")
    if name == "no-mtu":
        return text.replace("  mtu: 9000\n", "")
    if name == "on-vlan":
        text = text.replace("attach: sriov", "attach: macvlan")
        return text.replace("hca: mlx5_0", "hca: mlx5_0\n      vlan: 100").replace("mlx5_1", "mlx5_1\n      vlan: 200")
    return text


VARIANTS = {"no-mtu": "roce-sriov", "on-vlan": "roce-sriov"}


def sound(root: Path, name: str) -> Path:
    """Write a host on which nothing is wrong with a profile."""
    healthy(root)
    if name == "on-vlan":
        write(root, "proc/net/vlan/config", VLANS)
    return root


@pytest.mark.parametrize("name", ["roce-sriov", "roce-hostdev", *VARIANTS])
def test_a_sound_host_has_no_finding(name: str, tmp_path: Path) -> None:
    assert check_host(read_profile(profile_text(name), name), HostTree(sound(tmp_path, name))) == []


def test_enough_faults_are_planted() -> None:
    assert len({code for _, code, _, _ in FAULTS}) >= 14


@pytest.mark.parametrize("version", ["NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15", None])
def test_gpudirect_needs_no_peermem_with_dma_buf(version: str | None, tmp_path: Path) -> None:
    """Open kernel modules on a kernel from 5.12 on have it; without a driver nothing is known."""
    shutil.rmtree(healthy(tmp_path) / "sys/module/nvidia_peermem")
    file = tmp_path / "proc/driver/nvidia/version"
    file.unlink() if version is None else file.write_text(version)
    found = [each.code for each in check_host(read_profile(profile_text("roce-sriov"), "p"), HostTree(tmp_path))]
    assert found == ([] if version is not None else ["unreadable"])
    if version is not None:
        write(tmp_path, "proc/sys/kernel/osrelease", "5.4.0-1")
        (finding,) = check_host(read_profile(profile_text("roce-sriov"), "p"), HostTree(tmp_path))
        assert finding.code == "no_gpudirect"


def test_gpus_of_others_need_no_module_and_a_host_without_gpus_no_peer_to_peer(tmp_path: Path) -> None:
    healthy(tmp_path)
    shutil.rmtree(tmp_path / "sys/module/nvidia_peermem")
    for gpu in ("0000:19:00.0", "0000:3c:00.0"):
        write(tmp_path, f"{PCI}/{gpu}/vendor", "0x1002")
    assert check_host(read_profile(profile_text("roce-sriov"), "p"), HostTree(tmp_path)) == []
    for gpu in ("0000:19:00.0", "0000:3c:00.0"):
        write(tmp_path, f"{PCI}/{gpu}/class", "0x020000")
        write(tmp_path, f"{PCI}/{gpu}/iommu_group/type", "DMA")
    assert check_host(read_profile(profile_text("roce-hostdev"), "p"), HostTree(tmp_path)) == []


@pytest.mark.parametrize(("name", "code", "harm", "repair"), FAULTS)
def test_each_fault_of_a_host_is_found_alone(name: str, code: str, harm: Harm, repair: str, tmp_path: Path) -> None:
    harm(sound(tmp_path, name))
    found = check_host(read_profile(profile_text(name), name), HostTree(tmp_path))
    assert {each.code for each in found} == {code}, found
    assert any(repair in each.fix for each in found), found


@pytest.mark.parametrize("lacks", [f"{NET}/qos/trust", "pfc/ens1f0", f"{NET}/ecn/roce_np/enable/3"])
def test_what_cannot_be_read_is_no_fault_and_is_shown(lacks: str, tmp_path: Path) -> None:
    (healthy(tmp_path) / lacks).unlink()
    profile, tree = tmp_path / "p.yaml", ["--root", str(tmp_path)]
    profile.write_text(profile_text("roce-sriov"))
    answer = CliRunner().invoke(net_command, ["check", str(profile), *tree], standalone_mode=False)
    assert answer.return_value == 0
    assert "unreadable: ens1f0" in answer.output


def test_the_command_shows_what_why_and_fix(tmp_path: Path) -> None:
    write(healthy(tmp_path), f"{NET}/qos/trust", "pcp")
    profile = tmp_path / "p.yaml"
    profile.write_text(profile_text("roce-sriov"))
    arguments = ["check", str(profile), "--root", str(tmp_path)]
    shown = CliRunner().invoke(net_command, arguments, standalone_mode=False)
    assert shown.return_value == 1
    assert shown.output.splitlines()[0] == "wrong_trust: ens1f0 trusts pcp, not dscp"
    (row,) = json.loads(CliRunner().invoke(net_command, [*arguments, "-o", "json"]).output)
    assert row["why"] == MEANINGS["wrong_trust"]
    assert row["fix"] == "mlnx_qos -i ens1f0 --trust dscp"


def test_a_copied_tree_leads_nowhere_else(tmp_path: Path) -> None:
    """A link of the tree to a file of this machine is not followed."""
    healthy(tmp_path / "host")
    (tmp_path / "secret").write_text("dscp")
    trust = tmp_path / "host" / NET / "qos/trust"
    trust.unlink()
    trust.symlink_to(tmp_path / "secret")
    found = check_host(read_profile(profile_text("roce-sriov"), "p"), HostTree(tmp_path / "host"))
    assert [each.code for each in found] == ["unreadable"]


@pytest.mark.parametrize("harm", [b"", b"\xff" * 600, b"h\na b 0xz d e ens1f0", bridge_config(0x1D)[:0x14A]])
def test_broken_files_of_a_host_end_nothing(harm: bytes, tmp_path: Path) -> None:
    healthy(tmp_path)
    for path in ("sys/devices/pci0000:00/0000:17:01.0/config", "proc/net/arp", f"{NET}/mtu", f"{HCA}/ports/1/gids/3"):
        write(tmp_path, path, harm)
    assert {each.code for each in check_host(read_profile(profile_text("roce-sriov"), "p"), HostTree(tmp_path))} <= {
        "neighbours_cold"
    }


# -- check: the objects of a cluster -----------------------------------------------------------------------------------


def objects(name: str = "roce-sriov", **changes: Any) -> list[dict[str, Any]]:
    """Return the objects of a cluster on which nothing is wrong with a profile."""
    profile = read_profile(profile_text(name), name)
    policies = [
        {
            "kind": "SriovNetworkNodePolicy",
            "metadata": {"name": rail.name, "namespace": "sriov"},
            "spec": {
                "resourceName": rail.name,
                "numVfs": 8,
                "mtu": 9000,
                "nicSelector": {"pfNames": [rail.host_interface]},
            },
        }
        for rail in profile.rails
    ]
    allocatable = {rail.resource: "8" for rail in profile.rails}
    node = {
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"fabric": "roce"}},
        "status": {"allocatable": allocatable},
    }
    return [*definitions(profile), *policies, node]


def changed(kind: str, *path: str, to: Any) -> Callable[[list[dict[str, Any]]], Any]:
    """Return a change of the first object of a kind."""

    def change(items: list[dict[str, Any]]) -> None:
        place: Any = next(item for item in items if item["kind"] == kind)
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


def vlan_of_first(items: list[dict[str, Any]]) -> None:
    spec = items[0]["spec"]
    config = json.loads(spec["config"])
    config["plugins"][0]["vlan"] = 7
    spec["config"] = json.dumps(config)


NAD, POLICY = "NetworkAttachmentDefinition", "SriovNetworkNodePolicy"
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


@pytest.mark.parametrize(
    ("code", "harm", "says"),
    [
        ("missing_network", lambda items: items.pop(0), "there is no NetworkAttachmentDefinition fabric/rail0"),
        ("pool_mismatch", changed(NAD, "metadata", "annotations", RESOURCE, to="a.io/b"), "belongs to resource a.io/b"),
        ("chain_incomplete", changed(NAD, "spec", "config", to='{"type": "sriov"}'), "has no tuning with arp_ignore=1"),
        ("mtu_mismatch", changed(POLICY, "spec", "mtu", to=1500), "policy rail0 sets the MTU 1500"),
        ("vf_maximum", changed(POLICY, "spec", "numVfs", to=0), "policy rail0 makes 0 virtual functions"),
        ("one_pool", changed(POLICY, "spec", "nicSelector", "pfNames", to=["ens1f0", "ens9f0"]), "ens1f0, ens9f0"),
        (
            "vfs_of_one_card",
            changed(POLICY, "spec", "nicSelector", "pfNames", to=["ens2f0#0-3"]),
            "network card, ens2f0",
        ),
        (
            "no_resource",
            changed("Node", "status", "allocatable", to={}),
            "1 of 1 nodes do not offer openshift.io/rail0",
        ),
        ("no_nodes", changed("Node", "metadata", "labels", to={}), "no node has the labels fabric=roce"),
        ("wrong_vlan", vlan_of_first, "fabric/rail0 sets the VLAN 7, rail rail0 has none"),
        ("unreadable", changed(NAD, "spec", "config", to="{"), "is no configuration of CNI plug-ins"),
        ("unreadable", changed(NAD, "spec", "config", to='{"plugins": [1]}'), "is no configuration of CNI plug-ins"),
    ],
)
def test_each_fault_of_a_cluster_is_found_alone(code: str, harm: Callable[[Any], Any], says: str) -> None:
    profile, items = read_profile(profile_text("roce-sriov"), "p"), objects()
    assert check(profile, items) == []
    harm(items)
    found = check(profile, items)
    assert {each.code for each in found} == {code}
    assert says in found[0].what


def test_one_pool_for_all_rails_is_found_in_the_profile_alone() -> None:
    text = profile_text("roce-sriov").replace("openshift.io/rail1", "openshift.io/rail0")
    (found,) = check(read_profile(text, "p"))
    assert (found.code, "resourceName" in found.fix) == ("one_pool", True)


def test_check_reads_what_kubectl_prints(tmp_path: Path) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text(profile_text("roce-sriov"))
    for name, text in {
        "list": json.dumps({"kind": "List", "items": objects()[1:]}),
        "none": "{",
        "empty": '{"kind": "List", "items": []}',
        "number": "- 1",
        "wrong": json.dumps({"items": [{"kind": "Node", "metadata": 5}]}),
        "deep": "[" * 5_000,
    }.items():
        (tmp_path / name).write_text(text)
    shown = CliRunner().invoke(net_command, ["check", str(profile), "--objects", str(tmp_path / "list")])
    assert shown.output.startswith("missing_network: rail rail0: there is no NetworkAttachmentDefinition fabric/rail0")
    empty = "no objects to compare with"
    for name, says in (("none", "is not YAML"), ("empty", empty), ("number", empty), ("wrong", ""), ("deep", "")):
        failed = CliRunner().invoke(net_command, ["check", str(profile), "--objects", str(tmp_path / name)])
        assert isinstance(failed.exception, Problem)
        assert says in str(failed.exception)


def test_a_profile_that_merges_its_virtual_functions_is_a_finding() -> None:
    text = profile_text("roce-sriov").replace("  mtu:", "  env: {NCCL_IB_MERGE_VFS: '1'}\n  mtu:")
    assert [each.code for each in check(read_profile(text, "p"))] == ["vfs_merged"]


def test_a_virtual_function_is_tagged_by_its_plug_in() -> None:
    text = profile_text("roce-sriov").replace("hca: mlx5_0", "hca: mlx5_0\n      vlan: 7")
    profile = read_profile(text, "p")
    plugins = [json.loads(item["spec"]["config"])["plugins"][0] for item in definitions(profile)]
    assert [plugin.get("vlan") for plugin in plugins] == [7, None]
    assert check(profile, definitions(profile)) == []


def test_objects_of_a_cluster_are_compared_without_this_host_unless_one_is_named(tmp_path: Path) -> None:
    write(healthy(tmp_path / "host"), f"{NET}/mtu", "1500")
    (tmp_path / "p.yaml").write_text(profile_text("roce-sriov"))
    (tmp_path / "list").write_text(json.dumps({"items": objects()}))
    arguments = ["check", str(tmp_path / "p.yaml"), "--objects", str(tmp_path / "list")]
    assert CliRunner().invoke(net_command, arguments).output == "nothing is wrong\n"
    both = CliRunner().invoke(net_command, [*arguments, "--root", str(tmp_path / "host")])
    assert both.output.startswith("mtu_mismatch: the MTU of ens1f0 is 1500, the profile's 9000")


@pytest.mark.parametrize("config", ['{"plugins": [{"type": "sriov", "mtu": [1]}]}'])
def test_values_that_no_plug_in_takes_end_nothing(config: str) -> None:
    items = objects()
    next(item for item in items if item["kind"] == "NetworkAttachmentDefinition")["spec"]["config"] = config
    assert "chain_incomplete" in {each.code for each in check(read_profile(profile_text("roce-sriov"), "p"), items)}


@pytest.mark.parametrize("config", ["[" * 100_000, '{"plugins": [{"type": "tuning", "sysctl": [1]}]}', "5"])
def test_a_definition_that_is_none_is_a_finding(config: str) -> None:
    items = objects()
    next(item for item in items if item["kind"] == "NetworkAttachmentDefinition")["spec"]["config"] = config
    assert [each.code for each in check(read_profile(profile_text("roce-sriov"), "p"), items)] == ["unreadable"]


def test_a_file_of_a_host_may_have_anything(tmp_path: Path) -> None:
    tree = HostTree(healthy(tmp_path))
    write(tmp_path, f"{NET}/mtu", "9" * 5_000)
    assert tree.number(NET, "mtu") is None
    assert (tree.text("x" * 300), tree.names("x" * 300), tree.names(NET, "mtu")) == (None, [], [])


def test_every_finding_is_tested() -> None:
    tested = {code for _, code, _, _ in FAULTS} | {"missing_network", "pool_mismatch", "chain_incomplete", "one_pool"}
    assert tested | {"no_resource", "no_nodes", "unreadable", "fixed_gid_index", "vfs_merged"} == MEANINGS.keys()
