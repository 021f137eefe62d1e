"""The devices of a node that a gang gets, against brute force: every set of free devices, every size of a request."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.nodes.node_table import NodeTable
from ganger.core.undo import Undo
from ganger.model.cluster import LINK_SCORES, NVLINK_SCORE, Node
from ganger.model.shape import Shape
from tests.laws.oracles.link_oracle import Matrix, best_devices

DEVICES = tuple(range(8))
SYS, NODE, PHB, PIX = (LINK_SCORES[kind] for kind in ("SYS", "NODE", "PHB", "PIX"))
DGX_1V = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""NVLinks between pairs of devices: a cube mesh."""


def matrix(link: dict[tuple[int, int], int]) -> Matrix:
    """Return the matrix with these links between pairs."""
    return tuple(tuple(0 if a == b else link[min(a, b), max(a, b)] for b in DEVICES) for a in DEVICES)


PAIRS = tuple(combinations(DEVICES, 2))
MATRICES = {
    "all to all through switches": matrix(dict.fromkeys(PAIRS, 18 * NVLINK_SCORE)),
    "the same, on two NUMA nodes": matrix({(a, b): 1800 + (a // 4 == b // 4) for a, b in PAIRS}),
    "two islands of four": matrix({(a, b): 400 if a // 4 == b // 4 else SYS for a, b in PAIRS}),
    "islands that are not in order": matrix({(a, b): 400 if a % 2 == b % 2 else SYS for a, b in PAIRS}),
    "pairs on PCIe switches": matrix(
        {(a, b): PIX if a // 2 == b // 2 else NODE if a // 4 == b // 4 else SYS for a, b in PAIRS}
    ),
    "a ring": matrix({(a, b): 200 if (b - a) in (1, 7) else PHB for a, b in PAIRS}),
    "cube mesh of a DGX-1V": matrix({(a, b): NVLINK_SCORE * DGX_1V.get((a, b), 0) or SYS for a, b in PAIRS}),
}


def table(links: Matrix, free: tuple[int, ...]) -> NodeTable:
    """Return the table of one node with these links and free devices."""
    foreign = tuple(device for device in range(len(links)) if device not in free)
    return NodeTable([Node(name="n", gpus=len(links), gpu_links=links, foreign=foreign)], {}, Undo())


def chosen(nodes: NodeTable, size: int, count: int = 1) -> list[tuple[int, ...]]:
    """Return the devices of `count` requests of this size."""
    one = np.zeros(1, dtype=np.int64)
    return list(nodes.choose(Shape(nodes=count, gpus=size, stacked=count > 1), one, one + count, None))


@pytest.mark.parametrize("name", MATRICES)
def test_every_set_of_free_devices_and_every_size(name: str) -> None:
    links = MATRICES[name]
    for free in (free for most in DEVICES for free in combinations(DEVICES, most + 1)):
        nodes = table(links, free)
        for size in range(1, len(free) + 1):
            assert chosen(nodes, size) == [best_devices(links, free, size)], (free, size)


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Draw the links of up to six devices."""
    count = draw(st.integers(1, 6))
    link = {pair: draw(st.sampled_from((0, SYS, PIX, 100, 200))) for pair in combinations(range(count), 2)}
    return tuple(tuple(link.get((min(a, b), max(a, b)), 0) for b in range(count)) for a in range(count))


@settings(max_examples=100)
@given(links=matrices(), data=st.data())
def test_any_matrix(links: Matrix, data: st.DataObject) -> None:
    free = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(links))), min_size=1))))
    size = data.draw(st.integers(1, len(free)))
    nodes = table(links, free)
    assert chosen(nodes, size) == [best_devices(links, free, size)]
    groups = chosen(nodes, size, len(free) // size)
    left = free
    for group in groups:
        assert group == best_devices(links, left, size)
        left = tuple(device for device in left if device not in group)


def test_a_matrix_of_another_size_counts_as_none() -> None:
    nodes = NodeTable([Node(name="n", gpus=4, gpu_links=MATRICES["a ring"])], {}, Undo())
    assert chosen(nodes, 3) == [(0, 1, 2)]
    assert chosen(NodeTable([Node(name="n", gpus=17, gpu_links=((0,) * 17,) * 17)], {}, Undo()), 2) == [(0, 1)]
