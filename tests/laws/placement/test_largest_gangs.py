"""The largest gangs that fit now and defragmented, counted from the drawn nodes alone."""

from collections import Counter

from hypothesis import given

from ganger.core.nodes.largest_gangs import largest_gangs
from ganger.model.cluster import NodeState
from ganger.model.views.overview import LargestGang
from tests.laws import draws
from tests.laws.placement.test_placement import HalfFull, half_full


def counted(cluster: HalfFull, gpu_type: str, gpus: int, level: str) -> LargestGang:
    """Count node by node: a gang has one CPU for each of its GPUs, and no node without a name for its domain."""
    depth = draws.LEVELS.index(level) + 1 if level else 0
    ready = [
        node
        for node in cluster.nodes
        if node.gpu_type.lower() == gpu_type and cluster.states[node.name] is NodeState.READY
    ]
    usable = [
        node
        for node in ready
        if not node.taints and node.gpus >= gpus and node.cpu_milli >= 1000 * gpus and all(node.domains[:depth][-1:])
    ]
    fitting = [
        node
        for node in usable
        if node.name not in cluster.held
        and cluster.left(node.name)[0] >= gpus
        and cluster.left(node.name)[1] >= 1000 * gpus
    ]
    free = sum(cluster.left(node.name)[0] for node in ready)
    in_service, now = (
        max(Counter(node.domains[:depth] for node in nodes).values(), default=0) for nodes in (usable, fitting)
    )
    together = min(in_service, free // gpus)
    return LargestGang(gpu_type=gpu_type, gpus=gpus, level=level, nodes=now, nodes_defragmented=together)


@given(cluster=half_full())
def test_largest_gangs_are_those_counted_by_hand(cluster: HalfFull) -> None:
    rows = largest_gangs(cluster.table())
    assert rows == tuple(counted(cluster, row.gpu_type, row.gpus, row.level) for row in rows)
    assert {row.gpu_type for row in rows} == {node.gpu_type.lower() for node in cluster.nodes if node.gpus}
    assert {row.level for row in rows} in ({"", *draws.LEVELS}, set())
    assert all(row.nodes <= row.nodes_defragmented for row in rows)
