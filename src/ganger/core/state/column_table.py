"""Rows of integers by name, as columns: what many gangs hold, to be summed and sorted without a look at each of them.

Owned by `core.state.allocations` (a row for each share) and `core.state.quota_charges` (one for each gang), kept up to
date with them; read by `core.reservations.capacity_forecast`. Rows that nobody has are all zero, so that they count for
nothing in any sum."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ganger.core.nodes.topology import Ints

END: Final = 0
"""The first column: when what the row says ends."""
_BEGIN: Final = 64
"""Rows that there is room for at first."""


class Ledger:
    """cells: (columns, rows) int64."""

    def __init__(self, columns: int) -> None:
        """Nobody has a row."""
        self.cells: Ints = np.zeros((columns, _BEGIN), dtype=np.int64)
        self._rows: dict[str, list[int]] = {}
        self._free = list(range(_BEGIN - 1, -1, -1))
        self._order: Ints = np.zeros(0, dtype=np.int64)

    def put(self, name: str, rows: Sequence[Sequence[int]]) -> None:
        """These are the rows of a name, instead of those that it had."""
        self.drop(name)
        while len(self._free) < len(rows):
            self._grow()
        at = self._rows[name] = [self._free.pop() for _ in rows]
        if len(at) == 1:
            self.cells[:, at[0]] = rows[0]
        elif at:
            self.cells[:, at] = np.array(rows, dtype=np.int64).T

    def drop(self, name: str) -> None:
        """A name has no rows any more."""
        at = self._rows.pop(name, None)
        if at:
            self.cells[:, at] = 0
            self._free += at

    def at(self, names: Iterable[str]) -> list[int]:
        """The rows of these names, as far as they have any."""
        return [row for name in names for row in self._rows.get(name, ())]

    def order(self, by: Ints) -> Ints:
        """(rows,) in which order they are sorted by that, with little work where the order is nearly that of last
        time."""
        if len(self._order) != len(by):
            self._order = np.arange(len(by))
        self._order = self._order[np.argsort(by[self._order], kind="stable")]
        return self._order

    def rows(self) -> dict[str, list[list[int]]]:
        """Whose rows are what, for comparison."""
        return {name: sorted(self.cells[:, at].T.tolist()) for name, at in self._rows.items() if at}

    def _grow(self) -> None:
        many = self.cells.shape[1]
        self.cells = np.concatenate((self.cells, np.zeros_like(self.cells)), axis=1)
        self._free += range(2 * many - 1, many - 1, -1)
