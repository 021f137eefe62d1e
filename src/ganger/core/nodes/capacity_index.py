"""Numbers of each node demand that every node can take now, and all nodes together, kept up to date incrementally.

Idea: the question "is there room for this part?" is asked for every job class in every scheduling cycle, and the answer
    changes only for nodes that something started or ended on. So each demand has a column of counts per node and their
    sum. A column is created when its demand is first asked about. When it is asked about again, it reads the journal
    from where it stopped and recounts only the nodes that changed: O(changed nodes), and nothing for demands that no
    job asks about.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.model.shape import Shape

MAX_COLUMNS: Final = 4_096
"""The number of columns beyond which all are dropped, so that demands no longer asked about do not accumulate."""


@dataclass(slots=True)
class Column:
    """The room for one demand.

    counts: (N,) int64, how many of it each node takes: 0 or 1, unless it is stacked.
    total: their sum.
    read: the journal position up to which it is current.
    growth: how often some node's count rose; an unchanged value means that a failed placement would fail again.
    """

    part: Shape
    counts: NDArray[np.int64]
    total: int
    read: int
    growth: int = 0


class CapacityIndex:
    """The columns of one table of nodes, and for each demand the nodes that are large enough for it.

    resets: how often all columns were dropped; columns from before are no longer current.
    """

    def __init__(self, nodes: NodeArrays) -> None:
        """Start without columns."""
        self._nodes = nodes
        self._of: dict[Shape, Column] = {}
        self._columns: dict[Shape, Column] = {}
        self._large_enough: dict[Shape, NDArray[np.bool_]] = {}
        self.resets = 0

    def of(self, part: Shape) -> Column:
        """Return the up-to-date column of a part's demand, creating it if needed."""
        column = self._of.get(part)
        if column is None:
            column = self._of[part] = self._create(part)
        self.refresh(column)
        return column

    def existing(self, part: Shape) -> Column | None:
        """Return the column, up to date, if one exists: a single or hypothetical placement is not worth a new one."""
        column = self._of.get(part)
        if column is not None:
            self.refresh(column)
        return column

    def has_room(self, part: Shape, count: int) -> bool:
        """Return whether all nodes together take `count` nodes of a part now.

        A node change lowers the total of an unstacked part by at most 1, so the journal need not be read while the old
        total exceeds `count` by more than the unread changes: O(1).
        """
        column = self._of.get(part)
        if column is None or part.stacked:
            return self.of(part).total >= count
        changes = len(self._nodes.journal.entries) - column.read
        return column.total - changes >= count or self.of(part).total >= count

    def have_room(self, parts: Iterable[Shape]) -> bool:
        """Return whether the nodes take all of each of these parts, each considered alone, in any of its choices."""
        for part in parts:
            for choice in part.choices:
                if self.has_room(choice, part.nodes):
                    break
            else:
                return False
        return True

    def large_enough(self, part: Shape) -> NDArray[np.bool_]:
        """Return (N,) nodes that could hold one of the part's nodes if nothing else ran. It must not be changed."""
        mask = self._large_enough.get(part)
        if mask is None:
            if len(self._large_enough) >= MAX_COLUMNS:
                self._large_enough.clear()
            mask = self._large_enough[part] = self._nodes.fits_when_idle(part)
        return mask

    def forget_sizes(self) -> None:
        """Drop the masks of `large_enough`: a node has another size."""
        self._large_enough.clear()

    def refresh(self, column: Column) -> None:
        """Bring a column up to date. O(nodes changed since)."""
        entries = self._nodes.journal.entries
        unread = len(entries) - column.read
        if not unread:
            return
        changed = self._nodes.journal.since(column.read, len(column.counts))
        column.read = len(entries)
        before, current = column.counts[changed], self._nodes.counts_at(column.part, changed)
        column.growth += bool((current > before).any())
        column.total += int(current.sum()) - int(before.sum())
        column.counts[changed] = current

    def rewind(self) -> None:
        """Read the journal to its end before it is cleared; columns then read it from the beginning."""
        for column in self._columns.values():
            self.refresh(column)
            column.read = 0

    def validate(self) -> None:
        """Recount everything and raise AssertionError naming the difference."""
        for part, column in self._columns.items():
            self.refresh(column)
            current = self._nodes.counts_at(part, slice(None))
            assert (column.counts == current).all(), f"what nodes hold of {part} differs from the nodes"
            assert column.total == current.sum(), f"the sum of what nodes hold of {part} is not {current.sum()}"

    def _create(self, part: Shape) -> Column:
        demand = part.one
        if demand not in self._columns:
            if len(self._columns) >= MAX_COLUMNS:
                self._of, self._columns = {}, {}
                self.resets += 1
            counts = self._nodes.counts_at(demand, slice(None))
            self._columns[demand] = Column(demand, counts, int(counts.sum()), len(self._nodes.journal.entries))
        return self._columns[demand]
