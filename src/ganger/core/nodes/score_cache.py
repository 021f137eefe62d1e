"""The policy's score of every node for each demand, kept up to date incrementally.

Only nodes that changed since a demand was last scored are scored again, by reading the journal of changed nodes.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ganger.core.nodes.capacity_index import CapacityIndex, Column
from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.score_interface import Score
from ganger.core.nodes.scores import FindScore, own_score, pack
from ganger.core.nodes.topology import Ints
from ganger.model.policy import LEAST
from ganger.model.shape import Shape

MAX_COLUMNS: Final = 512
"""The number of columns beyond which all are dropped, so that demands no longer asked about do not accumulate."""


@dataclass(slots=True)
class _Column:
    """The scores for one demand.

    scores: (N,) the score of each node that has room for it.
    room: the column of the capacity index; a node without room is not scored.
    read: the journal position up to which it is current.
    """

    score: Score
    part: Shape
    scores: Ints
    room: Column
    read: int


class ScoreCache:
    """The scores of one table of nodes, for demands that the capacity index has a column for.

    find_score: returns the score that the rules name; set again, it finds those of plug-ins too.
    """

    def __init__(self, nodes: NodeArrays, capacity: CapacityIndex) -> None:
        """Start without columns."""
        self._nodes, self._capacity = nodes, capacity
        self.find_score: FindScore = own_score
        self._all_nodes = np.arange(len(nodes.nodes))
        self._columns: dict[tuple[str, Shape], _Column] = {}
        self._fragments, self._resets = nodes.fragments, capacity.resets

    def sort_keys(self, part: Shape) -> tuple[Ints, ...]:
        """Return (N,) arrays by which nodes are compared before what they have left, least first."""
        rules = self._nodes.listing.rules.gpu_shares
        tightest = (self._of(pack, part),) if part.has_share else ()
        if rules.score == pack.NAME:
            return tightest
        scores = self._of(self.find_score(rules.score), part)
        return (scores, *tightest) if rules.ties == LEAST else (scores, self._all_nodes)

    def order(self, part: Shape, devices: Ints) -> Ints:
        """Return positions in `devices` (of one node), the preferred device for a share first."""
        rules, keys = self._nodes.listing.rules.gpu_shares, self._nodes.devices.packing_keys(part, devices)
        scores = self.find_score(rules.score).of_devices(self._nodes, part, devices)
        if scores is None:
            return np.argsort(keys, kind="stable")
        return np.lexsort((keys, scores)) if rules.ties == LEAST else np.argsort(scores, kind="stable")

    def rewind(self) -> None:
        """Read the journal to its end before the capacity index does and it is cleared."""
        self._drop_stale()
        for column in self._columns.values():
            self._capacity.refresh(column.room)
            self._refresh(column)
        for column in self._columns.values():
            column.read = 0

    def _of(self, score: Score, part: Shape) -> Ints:
        """Return (N,) the values of a score; a single or hypothetical placement does not create a column."""
        self._drop_stale()
        room = self._capacity.existing(part) if score.LASTS else None
        if room is None:
            return score.of_nodes(self._nodes, part, self._all_nodes)
        column = self._columns.get((score.NAME, part)) or self._create(score, part, room)
        self._refresh(column)
        return column.scores

    def _drop_stale(self) -> None:
        """Drop all columns when the typical demands changed or the capacity index dropped its own."""
        if self._nodes.fragments is not self._fragments or self._capacity.resets != self._resets:
            self._columns.clear()
            self._fragments, self._resets = self._nodes.fragments, self._capacity.resets

    def _create(self, score: Score, part: Shape, room: Column) -> _Column:
        demand = part.one
        column = self._columns.get((score.NAME, demand))
        if column is None or column.room is not room:
            if len(self._columns) >= MAX_COLUMNS:
                self._columns.clear()
            scores = score.of_nodes(self._nodes, demand, self._all_nodes)
            column = _Column(score, demand, scores, room, len(self._nodes.journal.entries))
            self._columns[score.NAME, demand] = column
        self._columns[score.NAME, part] = column
        return column

    def _refresh(self, column: _Column) -> None:
        """Bring a column up to date. O(nodes changed since)."""
        length = len(self._nodes.journal.entries)
        if column.read < length:
            changed = self._nodes.journal.since(column.read, len(column.scores))
            changed = changed[column.room.counts[changed] > 0]
            column.read = length
            if changed.size:
                column.scores[changed] = column.score.of_nodes(self._nodes, column.part, changed)

    def validate(self) -> None:
        """Rescore everything and raise AssertionError naming the difference."""
        self._drop_stale()
        for (name, part), column in self._columns.items():
            self._capacity.refresh(column.room)
            self._refresh(column)
            nodes = np.flatnonzero(column.room.counts)
            expected = column.score.of_nodes(self._nodes, part, nodes)
            assert (column.scores[nodes] == expected).all(), f"the score of {part} by {name} differs"
