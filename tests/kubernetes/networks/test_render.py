"""Additions of a network profile to a pod: golden files for each kind of fabric, and what contradicts itself."""

from dataclasses import replace
from difflib import unified_diff
from typing import Any

import kubernetes_validate
import pytest

from ganger.errors import RequestError
from ganger.networks.attachments import definitions
from ganger.networks.dranet import template
from ganger.networks.pod_network import CHECK, join_network
from ganger.networks.profile_text import read_profile
from ganger.networks.render import PodFacts, fits, render
from tests.kubernetes.networks.golden_pods import (
    GOLDEN,
    GPUS,
    NAMES,
    WRITE_ANEW,
    golden_file,
    golden_text,
    profile_of,
)

WHOLE = PodFacts(gpus=8, node_gpus=8, gpu_resource="nvidia.com/gpu")
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "annotations": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "ranks",
                "image": "i",
                "env": [{"name": "GLOO_SOCKET_IFNAME", "value": "bond0"}],
                "resources": {"requests": {"cpu": "1"}},
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [],
            }
        ],
        "volumes": [],
    },
}


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("name", NAMES)
def test_each_fabric_gives_a_pod_what_its_golden_file_says(name: str, gpus: int) -> None:
    file, text = golden_file(name, gpus), golden_text(name, gpus)
    golden = file.read_text() if file.exists() else ""
    rows = unified_diff(golden.splitlines(), text.splitlines(), file.name, "render", lineterm="")
    difference = "\n".join(rows)
    assert not difference, f"{difference}\nif this is right: {WRITE_ANEW}, and read the difference"


def test_there_is_no_golden_file_besides() -> None:
    assert {*GOLDEN.iterdir()} == {golden_file(name, gpus) for name in NAMES for gpus in GPUS}


@pytest.mark.parametrize("name", NAMES)
def test_no_fabric_fixes_the_index_of_a_gid(name: str) -> None:
    assert not [variable for variable in render(profile_of(name), WHOLE).env if "GID" in variable]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("may_lock_memory", [True, False])
def test_a_pod_keeps_what_it_has_and_gets_its_network(name: str, may_lock_memory: bool) -> None:
    profile = profile_of(name)
    network = render(profile, WHOLE)
    pod = join_network(POD, network, may_lock_memory=may_lock_memory)
    for name_of_template, spec in network.templates.items():
        kubernetes_validate.validate(template(name_of_template, spec, {}), "1.36", strict=True)
    kubernetes_validate.validate(pod, "1.36", strict=True)
    (container,) = pod["spec"]["containers"]
    assert [item["value"] for item in container["env"] if item["name"] == "GLOO_SOCKET_IFNAME"] == ["bond0"]
    assert pod["metadata"]["annotations"]["a"] == "b"
    assert container["resources"]["requests"]["cpu"] == "1"
    locks = may_lock_memory and profile.fabric != "tcp"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]} | ({"add": ["IPC_LOCK"]} if locks else {})
    assert [item["name"] for item in pod["spec"].get("initContainers", ())] == [CHECK] * bool(profile.rails)


def test_a_part_of_a_node_gets_no_whole_card() -> None:
    part = PodFacts(gpus=2, node_gpus=8, gpu_resource="nvidia.com/gpu")
    assert [fits(profile_of(name), part) for name in ("roce-sriov", "roce-hostdev")] == [True, False]
    assert fits(profile_of("roce-hostdev"), WHOLE)
    assert fits(profile_of("roce-hostdev"), replace(part, exclusive=True))


def test_ucx_uses_the_memory_of_gpus_that_the_pod_has() -> None:
    profile = profile_of("infiniband")
    gpus = {name: PodFacts(gpus=1, node_gpus=1, gpu_resource=f"{name}.com/gpu") for name in ("nvidia", "amd")}
    transports = {name: render(profile, pod).env["UCX_TLS"] for name, pod in gpus.items()}
    assert transports == {"nvidia": "rc,sm,self,cuda_copy,cuda_ipc", "amd": "rc,sm,self,rocm_copy,rocm_ipc"}
    assert render(profile, PodFacts()).env["UCX_TLS"] == "rc,sm,self"


def test_a_card_of_infiniband_is_attached_without_arp_settings() -> None:
    first, _ = definitions(profile_of("infiniband"))
    assert "tuning" not in first["spec"]["config"]
    assert '"ib-sriov"' in first["spec"]["config"]


