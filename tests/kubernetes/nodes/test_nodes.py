"""The core's view of nodes: labels, foreign usage, and the events of changes."""

from typing import Any

import msgspec
import pytest

from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory, cluster
from ganger.kubeapi import objects
from ganger.kubeapi.device_objects import ResourceClaim
from ganger.model.cluster import Node
from ganger.model.event import NodeChanged, NodeCordoned, NodeLost, NodeReturned, NodesListed, NodeUncordoned
from ganger.model.units import GIB_BYTES, MIB_BYTES

ALLOCATABLE = {"cpu": "63770m", "memory": "515870Mi", "pods": "110", "ephemeral-storage": "95551679124"}
GPU_NODE = ALLOCATABLE | {"nvidia.com/gpu": "8"}


def node(name: str = "n1", labels: dict[str, str] | None = None, **status: Any) -> objects.Node:
    """Return a node as the API server has it, with fields that ganger does not read."""
    taints, unschedulable = status.pop("taints", []), status.pop("unschedulable", False)
    ready, allocatable = status.pop("ready", "True"), status.pop("allocatable", GPU_NODE)
    actual = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "labels": labels or {}},
        "spec": {"podCIDR": "10.1.0.0/24", "taints": taints, "unschedulable": unschedulable},
        "status": {
            "allocatable": allocatable,
            "capacity": status.pop("capacity", allocatable),
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": "2026-11-22T10:00:00Z"},
                {"type": "Ready", "status": ready, "reason": "KubeletReady", "message": "kubelet is posting status"},
            ],
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.7"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
            **status,
        },
    }
    return msgspec.convert(actual, objects.Node)


def pod(name: str = "p", on_node: str = "n1", *, phase: str = "Running", **spec: Any) -> objects.Pod:
    spec = {"nodeName": on_node, "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]} | spec
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, objects.Pod)


def container(cpu: str = "0", memory: str = "0", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def node_view(*pods: objects.Pod, of: objects.Node | None = None, claims: tuple[ResourceClaim, ...] = ()) -> Node:
    return cluster([of or node()], pods, claims=claims).nodes[0]


def used_cpu_milli(*pods: objects.Pod) -> int:
    return 63770 - node_view(*pods).cpu_milli


# -- what a node offers -----------------------------------------------------------------------------------------------


def test_amounts_and_address() -> None:
    actual = node_view()
    assert (actual.cpu_milli, actual.memory_bytes, actual.gpus) == (63770, 515870 * MIB_BYTES, 8)
    assert (actual.address, actual.device_ids, actual.networks) == ("10.0.0.7", (), ("tcp",))


def test_a_bad_amount_is_named_with_its_node_and_counts_as_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bad = node("bad-1", allocatable=GPU_NODE | {"memory": "64 gigs"})
    assert node_view(of=bad).memory_bytes == 0
    assert "node bad-1: memory: '64 gigs' is not a quantity" in caplog.text


@pytest.mark.parametrize(
    ("resource", "labels", "gpu_type"),
    [
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "h100"),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "Tesla-T4"}, "t4"),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090-SHARED"}, "rtx4090-shared"),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "a100-mig-1g.5gb"),
        ("nvidia.com/gpu", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, "l4"),
        ("nvidia.com/gpu", {}, "nvidia"),
        ("amd.com/gpu", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "mi300x"),
        ("amd.com/gpu", {}, "amd"),
        ("habana.ai/gaudi", {}, "gaudi"),
        ("gpu.intel.com/xe", {"gpu.intel.com/product": "Max_1550"}, "max1550"),
        ("gpu.intel.com/i915", {}, "intel"),
        ("google.com/tpu", {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"}, "v5p"),
        ("huawei.com/Ascend910", {"node.kubernetes.io/npu.chip.name": "910B3"}, "910b3"),
        ("huawei.com/Ascend310P", {}, "ascend"),
    ],
)
def test_gpus_of_every_maker(resource: str, labels: dict[str, str], gpu_type: str) -> None:
    actual = node_view(of=node(labels=labels, allocatable=ALLOCATABLE | {resource: "4"}))
    assert (actual.gpus, actual.gpu_type) == (4, gpu_type)


