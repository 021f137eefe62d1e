"""Forecast of free quota for trees in which each queue may use what no other does, so that one sum binds all.

It is what `core.reservations.quota_forecast` is for any tree, for trees without borrowing limits, lending limits and
user limits. Reservations are rows of arrays, so that ten thousand of them are checked in microseconds: what the root
has left at a reserved start is kept with each row and updated by whatever else lasts at that time.

In such a tree only the sum over all queues binds, and only when something begins: between two begins charges only end,
and more is left. So for each reservation one number for each resource is enough, what the root has left at its begin
without it:

    left[i] = free(begin[i]) - sum of taken[j] over all j != i with begin[j] <= begin[i] < end[j]

`free(t)` is what running gangs leave, a step function of their ends (`_free_after`). A reservation is feasible if it
takes no more than its `left`; a charge delays those that begin during it and take more than `left` less the charge.
A row that is added or removed changes `left` of exactly the rows that begin during it: O(P) for one, where the trees of
`QuotaForecast` take O(P queues). Rows are not reused, so that an index stays what it was for as long as the forecast
lives, which is one cycle. `QuotaForecast` is the reference: tests/laws/cycle/test_fast_structures.py decides with both.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.core.placement.start_check import StartRequest
from ganger.core.queues.quota import QueueTree
from ganger.core.reservations.quota_forecast import QuotaCharge
from ganger.core.state.allocations.quota_charges import AMOUNTS, QuotaCharges

_NEVER: Final = -1
"""Begin and end of a removed reservation."""
_UNBOUNDED: Final = 1 << 62
"""Free quota of rows that are not checked."""


class FlatQuotaForecast:
    """Reservations, and gangs started since, as rows that are never reused.

    Private arrays: begins and ends (P,), taken (P, R), and left (P, R), which is what the root has when the reservation
    begins, without it.
    """

    def __init__(
        self, tree: QueueTree, charges: QuotaCharges, ends_ms: Ints, reserved: Iterable[QuotaCharge] = ()
    ) -> None:
        """Create the forecast of a tree; `ends_ms` has the end of each row of `charges`."""
        width = len(tree.resources)
        self._tree = tree
        root_quota = np.array([tree.potential(0, r) for r in range(width)], dtype=np.int64)
        order, cells = charges.table.order(ends_ms), charges.table.cells[AMOUNTS:]
        self._end_times = ends_ms[order]
        freed = np.zeros((len(order) + 1, width), dtype=np.int64)
        np.cumsum(cells[:, order].T, axis=0, out=freed[1:])
        self._free_after = freed + (root_quota - freed[-1])
        """(rows + 1, R) what the root has free after that many of the held rows have ended."""
        self._row_by_time: dict[int, int] = {}
        self._free_by_time: Ints = np.zeros((32, 1 + width), dtype=np.int64)
        """Times that were looked up, and what the root has left at each."""
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._begins, self._ends = np.full((2, 32), _NEVER, dtype=np.int64)
        self._taken, self._left = np.zeros((2, 32, width), dtype=np.int64)
        self._add_all(list(reserved))

    def add_running(self, charge: QuotaCharge) -> None:
        """Charge a gang that starts now."""
        self._append(charge, "", _UNBOUNDED)

    def add_reservation(self, charge: QuotaCharge) -> None:
        """Charge a reservation."""
        self._rows[charge.gang.id] = len(self._names)
        self._append(charge, charge.gang.id, self._free_at(charge.begin_ms))

    def remove_reservation(self, name: str) -> None:
        """Remove a reservation, if the gang has one."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        affected = (self._begins >= self._begins[row]) & (self._begins < self._ends[row])
        self._left[affected] += self._taken[row]
        self._begins[row] = self._ends[row] = _NEVER
        self._row_by_time.clear()

    def bars(self, request: StartRequest, at_ms: int) -> bool:
        """Return whether quota keeps a gang without a reservation from starting at a time."""
        amounts = np.array(self._tree.wanted(request.shape), dtype=np.int64)
        return bool(((amounts > 0) & (amounts > self._free_at(at_ms))).any())

    def exceeds(self, name: str) -> bool:
        """Return whether a gang's reservation takes more than there is at its start."""
        row = self._rows[name]
        return bool(((self._taken[row] > 0) & (self._taken[row] > self._left[row])).any())

    def exceeds_any(self) -> bool:
        """Return whether any reservation takes more than there is."""
        rows = list(self._rows.values())
        taken, left = self._taken[rows], self._left[rows]
        return bool(((taken > 0) & (taken > left)).any())

    def delayed_gangs(self, charge: QuotaCharge) -> list[str]:
        """Return the gangs whose reserved start the charge would make impossible."""
        amounts = np.array(charge.taken, dtype=np.int64)
        rows = np.flatnonzero(self._begin_during(charge))
        taken = self._taken[rows]
        is_short = (taken > 0) & (amounts > 0) & (taken + amounts > self._left[rows])
        delayed_rows = rows[is_short.any(axis=1)].tolist()
        return [self._names[row] for row in delayed_rows if self._names[row] != charge.gang.id]

    def _add_all(self, reserved: list[QuotaCharge]) -> None:
        """Charge reservations, the first ones, at once: what one leaves for another follows from sums over both."""
        if not reserved:
            return
        begins, ends = np.array([(charge.begin_ms, charge.end_ms) for charge in reserved], dtype=np.int64).T
        taken = np.array([charge.taken for charge in reserved], dtype=np.int64)
        free = self._free_after[self._end_times.searchsorted(begins, side="right")]
        # Those that last at a begin are those that have begun by then, itself among them, less those that have ended:
        # two prefix sums for all rows at once, O(P log P), and its own amount back.
        begun, ended = (_sum_until(times_ms, taken, begins) for times_ms in (begins, ends))
        never, nothing = np.full_like(self._begins, _NEVER), np.zeros_like(self._taken)
        self._begins, self._ends = np.concatenate((begins, never)), np.concatenate((ends, never))
        self._taken, self._left = (
            np.concatenate((taken, nothing)),
            np.concatenate((free - begun + ended + taken, nothing)),
        )
        self._names = [charge.gang.id for charge in reserved]
        self._rows = {name: row for row, name in enumerate(self._names)}

    def _append(self, charge: QuotaCharge, name: str, left: Ints | int) -> None:
        row = len(self._names)
        if row == len(self._begins):
            self._grow()
        self._left[self._begin_during(charge)] -= np.array(charge.taken, dtype=np.int64)
        self._names.append(name)
        self._begins[row], self._ends[row] = charge.begin_ms, charge.end_ms
        self._taken[row], self._left[row] = charge.taken, left
        times_ms = self._free_by_time[: len(self._row_by_time), 0]
        is_charged = (times_ms >= charge.begin_ms) & (times_ms < charge.end_ms)
        self._free_by_time[: len(times_ms), 1:][is_charged] -= self._taken[row]

    def _begin_during(self, charge: QuotaCharge) -> NDArray[np.bool_]:
        """Return which reservations begin during the charge."""
        begins: NDArray[np.bool_] = (self._begins >= charge.begin_ms) & (self._begins < charge.end_ms)
        return begins

    def _free_at(self, at_ms: int) -> Ints:
        """Return what the root has left at a time."""
        row = self._row_by_time.get(at_ms)
        if row is None:
            row = self._row_by_time[at_ms] = len(self._row_by_time)
            if row == len(self._free_by_time):
                self._free_by_time = np.concatenate((self._free_by_time, np.zeros_like(self._free_by_time)))
            lasting = np.flatnonzero((self._begins <= at_ms) & (self._ends > at_ms))
            free = self._free_after[np.searchsorted(self._end_times, at_ms, side="right")]
            self._free_by_time[row, 0], self._free_by_time[row, 1:] = at_ms, free - self._taken[lasting].sum(axis=0)
        free_then: Ints = self._free_by_time[row, 1:]
        return free_then

    def _grow(self) -> None:
        never = np.full_like(self._begins, _NEVER)
        self._begins, self._ends = np.concatenate((self._begins, never)), np.concatenate((self._ends, never))
        nothing = np.zeros_like(self._taken)
        self._taken, self._left = np.concatenate((self._taken, nothing)), np.concatenate((self._left, nothing))


def _sum_until(times_ms: Ints, amounts: Ints, at_ms: Ints) -> Ints:
    """Return (T, R) the sum of amounts (P, R) whose times (P,) are not later than each of the times (T,)."""
    order = np.argsort(times_ms, kind="stable")
    sums: Ints = np.zeros((len(times_ms) + 1, amounts.shape[1]), dtype=np.int64)
    np.cumsum(amounts[order], axis=0, out=sums[1:])
    return sums[times_ms[order].searchsorted(at_ms, side="right")]
