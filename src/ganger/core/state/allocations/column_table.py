"""Rows of integers by name, stored as columns, so that many rows are summed and sorted without visiting each of them.

Unused rows are all zero and so add nothing to any sum.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ganger.core.nodes.topology import Ints

END_MS: Final = 0
"""The first column of every table: when what the row describes ends."""
_BEGIN: Final = 64
"""Initial number of rows."""


class ColumnTable:
    """Named rows of integers. `cells`: (columns, rows) int64."""

    def __init__(self, columns: int) -> None:
        """Create an empty table."""
        self.cells: Ints = np.zeros((columns, _BEGIN), dtype=np.int64)
        self._rows: dict[str, list[int]] = {}
        self._free = list(range(_BEGIN - 1, -1, -1))
        self._order: Ints = np.zeros(0, dtype=np.int64)

    def put(self, name: str, rows: Sequence[Sequence[int]]) -> None:
        """Replace the rows of a name."""
        self.drop(name)
        while len(self._free) < len(rows):
            self._grow()
        indices = self._rows[name] = [self._free.pop() for _ in rows]
        if len(indices) == 1:
            self.cells[:, indices[0]] = rows[0]
        elif indices:
            self.cells[:, indices] = np.array(rows, dtype=np.int64).T

    def drop(self, name: str) -> None:
        """Remove the rows of a name."""
        indices = self._rows.pop(name, None)
        if indices:
            self.cells[:, indices] = 0
            self._free += indices

    def row_indices(self, names: Iterable[str]) -> list[int]:
        """Return the indices of all rows of these names."""
        return [row for name in names for row in self._rows.get(name, ())]

    def name_of(self, row: int) -> str | None:
        """Return the name that has a row, or None; it is searched for."""
        return next((name for name, indices in self._rows.items() if row in indices), None)

    def order(self, keys: Ints) -> Ints:
        """Return the row order (rows,) that sorts `keys`.

        The order of the last call is the starting point, so that a nearly unchanged order costs little.
        """
        if len(self._order) != len(keys):
            self._order = np.arange(len(keys))
        self._order = self._order[np.argsort(keys[self._order], kind="stable")]
        return self._order

    def rows(self) -> dict[str, list[list[int]]]:
        """Return the rows by name, for comparison."""
        return {name: sorted(self.cells[:, indices].T.tolist()) for name, indices in self._rows.items() if indices}

    def _grow(self) -> None:
        size = self.cells.shape[1]
        self.cells = np.concatenate((self.cells, np.zeros_like(self.cells)), axis=1)
        self._free += range(2 * size - 1, size - 1, -1)
