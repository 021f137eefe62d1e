"""What a part adds to the fragments, against the definition: counted before, and again after it was taken."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.fragmentation import NOWHERE, Gradient, Kind, graded
from ganger.core.nodes import NodeTable
from ganger.model.decision import NodeShare
from ganger.model.shape import Shape
from tests.laws.test_place import HalfFull, half_full

NEEDS = st.builds(
    Shape,
    nodes=st.just(1),
    gpus=st.integers(1, 4),
    gpu_type=st.sampled_from((None, "h100")),
    cpu_milli=st.sampled_from((0, 1_000, 2_000)),
) | st.builds(Shape, nodes=st.just(1), gpu_milli=st.sampled_from((1, 300, 600)), memory_bytes=st.sampled_from((0, 4)))
KINDS = st.lists(st.builds(Kind, NEEDS, st.integers(1, 3)), min_size=1, max_size=3).map(tuple)


def fragments(table: NodeTable, kinds: tuple[Kind, ...]) -> int:
    """All that is left and too small for a kind, or left where it fits nowhere, as often as the kind is asked for."""
    found = 0
    for at, node in enumerate(table.nodes):
        devices = range(int(table.first_device[at]), int(table.first_device[at + 1]))
        left = [1000 - int(table.devices.used_milli[d]) if table.owner[d] < 0 else 0 for d in devices]
        for need, times in kinds:
            size = need.gpu_milli or 1000
            fits = need.gpu_type in (None, node.gpu_type.lower()) and sum(each >= size for each in left) >= max(
                1, need.gpus
            )
            fits &= table.free_cpu_milli[at] >= need.cpu_milli and table.free_memory_bytes[at] >= need.memory_bytes
            found += times * sum(each for each in left if each < size or not fits)
    return found


@given(cluster=half_full(), part=NEEDS, kinds=KINDS)
def test_what_is_added_is_what_is_counted(cluster: HalfFull, part: Shape, kinds: tuple[Kind, ...]) -> None:
    table = cluster.table()
    before, gradient = fragments(table, kinds), Gradient(table, kinds)
    added = gradient.of_devices(part) if part.has_share else gradient.of_nodes(part)
    for at, node in enumerate(table.nodes):
        first = int(table.first_device[at])
        free = [d - first for d in range(first, int(table.first_device[at + 1])) if table.owner[d] == -1]
        if part.has_share:
            places = [(d - first,) for d in range(first, int(table.first_device[at + 1])) if added[d] != NOWHERE]
        else:
            places = [tuple(free[: part.gpus])] if len(free) >= part.gpus else []
        for devices in places:
            with table.trial():
                table.take(1, part, [NodeShare(node.name, (0,), devices)])
                after = fragments(table, kinds)
            assert after - before == added[first + devices[0] if part.has_share else at]


@given(added=st.lists(st.integers(-20_000, 20_000), min_size=1, max_size=9), kinds=KINDS, cut=st.sampled_from((1, 100)))
def test_grades_keep_the_order(added: list[int], kinds: tuple[Kind, ...], cut: int) -> None:
    there = np.array([*added, NOWHERE])
    grades = graded(there, kinds, cut)
    for one, its in zip(added, grades.tolist(), strict=False):
        assert 0 <= its <= cut < grades[-1], "what has no place comes last"
        assert all(its <= other for more, other in zip(added, grades.tolist(), strict=False) if more >= one)
    assert (graded(there, kinds, 0) == there).all()
