"""Extended resources of nodes, less what other pods have of them."""

import msgspec

from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory, cluster
from ganger.backends.kubernetes.nodes.node_room import is_late
from ganger.kubeapi.objects import Pod, PodStatus
from ganger.model.event import NodeChanged
from ganger.model.units import GIB_BYTES
from tests.kubernetes.nodes.test_nodes import ALLOCATABLE, GPU_NODE, node, node_view, pod


def test_extended_resources_are_counted_less_those_of_other_pods() -> None:
    has = GPU_NODE | {"rdma/hca": "4", "nvidia.com/mig-1g.5gb": "7", "hugepages-2Mi": "0", "x.kubernetes.io/y": "9"}
    offers = node(allocatable=has)
    disk = {"ephemeral-storage": 95551679124}
    assert node_view(of=offers).extended == {"rdma/hca": 4, "nvidia.com/mig-1g.5gb": 7} | disk
    needs = {"name": "c", "resources": {"limits": {"rdma/hca": "1"}}}
    theirs = pod(containers=[needs, needs], initContainers=[{"name": "i", "resources": {"limits": {"rdma/hca": "3"}}}])
    assert node_view(theirs, of=offers).extended == {"rdma/hca": 1, "nvidia.com/mig-1g.5gb": 7} | disk
    assert node_view(own_pod("j-1-0", containers=[needs]), of=offers).extended["rdma/hca"] == 4
    assert node_view(pod(containers=[needs] * 9), of=offers).extended["rdma/hca"] == 0


def test_the_disk_of_a_node_is_counted_in_bytes() -> None:
    """An init container has its part before the others; a pod's own sum never includes what is for a volume."""
    offers = node(allocatable=ALLOCATABLE | {"ephemeral-storage": "100Gi"})
    needs = {"name": "c", "resources": {"requests": {"ephemeral-storage": "10Gi"}}}
    first = {"name": "i", "resources": {"limits": {"ephemeral-storage": "30Gi"}}}
    scratch = {"name": "scratch", "emptyDir": {"sizeLimit": "50Gi"}}

    def left(**spec: object) -> int:
        return node_view(pod(**spec), of=offers).extended["ephemeral-storage"]

    assert left(containers=[needs, needs], volumes=[scratch]) == 80 * GIB_BYTES
    assert left(containers=[needs, needs], initContainers=[first]) == 70 * GIB_BYTES
    assert left(containers=[needs] * 11) == 0
    assert "ephemeral-storage" not in node_view(of=node(allocatable={"cpu": "1"})).extended


def test_a_pod_that_its_node_has_no_disk_for_any_more_is_late() -> None:
    """Another scheduler placed a pod there in the meantime; with enough disk the node has another reason."""
    offers = node(allocatable=ALLOCATABLE | {"ephemeral-storage": "20Gi"})
    needs = {"name": "c", "resources": {"requests": {"ephemeral-storage": "10Gi"}}}
    rejected = own_pod("j-1-0", containers=[needs])
    rejected = msgspec.structs.replace(rejected, status=PodStatus(phase="Failed", reason="OutOfephemeral-storage"))
    other, more = pod("o", containers=[needs]), own_pod("k-1-0", containers=[needs])
    assert not is_late(rejected, cluster([offers], [other]), [rejected])
    assert is_late(rejected, cluster([offers], [other, more]), [rejected, more])


def own_pod(name: str, **spec: object) -> Pod:
    ours = pod(name, schedulerName="ganger", **spec)
    return msgspec.structs.replace(
        ours, metadata=msgspec.structs.replace(ours.metadata, uid=name, annotations={"ganger.dev/gang": "a.b"})
    )


def test_what_a_node_lost_while_pods_had_it_is_listed_again_as_they_end() -> None:
    """The core counts at least what gangs hold, so that a plug-in that starts again ends none of them."""
    inventory, pods = NodeInventory(), [own_pod("j-1-0"), own_pod("k-1-0")]
    has, has_not = node(allocatable=GPU_NODE | {"rdma/hca": "2"}), node(allocatable=GPU_NODE | {"rdma/hca": "0"})
    inventory.node_changed(None, has)
    for each in pods:
        inventory.pod_changed(None, each)
    inventory.events()
    inventory.node_changed(has, has_not)
    assert [amount["rdma/hca"] for amount in amounts(inventory)] == [0]
    for each in pods:
        inventory.pod_changed(each, None)
        assert [amount["rdma/hca"] for amount in amounts(inventory)] == [0]
    later = own_pod("l-1-0")
    inventory.pod_changed(None, later)
    inventory.pod_changed(later, None)
    assert amounts(inventory) == []


def amounts(inventory: NodeInventory) -> list[dict[str, int]]:
    return [event.listed.extended for event in inventory.events() if isinstance(event, NodeChanged)]
