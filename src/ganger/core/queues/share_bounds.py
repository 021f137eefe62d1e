"""Shares of accounts as columns of floats, from which bounds of all order keys are computed at once.

`core.queues.fair_share` has exact integers of any length. Here each is the nearest float, so that what follows from
them is right to one part in a thousand million at worst.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.queues.quota import Vector

Floats = NDArray[np.float64]
SLACK: Final = 1e-9
"""Relative error, at most, of what follows from the floats."""
_BEGIN: Final = 64
"""Initial number of rows."""

ZERO_VECTOR: Final[Vector] = (0, 0, 0)
"""No gpus, cpu_milli and memory_bytes, of which shares are; quota may count more resources."""
AccountKey = tuple[int, str]
"""(queue index, user); the user "" stands for all jobs of a queue with children that are in the queue itself."""


class AccountShares(NamedTuple):
    """The figures of one account.

    Attributes:
        held: What it holds.
        metered: The part of it that is metered since its start.
        past: What all that was held adds up to, less growth at the start of what is metered.
    """

    held: Vector = ZERO_VECTOR
    metered: Vector = ZERO_VECTOR
    past: Vector = ZERO_VECTOR


class ShareBounds:
    """The shares of accounts as floats."""

    def __init__(self) -> None:
        """Create it empty; column 0 is for unknown accounts."""
        self._rows: dict[AccountKey, int] = {}
        self._cells: Floats = np.zeros((6, _BEGIN))
        self._changed: dict[AccountKey, None] = {}

    def __getitem__(self, account: AccountKey) -> None:
        return None

    def __setitem__(self, account: AccountKey, value: None) -> None:
        """Mark an account as changed; an `Undo` repeats this when it undoes the change, which is a change too."""
        self._changed[account] = None

    def used(
        self, accounts: Iterable[AccountKey], shares: Mapping[AccountKey, AccountShares], growth: int, capacity: Floats
    ) -> Floats:
        """Return (A,) the part of the capacity that each account uses: dominant, of (held + average held before)."""
        self._refresh(shares)
        row_of = self._rows.get
        cells = self._cells[:, [row_of(account, 0) for account in accounts]]
        # What is metered is subtracted from what is held, without loss: the sum is at least what is held.
        parts = (cells[:3] + cells[3:] / float(growth)) * capacity[:, None]
        used: Floats = parts.max(axis=0)
        return used

    def rows(self, shares: Mapping[AccountKey, AccountShares]) -> dict[AccountKey, list[float]]:
        """Return what is known of each account, for comparison."""
        self._refresh(shares)
        all_rows = ((account, self._cells[:, row].tolist()) for account, row in self._rows.items())
        return {account: cells for account, cells in all_rows if any(cells)}

    def _refresh(self, shares: Mapping[AccountKey, AccountShares]) -> None:
        for account in self._changed:
            figures = shares.get(account)
            if account not in self._rows:
                self._rows[account] = len(self._rows) + 1
                if len(self._rows) == self._cells.shape[1]:
                    self._cells = np.concatenate((self._cells, np.zeros_like(self._cells)), axis=1)
            cells = (0,) * 6 if figures is None else (*map(sum, zip(*figures[:2], strict=True)), *figures[2])
            self._cells[:, self._rows[account]] = cells
        self._changed.clear()
