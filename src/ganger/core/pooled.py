"""What queues may use at a later time, where each may use what no other does: then one sum binds all of them.

What `core.allowance` is for any tree, for trees without borrowing limits, lending limits and limits of users: arrays
over promises, so that ten thousand of them are held against each other in microseconds. Made by `core.foresight`.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ganger.core.allowance import Charge
from ganger.core.fit import Ask
from ganger.core.gang import Gang
from ganger.core.queues import QueueTree, Vector
from ganger.core.topology import Ints

_NEVER = -1
"""When what was promised and withdrawn begins and ends."""


class Pooled:
    """begins, ends: (P,) of promises; taken: (P, R) what each takes; left: (P, R) what the root has then, without it.
    Rows are never reused."""

    def __init__(self, tree: QueueTree, holders: Iterable[tuple[Gang, Vector, int]]) -> None:
        """`tree`: as it is now; `holders`: who holds something, what they are charged for, and when they end."""
        every, width = list(holders), len(tree.resources)
        self._tree = tree
        self._most = np.array([tree.potential(0, r) for r in range(width)], dtype=np.int64)
        self._held = np.array([taken for _, taken, _ in every], dtype=np.int64).reshape(-1, width)
        self._held_until = np.array([end_ms for *_, end_ms in every], dtype=np.int64)
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._begins, self._ends = np.full((2, 32), _NEVER, dtype=np.int64)
        self._taken, self._left = np.zeros((2, 32, width), dtype=np.int64)

    def begin(self, charge: Charge) -> None:
        """A gang holds something from now on."""
        self._held = np.concatenate((self._held, np.array([charge.taken], dtype=np.int64)))
        self._held_until = np.append(self._held_until, charge.end_ms)
        self._left[self._due_in(charge)] -= np.array(charge.taken, dtype=np.int64)

    def promise(self, charge: Charge) -> None:
        """A gang is promised something."""
        row = len(self._names)
        if row == len(self._begins):
            self._grow()
        left = self._rest(charge.begin_ms)
        self._left[self._due_in(charge)] -= np.array(charge.taken, dtype=np.int64)
        self._rows[charge.gang.id] = row
        self._names.append(charge.gang.id)
        self._begins[row], self._ends[row] = charge.begin_ms, charge.end_ms
        self._taken[row], self._left[row] = charge.taken, left

    def withdraw(self, name: str) -> None:
        """It is so no more."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        due = (self._begins >= self._begins[row]) & (self._begins < self._ends[row])
        self._left[due] += self._taken[row]
        self._begins[row] = self._ends[row] = _NEVER

    def bars(self, wanted: Ask, at_ms: int) -> bool:
        """Whether a gang that is promised nothing may not start at that moment."""
        amounts = np.array(self._tree.wanted(wanted.shape), dtype=np.int64)
        return bool(((amounts > 0) & (amounts > self._rest(at_ms))).any())

    def breaks(self, name: str) -> bool:
        """Whether what a gang is promised is more than there is by then."""
        row = self._rows[name]
        return bool(((self._taken[row] > 0) & (self._taken[row] > self._left[row])).any())

    def delayed(self, charge: Charge) -> list[str]:
        """Gangs that could not start as promised if that were charged."""
        amounts = np.array(charge.taken, dtype=np.int64)
        short = (self._taken > 0) & (amounts > 0) & (self._taken + amounts > self._left)
        rows = np.flatnonzero(self._due_in(charge) & short.any(axis=1)).tolist()
        return [self._names[row] for row in rows if self._names[row] != charge.gang.id]

    def _due_in(self, charge: Charge) -> NDArray[np.bool_]:
        """Which promises begin while it lasts."""
        found: NDArray[np.bool_] = (self._begins >= charge.begin_ms) & (self._begins < charge.end_ms)
        return found

    def _rest(self, at_ms: int) -> Ints:
        """What the root has left at a moment."""
        lasts = (self._begins <= at_ms) & (self._ends > at_ms)
        rest: Ints = self._most - self._held[self._held_until > at_ms].sum(axis=0) - self._taken[lasts].sum(axis=0)
        return rest

    def _grow(self) -> None:
        more = np.full_like(self._begins, _NEVER)
        self._begins, self._ends = np.concatenate((self._begins, more)), np.concatenate((self._ends, more))
        nothing = np.zeros_like(self._taken)
        self._taken, self._left = np.concatenate((self._taken, nothing)), np.concatenate((self._left, nothing))
