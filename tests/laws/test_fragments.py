"""What a part adds to the fragments, against the definition: counted before, and again after it was taken."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.nodes.fragmentation import TYPICAL, DemandKind, Fragments, typical
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.scores import fgd
from ganger.model.decision import NodeShare
from ganger.model.policy import GpuShares, Rules
from ganger.model.shape import Shape
from ganger.simulation.metrics.gpu_fragmentation import IdleResources, fragmented_milli
from tests.laws.test_place import HalfFull, half_full

GPUS = st.builds(
    Shape,
    nodes=st.just(1),
    gpus=st.integers(1, 4),
    gpu_type=st.sampled_from((None, "h100")),
    cpu_milli=st.sampled_from((0, 1_000, 2_000)),
)
SHARES = st.builds(
    Shape, nodes=st.just(1), gpu_milli=st.sampled_from((1, 300, 600)), memory_bytes=st.sampled_from((0, 4))
)
NEEDS = GPUS | SHARES
CPUS = st.builds(Shape, nodes=st.just(1), cpu_milli=st.sampled_from((1_000, 2_000)))
KINDS = st.lists(st.builds(DemandKind, NEEDS | CPUS, st.integers(1, 3)), min_size=1, max_size=3).map(tuple)


def lefts(table: NodeTable, at: int) -> list[int]:
    """What each device of a node has left."""
    devices = range(int(table.first_device[at]), int(table.first_device[at + 1]))
    return [1000 - int(table.devices.used_milli[d]) if table.owner[d] < 0 else 0 for d in devices]


def fragments(table: NodeTable, kinds: tuple[DemandKind, ...]) -> int:
    """All that is left and too small for a kind, or left where it fits nowhere, as often as the kind is asked for; all
    that is left, for a kind without GPUs."""
    found = 0
    for at, node in enumerate(table.nodes):
        left = lefts(table, at)
        for need, times in kinds:
            size = need.gpu_milli or 1000
            fits = need.gpu_type in (None, node.gpu_type.lower()) and sum(each >= size for each in left) >= max(
                1, need.gpus
            )
            fits &= table.free_cpu_milli[at] >= need.cpu_milli and table.free_memory_bytes[at] >= need.memory_bytes
            fits &= bool(need.gpus or need.gpu_milli)
            found += times * sum(each for each in left if each < size or not fits)
    return found


def asked_about(cluster: HalfFull, kinds: tuple[DemandKind, ...], **said: object) -> NodeTable:
    table = cluster.table(Rules(gpu_shares=GpuShares(score="fgd", **said)))
    table.set_kinds(kinds)
    return table


@given(cluster=half_full(), part=NEEDS, kinds=KINDS)
def test_what_is_added_is_what_is_counted(cluster: HalfFull, part: Shape, kinds: tuple[DemandKind, ...]) -> None:
    table = asked_about(cluster, kinds)
    before = fragments(table, kinds)
    of_nodes = fgd.of_nodes(table, part, np.arange(len(table.nodes)))
    for at, node in enumerate(table.nodes):
        if table.free_cpu_milli[at] < part.cpu_milli or table.free_memory_bytes[at] < part.memory_bytes:
            continue
        first, found = int(table.first_device[at]), []
        devices = range(int(table.first_device[at + 1]) - first)
        left = lefts(table, at)
        free = [d for d in devices if table.owner[first + d] == -1]
        if part.has_share:
            places = [(d,) for d in devices if left[d] >= part.gpu_milli]
        else:
            places = [tuple(free[: part.gpus])] if len(free) >= part.gpus else []
        for place in places:
            with table.trial():
                table.take(1, part, [NodeShare(node.name, (0,), place)])
                found.append(fragments(table, kinds) - before)
            if part.has_share:
                assert fgd.of_devices(table, part, np.array([first + place[0]])).tolist() == found[-1:]
        if places:
            assert of_nodes[at] == min(found)


@given(cluster=half_full(), kinds=KINDS)
def test_the_metric_counts_the_same(cluster: HalfFull, kinds: tuple[DemandKind, ...]) -> None:
    kinds = tuple(DemandKind(Shape(nodes=1, gpus=need.gpus, gpu_type=need.gpu_type, cpu_milli=need.cpu_milli,
                             gpu_milli=need.gpu_milli), times) for need, times in kinds)  # fmt: skip
    table = asked_about(cluster, kinds)
    every = np.arange(len(table.nodes))
    left = table.devices.left_milli(every)
    counted = Fragments(kinds, table.of_type).of(every, left, table.free_cpu_milli, table.free_memory_bytes)
    for at, kind in enumerate(table.gpu_types):
        rest = IdleResources(kind, int(table.free_cpu_milli[at]), tuple(lefts(table, at)))
        assert fragmented_milli(rest, kinds) == counted[at]
    assert counted.sum() == fragments(table, kinds)


@given(cluster=half_full(), part=NEEDS, kinds=KINDS, cut=st.sampled_from((1, 100)))
def test_grades_keep_the_order(cluster: HalfFull, part: Shape, kinds: tuple[DemandKind, ...], cut: int) -> None:
    every = np.arange(len(cluster.nodes))
    exact = fgd.of_nodes(asked_about(cluster, kinds), part, every)
    grades = fgd.of_nodes(asked_about(cluster, kinds, cut=cut), part, every)
    for added, its in zip(exact.tolist(), grades.tolist(), strict=True):
        if added == fgd.NOWHERE:
            assert its == cut + 1, "what has no place comes last"
            continue
        assert 0 <= its <= cut
        assert all(its <= other for more, other in zip(exact.tolist(), grades.tolist(), strict=True) if more >= added)


@given(counts=st.dictionaries(NEEDS, st.integers(1, 30), max_size=8))
def test_typical_are_as_few_as_cover_nearly_all(counts: dict[Shape, int]) -> None:
    kinds, total = typical(counts), sum(counts.values())
    covered = [kind.times for kind in kinds]
    assert all(counts[need] == times for need, times in kinds)
    assert 100 * sum(covered) >= TYPICAL * total
    assert not covered or 100 * sum(covered[:-1]) < TYPICAL * total
    assert covered == sorted(counts.values(), reverse=True)[: len(covered)]
