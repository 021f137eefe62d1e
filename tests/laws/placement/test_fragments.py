"""The increase of fragments by a part, against the definition: counted before and after it was taken."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.nodes.fragmentation import COVERED_PERCENT, DemandKind, most_frequent
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.scores import fgd
from ganger.model.decision import NodeShare
from ganger.model.policy import GpuShares, Rules
from ganger.model.shape import Shape
from ganger.simulation.metrics.gpu_fragmentation import IdleResources, fragmented_milli
from tests.laws.placement.test_placement import HalfFull, half_full

TYPES = st.sampled_from(((None,), (None,), ("h100",), ("a100", "h100"), ("a100",)))
GPUS = st.builds(
    lambda types, **size: Shape(nodes=1, gpu_type=types[0], other_types=types[1:], **size),
    TYPES,
    gpus=st.integers(1, 4),
    cpu_milli=st.sampled_from((0, 1_000, 2_000)),
)
SHARES = st.builds(
    Shape, nodes=st.just(1), gpu_milli=st.sampled_from((1, 300, 600)), memory_bytes=st.sampled_from((0, 4))
)
NEEDS = GPUS | SHARES
CPUS = st.builds(Shape, nodes=st.just(1), cpu_milli=st.sampled_from((1_000, 2_000)))
KINDS = st.lists(st.builds(DemandKind, NEEDS | CPUS, st.integers(1, 3)), min_size=1, max_size=3).map(tuple)


def lefts(table: NodeTable, index: int) -> list[int]:
    """Return what each device of a node has left."""
    devices = range(int(table.devices.first[index]), int(table.devices.first[index + 1]))
    return [1000 - int(table.devices.used_milli[d]) if table.devices.owner[d] < 0 else 0 for d in devices]


def fragments(table: NodeTable, kinds: tuple[DemandKind, ...]) -> int:
    """Return all that is left and too small for a kind, or left where it fits nowhere, weighted by the kind's demand.

    For a kind without GPUs that is all that is left.
    """
    total = 0
    for index, node in enumerate(table.nodes):
        left = lefts(table, index)
        for need, times in kinds:
            size = need.gpu_milli or 1000
            fits = need.gpu_type is None or node.gpu_type.lower() in (need.gpu_type, *need.other_types)
            fits &= sum(device_left >= size for device_left in left) >= max(1, need.gpus)
            fits &= (
                table.free.cpu_milli[index] >= need.cpu_milli and table.free.memory_bytes[index] >= need.memory_bytes
            )
            fits &= bool(need.gpus or need.gpu_milli)
            total += times * sum(device_left for device_left in left if device_left < size or not fits)
    return total


def table_for(cluster: HalfFull, kinds: tuple[DemandKind, ...], **options: object) -> NodeTable:
    table = cluster.table(Rules(gpu_shares=GpuShares(score="fgd", **options)))
    table.set_demand_kinds(kinds)
    return table


@given(cluster=half_full(), part=NEEDS, kinds=KINDS)
def test_what_is_added_is_what_is_counted(cluster: HalfFull, part: Shape, kinds: tuple[DemandKind, ...]) -> None:
    table = table_for(cluster, kinds)
    before = fragments(table, kinds)
    of_nodes = fgd.of_nodes(table, part, np.arange(len(table.nodes)))
    for index, node in enumerate(table.nodes):
        if table.free.cpu_milli[index] < part.cpu_milli or table.free.memory_bytes[index] < part.memory_bytes:
            continue
        first, increases = int(table.devices.first[index]), []
        devices = range(int(table.devices.first[index + 1]) - first)
        left = lefts(table, index)
        free = [d for d in devices if table.devices.owner[first + d] == -1]
        if part.has_share:
            places = [(d,) for d in devices if left[d] >= part.gpu_milli]
        else:
            places = [tuple(free[: part.gpus])] if len(free) >= part.gpus else []
        for place in places:
            with table.trial():
                table.take(1, part, [NodeShare(node.name, (0,), place)])
                increases.append(fragments(table, kinds) - before)
            if part.has_share:
                assert fgd.of_devices(table, part, np.array([first + place[0]])).tolist() == increases[-1:]
        if places:
            assert of_nodes[index] == min(increases)


@given(cluster=half_full(), kinds=KINDS)
def test_the_metric_counts_the_same(cluster: HalfFull, kinds: tuple[DemandKind, ...]) -> None:
    kinds = tuple(DemandKind(replace(need, memory_bytes=0), times) for need, times in kinds)
    table = table_for(cluster, kinds)
    all_nodes = np.arange(len(table.nodes))
    left = table.devices.left_milli(all_nodes)
    counted = table.fragments.expected(all_nodes, left, table.free.cpu_milli, table.free.memory_bytes)
    for index, kind in enumerate(table.attributes.gpu_types):
        rest = IdleResources(kind, int(table.free.cpu_milli[index]), tuple(lefts(table, index)))
        assert fragmented_milli(rest, kinds) == counted[index]
    assert counted.sum() == fragments(table, kinds)


@given(cluster=half_full(), part=NEEDS, kinds=KINDS, cut=st.sampled_from((1, 100)))
def test_grades_keep_the_order(cluster: HalfFull, part: Shape, kinds: tuple[DemandKind, ...], cut: int) -> None:
    all_nodes = np.arange(len(cluster.nodes))
    exact = fgd.of_nodes(table_for(cluster, kinds), part, all_nodes)
    grades = fgd.of_nodes(table_for(cluster, kinds, cut=cut), part, all_nodes)
    for added, grade in zip(exact.tolist(), grades.tolist(), strict=True):
        if added == fgd.NOWHERE:
            assert grade == cut + 1, "what has no place comes last"
            continue
        assert 0 <= grade <= cut
        assert all(
            grade <= other_grade
            for more, other_grade in zip(exact.tolist(), grades.tolist(), strict=True)
            if more >= added
        )


@given(counts=st.dictionaries(NEEDS, st.integers(1, 30), max_size=8))
def test_typical_are_as_few_as_cover_nearly_all(counts: dict[Shape, int]) -> None:
    kinds, total = most_frequent(counts), sum(counts.values())
    covered = [kind.times for kind in kinds]
    assert all(counts[need] == times for need, times in kinds)
    assert 100 * sum(covered) >= COVERED_PERCENT * total
    assert not covered or 100 * sum(covered[:-1]) < COVERED_PERCENT * total
    assert covered == sorted(counts.values(), reverse=True)[: len(covered)]