RAIL = "{name: r0, network: f/r0, resource: a.io/r0, interface: net1, subnet: 10.0.0.0/24}"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fabric: rocce\n  attach: sriov", "fabric: 'rocce' is not a kind of fabric: write ib, roce or tcp"),
        ("fabric: roce\n  attach: sriov", "p.yaml:5:11: attach: sriov needs rails"),
        ("fabric: roce\n  attach: cluster", "attach: cluster has no RDMA"),
        (f"fabric: tcp\n  attach: cluster\n  rails: [{RAIL}]", "rails: attach: cluster has none"),
        (f"fabric: ib\n  attach: macvlan\n  rails: [{RAIL}]", "attach: macvlan is for Ethernet"),
        (f"fabric: ib\n  attach: sriov\n  dscp: 26\n  rails: [{RAIL}]", "dscp: it applies to fabric: roce only"),
        (f"fabric: roce\n  attach: sriov\n  rails: [{RAIL}, {RAIL}]", "rails[1].name: r0 is that of another rail too"),
        ("fabric: roce\n  attach: sriov\n  rails: [{name: r0, interface: net1}]", "rails[0].network is missing"),
        (
            "fabric: roce\n  attach: dra\n  rails: [{name: r0, interface: net1}]",
            "claim is missing: write it, or host_interface or hca",
        ),
        (
            "fabric: roce\n  attach: dra\n  rails: [{name: r0, claim: c, interface: eth0}]",
            "the cluster's own interface",
        ),
        (
            f"fabric: roce\n  attach: sriov\n  address_range: 10.1.0.0/16\n  rails: [{RAIL}]",
            "rails[0].subnet: 10.0.0.0/24 is outside of address_range 10.1.0.0/16",
        ),
        (
            f"fabric: roce\n  attach: sriov\n  rails: [{RAIL.replace('}', ', gateway: 10.0.1.1}')}]",
            "rails[0].gateway: 10.0.1.1 is outside of the subnet 10.0.0.0/24",
        ),
        (f"fabric: roce\n  attach: sriov\n  rails: [{RAIL.replace('0.0/24', '0.1/24')}]", "has host bits set"),
        (
            f"fabric: roce\n  attach: sriov\n  rails: [{RAIL.replace('net1', '../net1')}]",
            "is not a name of a network in",
        ),
        (f"fabric: roce\n  attach: sriov\n  mtu: 100000\n  rails: [{RAIL}]", "mtu: 100000 is not an MTU"),
        (
            "fabric: tcp\n  attach: cluster\n  queue_pairs: 2",
            "queue_pairs: it applies to RDMA, and fabric: tcp has none",
        ),
        ("fabric: tcp\n  attach: cluster\n  port_failover: true", "port_failover: it applies to RDMA"),
        (f"fabric: roce\n  attach: sriov\n  queue_pairs: 0\n  rails: [{RAIL}]", "queue_pairs: 0 is not a number of"),
        (f"fabric: roce\n  attach: sriov\n  gdr_level: NEAR\n  rails: [{RAIL}]", "write PIX, PXB, PHB or SYS"),
        ("fabric: tcp\n  attach: cluster\n  env: {A: 3}", "env.A: 3 is not text: write it in quotes"),
        ("fabric: tcp\n  attach: cluster\n  env: {1A: x}", "'1A' is not the name of a variable"),
        ("fabric: tcp\n  attach: cluster\n  gpu_class: gpu.nvidia.com", "gpu_class: it applies to attach: dra"),
        (
            f"fabric: roce\n  attach: sriov\n  rails: [{RAIL[:-1]}, neighbours: {{10.0.0.1: 02:00:00:00:00:01}}}}]",
            "rails[0].neighbours: it applies to attach: dra, not to sriov",
        ),
        (
            "fabric: roce\n  attach: dra\n  gpu_class: g\n  rails: [{name: r0, claim: c, interface: net1}]",
            "rails[0].claim: the template c says what it claims, and gpu_class would change nothing",
        ),
        (
            "fabric: roce\n  attach: dra\n  rails: [{name: r0, hca: m, interface: net1, neighbours: {10.0.0.1: beef}}]",
            "'beef' is not a hardware address",
        ),
        (f"fabric: roce\n  attach: hostdev\n  rails: [{RAIL.replace('}', ', vlan: 7}')}]", "tags no packets"),
        (f"fabric: roce\n  attach: sriov\n  rails: [{RAIL.replace('}', ', vlan: 4095}')}]", "4095 is not a VLAN"),
        ("fabric: tcp\n  attach: cluster\n  gid_index: 3", "gid_index is not a valid key"),
    ],
)
def test_a_profile_that_contradicts_itself_says_where(spec: str, says: str) -> None:
    text = f"kind: NetworkProfile\nmetadata: {{name: p}}\nspec:\n  {spec}\n"
    with pytest.raises(RequestError) as caught:
        read_profile(text, "p.yaml")
    assert caught.value.code == "bad_network_profile"
    assert says in caught.value.detail


@pytest.mark.parametrize("text", ["", "[]", "kind: Pod", "kind: NetworkProfile\nspec: {}", "kind: NetworkProfile", "{"])
def test_text_that_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"p\.yaml:\d"):
        read_profile(text, "p.yaml")