def test_a_node_without_gpus_has_no_type() -> None:
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}
    actual = node_view(of=node(labels=labels, allocatable=ALLOCATABLE | {"nvidia.com/gpu": "0"}))
    assert (actual.gpus, actual.gpu_type, actual.gpu_memory_bytes) == (0, "", 0)


def test_gpu_memory_is_that_of_each_that_is_shown() -> None:
    labels = {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.replicas": "1"}
    assert node_view(of=node(labels=labels)).gpu_memory_bytes == 81559 * MIB_BYTES
    assert (
        node_view(of=node(labels=labels | {"nvidia.com/gpu.replicas": "4"})).gpu_memory_bytes == 81559 * MIB_BYTES // 4
    )


def test_taints_that_are_states_are_none() -> None:
    taints = [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-11-22T10:00:00Z"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "spot", "effect": "NoSchedule"},
        {"key": "team", "value": "vision", "effect": "NoSchedule"},
        {"key": "team", "value": "vision", "effect": "NoExecute"},
        {"key": "rather-not", "effect": "PreferNoSchedule"},
    ]
    assert node_view(of=node(taints=taints)).taints == ("spot", "team=vision")


@pytest.mark.parametrize(
    ("labels", "networks"),
    [
        ({"pci-0207_15b3.present": "true"}, ("ib", "tcp")),
        ({"pci-0207_15b3_1021.present": "true", "rdma.available": "true"}, ("ib", "tcp")),
        ({"pci-0200_15b3.present": "true", "custom-rdma.available": "true"}, ("roce", "tcp")),
        ({"pci-0200_15b3.present": "true", "rdma.available": "true"}, ("roce", "tcp")),
        ({"pci-0200_8086.present": "true"}, ("tcp",)),
        ({"pci-0207_15b3.present": "false"}, ("tcp",)),
    ],
)
def test_networks_from_feature_labels(labels: dict[str, str], networks: tuple[str, ...]) -> None:
    actual = {f"feature.node.kubernetes.io/{key}": value for key, value in labels.items()}
    assert node_view(of=node(labels=actual)).networks == networks


def test_a_label_that_only_tells_the_time_is_left_out() -> None:
    labels = {"nvidia.com/gfd.timestamp": "1763800000", "pool": "a"}
    assert node_view(of=node(labels=labels)).labels == {"pool": "a", "ganger.dev/gpu-plugin": "nvidia"}


# -- where it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "levels", "domains"),
    [
        (
            {"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "eu-1"},
            ("region", "zone"),
            ("eu", "eu-1"),
        ),
        (
            {f"fabric.topograph.run/tier-{tier}": f"s{tier}" for tier in range(12)},
            tuple(f"tier{tier}" for tier in reversed(range(12))),
            tuple(f"s{tier}" for tier in reversed(range(12))),
        ),
        (
            {"accelerator.topograph.run/domain": "nvl1", "accelerator.topograph.run/sub-domain": "p2"},
            ("nvlink", "clique"),
            ("nvl1", "p2"),
        ),
        (
            {f"network.topology.nvidia.com/{name}": name[:2] for name in ("core", "spine", "leaf", "accelerator")},
            ("core", "spine", "leaf", "nvlink"),
            ("co", "sp", "le", "ac"),
        ),
        (
            {f"network.topology.nvidia.com/{name}": name[:2] for name in ("datacenter", "block")},
            ("core", "leaf"),
            ("da", "bl"),
        ),
        ({"rack": "r1"}, ("rack",), ("r1",)),
        ({"nvidia.com/gpu.clique": "uuid.7"}, ("clique",), ("uuid.7",)),
        ({}, ("rack",), ()),
        ({"fabric.topograph.run/tier-x": "s", "fabric.topograph.run/tier-": "s"}, ("rack",), ()),
    ],
)
def test_levels_from_labels(labels: dict[str, str], levels: tuple[str, ...], domains: tuple[str, ...]) -> None:
    actual = cluster([node(labels=labels)], [])
    assert (actual.levels, actual.nodes[0].domains) == (levels, domains)


def test_a_node_that_has_none_of_a_level_is_in_no_domain_of_it() -> None:
    zone, tier = "topology.kubernetes.io/zone", "fabric.topograph.run/tier-0"
    actual = cluster([node("n1", {zone: "a", tier: "s1"}), node("n2", {zone: "a"}), node("n3", {tier: "s1"})], [])
    assert actual.levels == ("zone", "tier0")
    assert [item.domains for item in actual.nodes] == [("a", "s1"), ("a", ""), ("", "s1")]


# -- what others use --------------------------------------------------------------------------------------------------


def test_pods_of_others_are_subtracted_while_they_hold_a_node() -> None:
    big = container("2500m", "3Gi")
    assert used_cpu_milli(pod(containers=[big, big])) == 5000
    assert node_view(pod(containers=[big])).memory_bytes == 515870 * MIB_BYTES - 3 * GIB_BYTES
    assert used_cpu_milli(pod(phase="Pending", containers=[big])) == 2500
    for ended in ("Succeeded", "Failed"):
        assert used_cpu_milli(pod(phase=ended, containers=[big])) == 0
    assert used_cpu_milli(pod(on_node="", containers=[big])) == 0
    ours = pod(schedulerName="ganger", containers=[big])
    assert used_cpu_milli(ours) > 0, "an earlier controller bound it for somebody else"
    marked = msgspec.structs.replace(ours.metadata, annotations={"ganger.dev/gang": "a.b"})
    assert used_cpu_milli(msgspec.structs.replace(ours, metadata=marked)) == 0


@pytest.mark.parametrize(
    ("init", "cpu_milli"),
    [
        ([container("9")], 9000),
        ([container("1")], 3000),
        ([container("1", restartPolicy="Always")], 4000),
        ([container("1", restartPolicy="Always"), container("5")], 6000),
        ([container("5"), container("1", restartPolicy="Always")], 5000),
        ([container("1", restartPolicy="Always"), container("2", restartPolicy="Always")], 6000),
    ],
)
def test_init_containers_and_sidecars(init: list[dict[str, Any]], cpu_milli: int) -> None:
    two_containers = [container("1"), container("2")]
    assert used_cpu_milli(pod(containers=two_containers, initContainers=init)) == cpu_milli
    assert (
        used_cpu_milli(pod(containers=two_containers, initContainers=init, overhead={"cpu": "250m"})) == cpu_milli + 250
    )


def test_what_is_asked_for_the_pod_as_a_whole_counts_instead() -> None:
    assert used_cpu_milli(pod(containers=[container("1")], resources={"requests": {"cpu": "6"}})) == 6000
    whole = node_view(pod(containers=[container("1", "1Gi")], resources={"requests": {"cpu": "6"}}))
    assert whole.memory_bytes == 515870 * MIB_BYTES - GIB_BYTES


def test_a_limit_without_a_request_is_one() -> None:
    needs = {"name": "c", "resources": {"limits": {"cpu": "4"}, "requests": {"memory": "1Gi"}}}
    assert used_cpu_milli(pod(containers=[needs])) == 4000


def test_others_may_use_more_than_there_is() -> None:
    actual = node_view(pod(containers=[container("900")]), gpu_pod("p", 9))
    assert (actual.cpu_milli, actual.gpus, actual.foreign) == (0, 8, tuple(range(8)))


# -- which GPUs others use --------------------------------------------------------------------------------------------


def gpu_pod(name: str, gpus: int, resource: str = "nvidia.com/gpu", **spec: Any) -> objects.Pod:
    return pod(name, containers=[{"name": "c", "resources": {"limits": {resource: str(gpus)}}}], **spec)


def ours(name: str, slots: str, *, phase: str = "Running", on_node: str = "n1") -> objects.Pod:
    bound = gpu_pod(name, slots.count(",") + 1, on_node=on_node, phase=phase, schedulerName="ganger")
    return msgspec.structs.replace(
        bound,
        metadata=msgspec.structs.replace(
            bound.metadata, annotations={"ganger.dev/devices": slots, "ganger.dev/gang": "a.b"}
        ),
    )


def test_others_have_the_last_slots_that_ours_do_not_have() -> None:
    assert node_view().foreign == ()
    assert node_view(gpu_pod("a", 1), gpu_pod("b", 2)).foreign == (5, 6, 7)
    assert node_view(gpu_pod("a", 3), ours("j-1-0", "6,7")).foreign == (3, 4, 5)
    assert node_view(gpu_pod("a", 3), ours("j-1-0", "6,7", phase="Succeeded")).foreign == (5, 6, 7)
    assert node_view(gpu_pod("a", 3), ours("j-1-0", "6,7", on_node="n2")).foreign == (5, 6, 7)
    assert node_view(gpu_pod("a", 9), ours("j-1-0", "0,3")).foreign == (1, 2, 4, 5, 6, 7)


def test_only_gpus_that_are_gpus_count() -> None:
    assert node_view(gpu_pod("a", 3, "nvidia.com/mig-1g.5gb")).foreign == ()


@pytest.mark.parametrize("slots", ["", "x", "-1", "0,,x", "9999999999999999999999", "٣"])
def test_slots_that_were_written_by_hand(slots: str) -> None:
    assert node_view(ours("j-1-0", slots)).gpus == 8


def test_a_broken_gpu_has_no_owner_and_gangs_go_on_beside_it() -> None:
    ill = node(allocatable=GPU_NODE | {"nvidia.com/gpu": "7"}, capacity=GPU_NODE)
    actual = node_view(ours("j-1-0", "6,7"), gpu_pod("a", 1), of=ill)
    assert (actual.gpus, actual.foreign) == (8, (4, 5))


def test_a_device_plugin_that_starts_anew_takes_nothing_from_ours() -> None:
    for deleted in (ALLOCATABLE | {"nvidia.com/gpu": "0"}, ALLOCATABLE):
        actual = node_view(ours("j-1-0", "2,3"), of=node(allocatable=deleted))
        assert (actual.gpus, actual.foreign) == (4, (0, 1))
    ill = node(allocatable=ALLOCATABLE | {"nvidia.com/gpu": "0"}, capacity=GPU_NODE)
    assert (node_view(of=ill).gpus, node_view(of=ill).foreign) == (8, tuple(range(8)))


def claim(name: str, *devices: str, node_name: str = "n1", **more: Any) -> ResourceClaim:
    """Return a claim as a scheduler writes it. devices: `DRIVER/DEVICE`, with `!` for monitoring access."""
    results = [
        {
            "request": "gpus",
            "driver": device.lstrip("!").partition("/")[0],
            "pool": node_name,
            "device": device.partition("/")[2],
            "adminAccess": device.startswith("!"),
        }
        for device in devices
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    actual = {
        "metadata": {"name": name, "namespace": "team", "annotations": more.get("annotations", {})},
        "status": {"allocation": allocation, "reservedFor": more.get("users", [])},
    }
    return msgspec.convert(actual, ResourceClaim)


@pytest.mark.parametrize(
    ("claims", "many"),
    [
        ((claim("a", "gpu.nvidia.com/gpu-0"),), 1),
        ((claim("a", "gpu.nvidia.com/gpu-0", "gpu.nvidia.com/gpu-1"), claim("b", "gpu.nvidia.com/gpu-2")), 3),
        ((claim("a", "gpu.nvidia.com/gpu-0"), claim("b", "gpu.nvidia.com/gpu-0")), 1),
        ((claim("a", "gpu.nvidia.com/gpu-0-mig-1g.5gb-0", "gpu.nvidia.com/gpu-0-mig-1g.5gb-1"),), 1),
        ((claim("a", "!gpu.nvidia.com/gpu-0"),), 0),
        ((claim("a", "dra.net/eth1"),), 0),
        ((claim("a", "gpu.nvidia.com/gpu-0", node_name="n2"),), 0),
        ((claim("a", "gpu.nvidia.com/gpu-0", users=[{"resource": "pods", "name": "j", "uid": "uid-j-1-0"}]),), 0),
        (
            (
                claim(
                    "a",
                    "gpu.nvidia.com/gpu-0",
                    annotations={"resource.kubernetes.io/extended-resource-claim": "true"},
                ),
            ),
            0,
        ),
        ((msgspec.convert({"metadata": {"name": "new"}}, ResourceClaim),), 0),
    ],
)
def test_gpus_of_claims_count_once(claims: tuple[ResourceClaim, ...], many: int) -> None:
    assert len(node_view(ours("j-1-0", "0"), claims=claims).foreign) == many
    assert len(node_view(ours("j-1-0", "0"), gpu_pod("p", 2), claims=claims).foreign) == many + 2


def test_claims_come_and_go() -> None:
    inventory, held = NodeInventory(), claim("a", "gpu.nvidia.com/gpu-0")
    inventory.node_changed(None, node())
    inventory.claim_changed(None, held)
    assert inventory.cluster().nodes[0].foreign == (7,)
    inventory.claim_changed(held, None)
    assert inventory.cluster().nodes[0].foreign == ()


# -- what follows from changes ----------------------------------------------------------------------------------------


def describe_changes(inventory: NodeInventory) -> list[str]:
    return [f"{item.kind} {getattr(item, 'node', '')}".strip() for item in inventory.events()]


def test_the_first_time_all_there_is() -> None:
    inventory = NodeInventory()
    assert describe_changes(inventory) == ["nodes_listed"]
    inventory = NodeInventory()
    inventory.node_changed(None, node("n2", ready="Unknown"))
    inventory.node_changed(None, node("n1", unschedulable=True))
    happened = inventory.events()
    assert isinstance(happened[0], NodesListed)
    assert [item.name for item in happened[0].nodes] == ["n1", "n2"]
    assert happened[1] == NodeCordoned(node="n1", by="kubernetes", reason="it is marked unschedulable")
    assert [item.unready for item in happened[0].nodes] == ["", "not ready (KubeletReady: kubelet is posting status)"]
    assert describe_changes(inventory) == []


def test_a_heartbeat_is_no_event() -> None:
    inventory, was = NodeInventory(), node()
    inventory.node_changed(None, was)
    describe_changes(inventory)
    inventory.node_changed(was, node(images=[{"names": ["a"]}]))
    assert describe_changes(inventory) == []


@pytest.mark.parametrize(
    ("then", "events"),
    [
        (node(ready="False"), ["node_changed"]),
        (node(conditions=[]), ["node_changed"]),
        (node(unschedulable=True), ["node_cordoned n1"]),
        (node(ready="Unknown", unschedulable=True), ["node_changed", "node_cordoned n1"]),
        (node(labels={"a": "b"}), ["nodes_listed"]),
        (node(labels={"rack": "r1"}), ["nodes_listed"]),
        (None, ["nodes_listed"]),
    ],
)
def test_what_a_change_of_a_node_leads_to(then: objects.Node | None, events: list[str]) -> None:
    inventory, first = NodeInventory(), node()
    inventory.node_changed(None, first)
    describe_changes(inventory)
    inventory.node_changed(first, then)
    assert describe_changes(inventory) == events


def test_a_listing_says_who_is_lost_already() -> None:
    inventory = NodeInventory()
    for name in ("n1", "n2"):
        inventory.node_changed(None, node(name, ready="Unknown"))
    describe_changes(inventory)
    inventory.lose("n1", "gone")
    assert describe_changes(inventory) == ["node_changed", "node_lost n1"]
    inventory.lose("n2", "gone")
    inventory.node_changed(None, node("n3"))
    happened = inventory.events()
    assert isinstance(happened[0], NodesListed)
    assert happened[0].lost == ("n1",)
    assert happened[1:] == [NodeLost(node="n2", detail="KubeletReady: kubelet is posting status")]


def test_back_again() -> None:
    inventory, well, ill = NodeInventory(), node(), node(ready="Unknown", unschedulable=True)
    inventory.node_changed(None, ill)
    inventory.lose("n1", "gone")
    describe_changes(inventory)
    inventory.node_changed(ill, well)
    changed, *happened = inventory.events()
    assert isinstance(changed, NodeChanged)
    assert changed.listed.unready == ""
    assert happened == [NodeReturned(node="n1"), NodeUncordoned(node="n1", by="kubernetes")]


def test_a_node_that_was_deleted_begins_anew() -> None:
    inventory, ill = NodeInventory(), node(ready="Unknown", unschedulable=True)
    inventory.node_changed(None, ill)
    inventory.lose("n1", "gone")
    describe_changes(inventory)
    inventory.node_changed(ill, None)
    assert describe_changes(inventory) == ["nodes_listed"]
    inventory.node_changed(None, ill)
    assert describe_changes(inventory) == ["nodes_listed", "node_cordoned n1"]


def test_pods_come_change_and_go() -> None:
    inventory, small = NodeInventory(), pod(containers=[container("2")])
    inventory.node_changed(None, node())
    describe_changes(inventory)

    def remaining() -> int:
        return inventory.cluster().nodes[0].cpu_milli

    inventory.pod_changed(None, small)
    assert (describe_changes(inventory), remaining()) == (["node_changed"], 61770)
    running = pod(containers=[container("2")], phase="Running")
    inventory.pod_changed(small, running)
    assert describe_changes(inventory) == []
    resized = pod(containers=[container("3")])
    inventory.pod_changed(running, resized)
    assert (describe_changes(inventory), remaining()) == (["node_changed"], 60770)
    ended = pod(containers=[container("3")], phase="Succeeded")
    inventory.pod_changed(resized, ended)
    assert (describe_changes(inventory), remaining()) == (["node_changed"], 63770)
    inventory.pod_changed(ended, None)
    assert describe_changes(inventory) == []


def generation_2(name: str, slots: str) -> objects.Pod:
    created = ours(name, slots)
    known = created.metadata.annotations | {"ganger.dev/node": "n1"}
    about = msgspec.structs.replace(created.metadata, annotations=known, labels={"ganger.dev/generation": "2"})
    return msgspec.structs.replace(created, metadata=about)


def test_pods_of_which_the_core_knows_nothing_are_others_until_they_are_gone_or_it_does() -> None:
    inventory, going, stays = NodeInventory(), generation_2("going", "0,1"), generation_2("stays", "2")
    inventory.node_changed(None, node())
    for item in (going, stays):
        inventory.pod_changed(None, item)

    def foreign() -> int:
        return len(inventory.cluster().nodes[0].foreign)

    assert foreign() == 0
    inventory.mark_stale([going, stays])
    assert foreign() == 3
    inventory.claim_generation("a.b", 3)
    assert foreign() == 3, "that is another generation"
    inventory.pod_changed(going, None)
    assert foreign() == 1
    inventory.claim_generation("a.b", 2)
    assert foreign() == 0
    inventory.pod_changed(stays, None)
    assert foreign() == 0


def test_a_pod_may_be_known_before_its_node() -> None:
    inventory = NodeInventory()
    inventory.pod_changed(None, pod())
    inventory.node_changed(None, node())
    assert inventory.cluster().nodes[0].cpu_milli == 62770
