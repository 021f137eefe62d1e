"""Where a gang goes: which nodes, and which devices on each. All of its nodes, or none.

Called by `core.plan`, `core.backfill` and `core.explain`, on the arrays as they stand. How many go where is decided by
`core.layout`; here they become shares of nodes and devices, with ranks in topology order.

A gang of several parts is placed part by part, those with the largest need first, each on what the others leave; where
that leads nowhere, in the other orders. All of it goes into one domain if it can: of the lowest level on which that
succeeds. Processes of a stacked part go where the gang is already, before they go elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

import numpy as np

from ganger.core.layout import lay_out
from ganger.core.nodes import NodeTable
from ganger.core.topology import Ints
from ganger.model.decision import NodeShare
from ganger.model.job import Shape

Shares = tuple[NodeShare, ...]

ORDERS_OF_PARTS: Final = 24
"""How many orders of the parts are tried: all of four."""
DOMAINS_TRIED: Final = 4
"""How many domains of a level are tried for a gang of several parts."""
_TRIED: Final = 0
"""Owner of what a trial placement takes; no gang has this number."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One part to place: its shape, its index among the gang's, its first rank."""

    shape: Shape
    index: int
    first_rank: int

    def shares(self, nodes: NodeTable, counts: dict[int, int]) -> Iterator[NodeShare]:
        """So many of it on each node, on the first devices that are free there, with ranks in topology order."""
        gpus, ranks, first = self.shape.gpus, self.shape.ranks, self.first_rank
        for at in sorted(counts):
            name, free = nodes.nodes[at].name, nodes.free_devices(at, counts[at] * gpus)
            for begin in range(0, counts[at] * gpus, gpus) if gpus else (0,) * counts[at]:
                yield NodeShare(name, tuple(range(first, first + ranks)), free[begin : begin + gpus], self.index)
                first += ranks


def place(nodes: NodeTable, shape: Shape) -> Shares | None:
    """Shares in rank order for every node of the gang, or None when it cannot be placed whole. O(nodes) for a part."""
    parts = list(_parts(shape))
    if len(parts) == 1:
        return _place_part(nodes, parts[0], nodes.times(parts[0].shape), {})
    every = [nodes.times(part.shape) for part in parts]
    if any(int(times.sum()) < part.shape.nodes for part, times in zip(parts, every, strict=True)):
        return None
    return next(
        filter(None, (_place_parts(nodes, shape, parts, within) for within in _homes(nodes, parts, every))), None
    )


def _place_parts(nodes: NodeTable, shape: Shape, parts: list[_Part], within: slice) -> Shares | None:
    """Shares on nodes `within`, in the first order of the parts that leads to any."""
    for order, _ in zip(permutations(sorted(parts, key=_demand)), range(ORDERS_OF_PARTS), strict=False):
        placed: dict[int, Shares] = {}
        with nodes.trial():
            for part in order:
                there = {nodes.index[share.node]: None for shares in placed.values() for share in shares}
                times = np.zeros(len(nodes.nodes), dtype=np.int64)
                times[within] = nodes.times(part.shape)[within]
                found = _place_part(nodes, part, times, there)
                if found is None:
                    break
                nodes.take(_TRIED, shape, found)
                placed[part.index] = found
        if len(placed) == len(parts):
            return tuple(share for part in parts for share in placed[part.index])
    return None


def _homes(nodes: NodeTable, parts: list[_Part], every: Sequence[Ints]) -> Iterator[slice]:
    """Nodes, then domains from the lowest level up, each of which has room for every part, if not for all at once:
    those with the least room first, so many of each level; the whole cluster last."""
    topology = nodes.topology
    rooms = [[*topology.sums(times), times] for times in every]
    for depth in range(len(rooms[0]) - 1, 0, -1):
        holds = np.logical_and.reduce(
            [room[depth] >= part.shape.nodes for part, room in zip(parts, rooms, strict=True)]
        )
        found = np.flatnonzero(holds)
        order = np.argsort(np.add.reduce([room[depth][found] for room in rooms]), kind="stable")
        first = topology.first_node[depth] if depth < len(rooms[0]) - 1 else np.arange(len(nodes.nodes) + 1)
        for at in found[order][:DOMAINS_TRIED].tolist():
            yield slice(int(first[at]), int(first[at + 1]))
    yield slice(0, len(nodes.nodes))


def _parts(shape: Shape) -> Iterator[_Part]:
    first_rank = 0
    for index, part in enumerate(shape.parts):
        yield _Part(part, index, first_rank)
        first_rank += part.nodes * part.ranks


def _demand(part: _Part) -> tuple[bool, int, int, int]:
    """Different nodes before processes that share them, the largest need first."""
    shape = part.shape
    return shape.stacked, -shape.gpus, -shape.memory_bytes, -shape.cpu_milli


def _place_part(nodes: NodeTable, part: _Part, times: Ints, there: dict[int, None]) -> Shares | None:
    """Shares for one part; `there` are nodes that the gang is on already."""
    counts: dict[int, int] = {}
    if part.shape.stacked:
        for at in there:
            counts[at] = min(int(times[at]), part.shape.nodes - sum(counts.values()))
            times[at] = 0
    rest = part.shape.nodes - sum(counts.values())
    if rest:
        found = lay_out(nodes, times, rest)
        if found is None:
            return None
        counts |= zip(found[0].tolist(), found[1].tolist(), strict=True)
    return tuple(part.shares(nodes, counts))
