"""How many of each kind of need every node holds now, and all nodes together: kept up to date by what changed.

Owned by `core.nodes.node_table`; asked by `core.placement.start_check` and `core.cycle.candidates` before anything is
placed. A column is made when its need is first asked about, and reads the journal of changed nodes when it is asked
again: what nobody asks about costs nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.model.shape import Shape

MOST_COLUMNS: Final = 4_096
"""Beyond that many needs those that nobody asks about any more are let go."""


@dataclass(slots=True)
class Column:
    """times: (N,) int64, how many of the need each node holds: 0 or 1, unless it is stacked; total: their sum; read:
    how far in the journal it has come; growth: how often a node came to hold more."""

    part: Shape
    times: NDArray[np.int64]
    total: int
    read: int
    growth: int = 0


class CapacityIndex:
    """The columns of one table of nodes. cleared: how often all columns were let go: an old one is read no more."""

    def __init__(self, nodes: NodeArrays) -> None:
        """None yet."""
        self._nodes = nodes
        self._of: dict[Shape, Column] = {}
        self._columns: dict[Shape, Column] = {}
        self.cleared = 0

    def of(self, part: Shape) -> Column:
        """The column of a part's need, as the nodes are now."""
        column = self._of.get(part)
        if column is None:
            column = self._of[part] = self._made(part)
        self.refresh(column)
        return column

    def kept(self, part: Shape) -> Column | None:
        """The same, if there is one: to place a gang once, or one that does not exist, none is made."""
        column = self._of.get(part)
        if column is not None:
            self.refresh(column)
        return column

    def holds(self, part: Shape, many: int) -> bool:
        """Whether all nodes together hold so many of a part now. O(1) where they did with more to spare than nodes have
        changed since."""
        column = self._of.get(part)
        if column is None or part.stacked:
            return self.of(part).total >= many
        fresh = len(self._nodes.journal.entries) - column.read
        return column.total - fresh >= many or self.of(part).total >= many

    def hold(self, parts: Iterable[Shape]) -> bool:
        """Whether they hold all of each of these parts, whichever of its choices it is, each by itself."""
        for part in parts:
            for choice in part.choices:
                if self.holds(choice, part.nodes):
                    break
            else:
                return False
        return True

    def refresh(self, column: Column) -> None:
        """Bring a column up to date. O(nodes changed since)."""
        entries = self._nodes.journal.entries
        fresh = len(entries) - column.read
        if not fresh:
            return
        changed = self._nodes.journal.since(column.read, len(column.times))
        column.read = len(entries)
        before, now = column.times[changed], self._nodes.times_at(column.part, changed)
        column.growth += bool((now > before).any())
        column.total += int(now.sum()) - int(before.sum())
        column.times[changed] = now

    def rewind(self) -> None:
        """Read the journal to its end, before it is let go: what comes then is read from its beginning."""
        for column in self._columns.values():
            self.refresh(column)
            column.read = 0

    def validate(self) -> None:
        """Count everything anew and compare. AssertionError names what differs."""
        for part, column in self._columns.items():
            self.refresh(column)
            now = self._nodes.times_at(part, slice(None))
            assert (column.times == now).all(), f"what nodes hold of {part} differs from the nodes"
            assert column.total == now.sum(), f"the sum of what nodes hold of {part} is not {now.sum()}"

    def _made(self, part: Shape) -> Column:
        alike = part.one
        if alike not in self._columns:
            if len(self._columns) >= MOST_COLUMNS:
                self._of, self._columns = {}, {}
                self.cleared += 1
            times = self._nodes.times_at(alike, slice(None))
            self._columns[alike] = Column(alike, times, int(times.sum()), len(self._nodes.journal.entries))
        return self._columns[alike]
