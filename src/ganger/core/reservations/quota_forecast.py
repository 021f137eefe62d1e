"""What queues and users may use at a later time: quota and limits when others have ended and promises are kept.

Made by `core.reservations.capacity_forecast` for one round, and only where some queue has a figure at all. What is held
at a moment is what those hold who do not end before it, and what is promised over it; the arithmetic is that of
`core.queues.quota`, on a tree of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.placement.start_check import StartRequest, ask, barred_in
from ganger.core.queues.quota import OF_TYPE, QueueTree, Vector
from ganger.core.state.gang import Gang
from ganger.core.state.quota_charges import NODE_MS, QUEUE, TAKEN, USER, QuotaCharges


@dataclass(frozen=True, slots=True)
class Charge:
    """What a gang is charged for, from `begin_ms` to `end_ms`."""

    gang: Gang
    taken: Vector
    begin_ms: int
    end_ms: int

    def lasts_at(self, at_ms: int) -> bool:
        """Whether it counts at a moment."""
        return self.begin_ms <= at_ms < self.end_ms


class QuotaForecast:
    """Charges of those who hold something, and of those who are promised something, by gang."""

    def __init__(self, tree: QueueTree, charged: QuotaCharges, ends_ms: Ints) -> None:
        """`tree`: as it is now; `charged`: who holds something; `ends_ms`: when each row of it ends."""
        self._tree, self._users = tree, charged.users
        self._held, self._ends_ms = charged.ledger.cells.copy(), ends_ms
        self._begun: list[Charge] = []
        self._promised: dict[str, Charge] = {}
        self._then: dict[tuple[str, int], QueueTree] = {}
        self._user: dict[str, str] = {}

    def begin(self, charge: Charge) -> None:
        """A gang holds something from now on."""
        self._begun.append(charge)
        self._recount(charge, _count)

    def promise(self, charge: Charge) -> None:
        """A gang is promised something."""
        self._promised[charge.gang.id], self._user[charge.gang.id] = charge, charge.gang.job.user
        self._recount(charge, _count)

    def withdraw(self, name: str) -> None:
        """It is so no more."""
        charge = self._promised.pop(name, None)
        if charge is not None:
            self._recount(charge, _discount)

    def _recount(self, charge: Charge, count: Callable[[QueueTree, Charge, str], None]) -> None:
        """What was found of the moments of promises is brought up to date."""
        for (name, at_ms), tree in self._then.items():
            if name != charge.gang.id and charge.lasts_at(at_ms):
                count(tree, charge, self._user[name])

    def bars(self, wanted: StartRequest, at_ms: int) -> bool:
        """Whether a gang that is promised nothing may not start at that moment."""
        return barred_in(self.at(wanted.user, at_ms), wanted) is not None

    def breaks(self, name: str) -> bool:
        """Whether what a gang is promised is more than its queue and its user may have by then."""
        return _is_barred(self._at_promise(name), self._promised[name])

    def breaks_any(self) -> bool:
        """Whether that is so of any gang."""
        return any(map(self.breaks, self._promised))

    def delayed(self, charge: Charge) -> list[str]:
        """Gangs that could not start as promised if that were charged."""
        others = [own for name, own in self._promised.items() if name != charge.gang.id]
        return [own.gang.id for own in others if charge.lasts_at(own.begin_ms) and self._is_delayed(own, charge)]

    def _is_delayed(self, own: Charge, charge: Charge) -> bool:
        tree = self._at_promise(own.gang.id)
        with tree.undo.trial():
            _count(tree, charge, own.gang.job.user)
            return _is_barred(tree, own)

    def at(self, user: str, at_ms: int, but: str = "") -> QueueTree:
        """The tree at that moment, with what that user has; `but`: whose promise does not count."""
        tree, lasts = self._tree.unused(), self._held[:, self._ends_ms > at_ms]
        for queue, taken in self._by_queue(lasts[TAKEN:], lasts):
            tree.charge(queue, taken)
        mine = lasts[:, lasts[USER] == self._users.get(user, -1)]
        owned = np.concatenate((mine[TAKEN : TAKEN + 1], mine[NODE_MS : NODE_MS + 1], np.sign(mine[:1])))
        for queue, (gpu_milli, node_ms, jobs) in self._by_queue(owned, mine):
            tree.charge_user(queue, user, gpu_milli, node_ms, jobs)
        for charge in chain(self._begun, (own for name, own in self._promised.items() if name != but)):
            if charge.lasts_at(at_ms):
                _count(tree, charge, user)
        return tree

    def _by_queue(self, amounts: Ints, rows: Ints) -> Iterator[tuple[str, Vector]]:
        """Sums of amounts, a column for each of these rows, over those of each queue that has any."""
        sums = np.zeros((len(self._tree.queues), len(amounts)), dtype=np.int64)
        np.add.at(sums, rows[QUEUE], amounts.T)
        for at in np.flatnonzero(sums.any(axis=1)).tolist():
            yield self._tree.queues[at].name, tuple(sums[at].tolist())

    def _at_promise(self, name: str) -> QueueTree:
        """The tree when a promise is due, without it."""
        own = self._promised[name]
        key = name, own.begin_ms
        if key not in self._then:
            self._then[key] = self.at(own.gang.job.user, own.begin_ms, name)
        return self._then[key]


def _is_barred(tree: QueueTree, own: Charge) -> bool:
    """Whether a gang may not start on what it is promised: another type of GPUs than that of its nodes does not do."""
    if barred_in(tree, ask(own.gang)) is not None:
        return True
    closed = tree.closed_types(own.gang.queue, own.gang.shape)
    return any(own.taken[tree.resources.index(OF_TYPE + kind)] for kind in closed)


def _count(tree: QueueTree, charge: Charge, user: str) -> None:
    """A gang is charged, and its user too where it is the one in question."""
    tree.charge(charge.gang.queue, charge.taken)
    if charge.gang.job.user == user:
        _count_user(tree, charge)


def _discount(tree: QueueTree, charge: Charge, user: str) -> None:
    """The same back."""
    tree.charge(charge.gang.queue, tuple(-amount for amount in charge.taken))
    if charge.gang.job.user == user:
        _count_user(tree, charge, -1)


def _count_user(tree: QueueTree, charge: Charge, sign: int = 1) -> None:
    gang = charge.gang
    tree.charge_user(gang.queue, gang.job.user, sign * charge.taken[0], sign * gang.node_ms, sign)
