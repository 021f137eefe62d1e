"""What the policy's score says of every node, for each kind of need: kept up to date by what changed.

Owned by `core.nodes.node_table`; asked by `core.placement.place` before nodes are compared by what they have left. Only
nodes that changed since a kind of need was last asked about are scored anew, for which the journal of changed nodes is
read."""

from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np

from ganger.core.nodes.capacity_index import CapacityIndex, Column
from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.scores import SCORES, pack
from ganger.core.nodes.topology import Ints
from ganger.model.policy import LEAST
from ganger.model.shape import Shape

MOST_SCORED: Final = 512
"""Beyond that many needs those that nobody asks about any more are let go."""


@dataclass(slots=True)
class _Column:
    """numbers: (N,) of a kind of need; room: how many of it nodes hold, without which a node is not scored; read: how
    far in the journal it has come."""

    score: ModuleType
    part: Shape
    numbers: Ints
    room: Column
    read: int


class ScoreCache:
    """The scores of one table of nodes, for needs of which `rooms` has a column."""

    def __init__(self, nodes: NodeArrays, rooms: CapacityIndex) -> None:
        """None yet."""
        self._nodes, self._rooms = nodes, rooms
        self._every = np.arange(len(nodes.nodes))
        self._columns: dict[tuple[str, Shape], _Column] = {}
        self._fragments, self._cleared = nodes.fragments, rooms.cleared

    def first(self, part: Shape) -> tuple[Ints, ...]:
        """(N,) each, what is compared of nodes before what they have left, the least first; ties as the policy says."""
        said = self._nodes.rules.gpu_shares
        tightest = (self._of(pack, part),) if part.has_share else ()
        if said.score == pack.NAME:
            return tightest
        found = self._of(SCORES[said.score], part)
        return (found, *tightest) if said.ties == LEAST else (found, self._every)

    def order(self, part: Shape, devices: Ints) -> Ints:
        """(d,) these devices of one node, that which a share gets first: by index."""
        said, own = self._nodes.rules.gpu_shares, self._nodes.devices.keys(part, devices)
        numbers = SCORES[said.score].of_devices(self._nodes, part, devices)
        if numbers is None:
            return np.argsort(own, kind="stable")
        return np.lexsort((own, numbers)) if said.ties == LEAST else np.argsort(numbers, kind="stable")

    def rewind(self) -> None:
        """Read the journal to its end, before `rooms` do and it is let go: then it is read from its beginning."""
        self._drop_stale()
        for column in self._columns.values():
            self._rooms.refresh(column.room)
            self._refresh(column)
        for column in self._columns.values():
            column.read = 0

    def _of(self, score: ModuleType, part: Shape) -> Ints:
        """(N,) by a score. To place a gang once, or one that does not exist, no column is made."""
        self._drop_stale()
        room = self._rooms.kept(part) if score.LASTS else None
        if room is None:
            found: Ints = score.of_nodes(self._nodes, part, self._every)
            return found
        column = self._columns.get((score.NAME, part)) or self._made(score, part, room)
        self._refresh(column)
        return column.numbers

    def _drop_stale(self) -> None:
        """Let go of all columns where jobs ask for other things than before, or `rooms` has let go of its own."""
        if self._nodes.fragments is not self._fragments or self._rooms.cleared != self._cleared:
            self._columns.clear()
            self._fragments, self._cleared = self._nodes.fragments, self._rooms.cleared

    def _made(self, score: ModuleType, part: Shape, room: Column) -> _Column:
        alike = part.one
        column = self._columns.get((score.NAME, alike))
        if column is None or column.room is not room:
            if len(self._columns) >= MOST_SCORED:
                self._columns.clear()
            numbers = score.of_nodes(self._nodes, alike, self._every)
            column = _Column(score, alike, numbers, room, len(self._nodes.journal.entries))
            self._columns[score.NAME, alike] = column
        self._columns[score.NAME, part] = column
        return column

    def _refresh(self, column: _Column) -> None:
        """Bring a column up to date. O(nodes changed since)."""
        many = len(self._nodes.journal.entries)
        if column.read < many:
            changed = self._nodes.journal.since(column.read, len(column.numbers))
            changed = changed[column.room.times[changed] > 0]
            column.read = many
            if changed.size:
                column.numbers[changed] = column.score.of_nodes(self._nodes, column.part, changed)

    def validate(self) -> None:
        """Score everything anew and compare. AssertionError names what differs."""
        self._drop_stale()
        for (name, part), column in self._columns.items():
            self._rooms.refresh(column.room)
            self._refresh(column)
            there = np.flatnonzero(column.room.times)
            anew = column.score.of_nodes(self._nodes, part, there)
            assert (column.numbers[there] == anew).all(), f"the score of {part} by {name} differs"
