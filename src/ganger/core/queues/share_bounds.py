"""What accounts use, as floats and as columns: for a first look at all of them at once, before a look at any of them.

Owned by `core.queues.fair_share`, which tells it what changes. Figures are exact integers of any length there; here
each is the float next to it, so that what follows from them is right to one part in a thousand million at the worst.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.queues.quota import Vector

Floats = NDArray[np.float64]
SLACK: Final = 1e-9
"""By how much, in parts of one, what follows from floats may be wrong, and more."""
_BEGIN: Final = 64
"""Rows that there is room for at first."""

NOTHING: Final[Vector] = (0, 0, 0)
"""Of gpus, cpu_milli and memory_bytes: what shares are of. Quota may count more."""
Account = tuple[int, str]
"""A queue by index, and a user in it; "" stands for all jobs of a queue that has queues below it, without those."""


class Figures(NamedTuple):
    """One account's: held now; of that, what is metered, from its start on; and what all that was held adds up to, less
    what growth was when what is metered began."""

    held: Vector = NOTHING
    metered: Vector = NOTHING
    past: Vector = NOTHING


class ShareBounds:
    """What accounts have now, and what they have had."""

    def __init__(self) -> None:
        """Row 0 is that of accounts that nothing is known of."""
        self._rows: dict[Account, int] = {}
        self._cells: Floats = np.zeros((6, _BEGIN))
        self._changed: dict[Account, None] = {}

    def __getitem__(self, account: Account) -> None:
        return None

    def __setitem__(self, account: Account, value: None) -> None:
        """It has other figures from now on. Put through an `Undo` like a value, this is said again when the change is
        undone: undoing is a change too."""
        self._changed[account] = None

    def used(self, accounts: Iterable[Account], of: Mapping[Account, Figures], growth: int, capacity: Floats) -> Floats:
        """(A,) the part of the capacity that each uses: the dominant one of (held + average held of late)."""
        self._refresh(of)
        found = self._rows.get
        cells = self._cells[:, [found(account, 0) for account in accounts]]
        # What is metered is subtracted from what is held: float by float nothing is lost, as the sum is at least held.
        parts = (cells[:3] + cells[3:] / float(growth)) * capacity[:, None]
        used: Floats = parts.max(axis=0)
        return used

    def rows(self, of: Mapping[Account, Figures]) -> dict[Account, list[float]]:
        """What is known of each account, for comparison."""
        self._refresh(of)
        every = ((account, self._cells[:, at].tolist()) for account, at in self._rows.items())
        return {account: cells for account, cells in every if any(cells)}

    def _refresh(self, of: Mapping[Account, Figures]) -> None:
        for account in self._changed:
            figures = of.get(account)
            if account not in self._rows:
                self._rows[account] = len(self._rows) + 1
                if len(self._rows) == self._cells.shape[1]:
                    self._cells = np.concatenate((self._cells, np.zeros_like(self._cells)), axis=1)
            now = (0,) * 6 if figures is None else (*map(sum, zip(*figures[:2], strict=True)), *figures[2])
            self._cells[:, self._rows[account]] = now
        self._changed.clear()
