"""What queues and users may use at a later time: quota and limits when others have ended and promises are kept.

Made by `core.backfill` for one round, and only where some queue has a figure at all. What is held at a moment is what
those hold who do not end before it, and what is promised over it; the arithmetic is that of `core.queues`, on a tree of
its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ganger.core.fit import Ask, barred_in
from ganger.core.gang import Gang
from ganger.core.queues import QueueTree, Vector


@dataclass(frozen=True, slots=True)
class Charge:
    """What a gang is charged for, from `begin_ms` to `end_ms`."""

    gang: Gang
    taken: Vector
    begin_ms: int
    end_ms: int


class Allowance:
    """Charges of those who hold something, and of those who are promised something, by gang."""

    def __init__(self, tree: QueueTree, holders: Iterable[Charge]) -> None:
        """`tree`: as it is now."""
        self._tree, self._holders = tree, list(holders)
        self.promised: dict[str, Charge] = {}
        self._renew()

    def begin(self, charge: Charge) -> None:
        """A gang holds something from now on."""
        self._holders.append(charge)
        self._renew()

    def bars(self, wanted: Ask, at_ms: int, but: str = "", more: Charge | None = None) -> bool:
        """Whether a gang may not start at that moment, `but` its own promise, with one more charged."""
        return barred_in(self.at(wanted.user, at_ms, but, more), wanted) is not None

    def at(self, user: str, at_ms: int, but: str = "", more: Charge | None = None) -> QueueTree:
        """The tree at that moment, with what that user has."""
        tree, lasts = self._tree.unused(), self._ends > at_ms
        own = np.zeros((len(tree.queues), len(tree.resources)), dtype=np.int64)
        np.add.at(own, self._queues[lasts], self._taken[lasts])
        for queue in np.flatnonzero(own.any(axis=1)).tolist():
            tree.charge(tree.queues[queue].name, tuple(own[queue].tolist()))
        its = [self._holders[each] for each in np.flatnonzero(lasts & (self._users == user)).tolist()]
        then = [each for name, each in self.promised.items() if name != but and each.begin_ms <= at_ms < each.end_ms]
        then += [more] if more and more.begin_ms <= at_ms < more.end_ms else []
        for charge in then:
            tree.charge(charge.gang.queue, charge.taken)
        for charge in (*its, *(each for each in then if each.gang.job.user == user)):
            tree.charge_user(charge.gang.queue, user, charge.taken[0], charge.gang.node_ms, 1)
        return tree

    def _renew(self) -> None:
        count, width = len(self._holders), len(self._tree.resources)
        self._ends = np.array([each.end_ms for each in self._holders], dtype=np.int64)
        self._queues = np.array([self._tree.index[each.gang.queue] for each in self._holders], dtype=np.int64)
        self._users = np.array([each.gang.job.user for each in self._holders], dtype=object)
        self._taken = np.array([each.taken for each in self._holders], dtype=np.int64).reshape(count, width)
