"""What queues may use at a later time, where each may use what no other does: then one sum binds all of them.

What `core.reservations.quota_forecast` is for any tree, for trees without borrowing limits, lending limits and limits
of users: arrays over promises, so that ten thousand of them are held against each other in microseconds. Made by
`core.reservations.capacity_forecast`."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.core.placement.start_check import StartRequest
from ganger.core.queues.quota import QueueTree
from ganger.core.reservations.quota_forecast import Charge
from ganger.core.state.quota_charges import TAKEN, QuotaCharges

_NEVER: Final = -1
"""When what was promised and withdrawn begins and ends."""
_PLENTY: Final = 1 << 62
"""What is left for those who need not be asked."""


class FlatQuotaForecast:
    """begins, ends: (P,) of promises, and of gangs that began since; taken: (P, R) what each takes; left: (P, R) what
    the root has when a promise is due, without it. Rows are never reused."""

    def __init__(self, tree: QueueTree, charged: QuotaCharges, ends_ms: Ints) -> None:
        """`tree`: as it is now; `charged`: who holds something; `ends_ms`: when each row of it ends."""
        width = len(tree.resources)
        self._tree = tree
        most = np.array([tree.potential(0, r) for r in range(width)], dtype=np.int64)
        order, cells = charged.ledger.order(ends_ms), charged.ledger.cells[TAKEN:]
        self._until = ends_ms[order]
        freed = np.zeros((len(order) + 1, width), dtype=np.int64)
        np.cumsum(cells[:, order].T, axis=0, out=freed[1:])
        self._free = freed + (most - freed[-1])
        """(rows + 1, R) what the root has when so many of them have ended."""
        self._moments: dict[int, int] = {}
        self._known: Ints = np.zeros((32, 1 + width), dtype=np.int64)
        """Moments that were asked about, and what the root has left at each."""
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._begins, self._ends = np.full((2, 32), _NEVER, dtype=np.int64)
        self._taken, self._left = np.zeros((2, 32, width), dtype=np.int64)

    def begin(self, charge: Charge) -> None:
        """A gang holds something from now on."""
        self._add(charge, "", _PLENTY)

    def promise(self, charge: Charge) -> None:
        """A gang is promised something."""
        self._rows[charge.gang.id] = len(self._names)
        self._add(charge, charge.gang.id, self._rest(charge.begin_ms))

    def withdraw(self, name: str) -> None:
        """It is so no more."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        due = (self._begins >= self._begins[row]) & (self._begins < self._ends[row])
        self._left[due] += self._taken[row]
        self._begins[row] = self._ends[row] = _NEVER
        self._moments.clear()

    def bars(self, wanted: StartRequest, at_ms: int) -> bool:
        """Whether a gang that is promised nothing may not start at that moment."""
        amounts = np.array(self._tree.wanted(wanted.shape), dtype=np.int64)
        return bool(((amounts > 0) & (amounts > self._rest(at_ms))).any())

    def breaks(self, name: str) -> bool:
        """Whether what a gang is promised is more than there is by then."""
        row = self._rows[name]
        return bool(((self._taken[row] > 0) & (self._taken[row] > self._left[row])).any())

    def breaks_any(self) -> bool:
        """Whether that is so of any gang."""
        promised = list(self._rows.values())
        taken, left = self._taken[promised], self._left[promised]
        return bool(((taken > 0) & (taken > left)).any())

    def delayed(self, charge: Charge) -> list[str]:
        """Gangs that could not start as promised if that were charged."""
        amounts = np.array(charge.taken, dtype=np.int64)
        due = np.flatnonzero(self._due_in(charge))
        taken = self._taken[due]
        short = (taken > 0) & (amounts > 0) & (taken + amounts > self._left[due])
        rows = due[short.any(axis=1)].tolist()
        return [self._names[row] for row in rows if self._names[row] != charge.gang.id]

    def _add(self, charge: Charge, name: str, left: Ints | int) -> None:
        row = len(self._names)
        if row == len(self._begins):
            self._grow()
        self._left[self._due_in(charge)] -= np.array(charge.taken, dtype=np.int64)
        self._names.append(name)
        self._begins[row], self._ends[row] = charge.begin_ms, charge.end_ms
        self._taken[row], self._left[row] = charge.taken, left
        moments = self._known[: len(self._moments), 0]
        lasts = (moments >= charge.begin_ms) & (moments < charge.end_ms)
        self._known[: len(moments), 1:][lasts] -= self._taken[row]

    def _due_in(self, charge: Charge) -> NDArray[np.bool_]:
        """Which promises begin while it lasts."""
        found: NDArray[np.bool_] = (self._begins >= charge.begin_ms) & (self._begins < charge.end_ms)
        return found

    def _rest(self, at_ms: int) -> Ints:
        """What the root has left at a moment."""
        at = self._moments.get(at_ms)
        if at is None:
            at = self._moments[at_ms] = len(self._moments)
            if at == len(self._known):
                self._known = np.concatenate((self._known, np.zeros_like(self._known)))
            lasts = np.flatnonzero((self._begins <= at_ms) & (self._ends > at_ms))
            free = self._free[np.searchsorted(self._until, at_ms, side="right")]
            self._known[at, 0], self._known[at, 1:] = at_ms, free - self._taken[lasts].sum(axis=0)
        found: Ints = self._known[at, 1:]
        return found

    def _grow(self) -> None:
        more = np.full_like(self._begins, _NEVER)
        self._begins, self._ends = np.concatenate((self._begins, more)), np.concatenate((self._ends, more))
        nothing = np.zeros_like(self._taken)
        self._taken, self._left = np.concatenate((self._taken, nothing)), np.concatenate((self._left, nothing))
