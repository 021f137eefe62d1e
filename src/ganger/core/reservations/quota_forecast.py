"""Forecast of free quota: what queues and users may use when others have ended and reservations are kept.

Used only if some queue has a limit. What is charged at a time is what gangs hold that end later, and what is reserved
over it; the arithmetic is that of `core.queues.quota`, on a tree of its own. The tree at each reserved start is kept
and updated, since it is asked for repeatedly.

Of the node time of a period nothing is free again before it has passed, which is later than most reserved starts: what
running gangs and all reservations are charged for it counts at any time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.placement.start_check import StartRequest, exceeded_limit_in, start_request
from ganger.core.queues.quota import QueueTree, Vector
from ganger.core.queues.quota_figures import GPU_TYPE_PREFIX
from ganger.core.state.allocations.quota_charges import AMOUNTS, NODE_MS, NODES, QUEUE, STAYS, USER, QuotaCharges
from ganger.core.state.gang import Gang


@dataclass(frozen=True, slots=True)
class QuotaCharge:
    """The quota charge of a gang from `begin_ms` to `end_ms`."""

    gang: Gang
    taken: Vector
    begin_ms: int
    end_ms: int

    def lasts_at(self, at_ms: int) -> bool:
        """Return whether the charge counts at a time."""
        return self.begin_ms <= at_ms < self.end_ms


class QuotaForecast:
    """Charges of running gangs and of reservations, by gang."""

    def __init__(
        self, tree: QueueTree, charges: QuotaCharges, ends_ms: Ints, reserved: Iterable[QuotaCharge] = ()
    ) -> None:
        """Create the forecast of a tree; `ends_ms` has the end of each row of `charges`."""
        self._tree, self._users = tree, charges.users
        self._held, self._ends_ms = charges.table.cells.copy(), ends_ms
        self._running: list[QuotaCharge] = []
        self._reserved: dict[str, QuotaCharge] = {}
        self._trees: dict[tuple[str, int], QueueTree] = {}
        self._user_of: dict[str, str] = {}
        for charge in reserved:
            self.add_reservation(charge)

    def add_running(self, charge: QuotaCharge) -> None:
        """Charge a gang that starts now."""
        self._running.append(charge)
        self._recount(charge, +1)

    def add_reservation(self, charge: QuotaCharge) -> None:
        """Charge a reservation."""
        self._reserved[charge.gang.id], self._user_of[charge.gang.id] = charge, charge.gang.job.user
        self._recount(charge, +1)

    def remove_reservation(self, name: str) -> None:
        """Remove a reservation, if the gang has one."""
        charge = self._reserved.pop(name, None)
        if charge is not None:
            self._recount(charge, -1)

    def _recount(self, charge: QuotaCharge, sign: int) -> None:
        """Update the trees that were made for reserved starts."""
        for (name, at_ms), tree in self._trees.items():
            if name != charge.gang.id:
                _count(tree, charge, self._user_of[name], at_ms, sign)

    def bars(self, request: StartRequest, at_ms: int) -> bool:
        """Return whether quota keeps a gang without a reservation from starting at a time."""
        return exceeded_limit_in(self.tree_at(request.user, at_ms), request) is not None

    def exceeds(self, name: str) -> bool:
        """Return whether a gang's reservation takes more than its queue and user may have at its start."""
        return _is_barred(self._tree_at_start(name), self._reserved[name])

    def exceeds_any(self) -> bool:
        """Return whether any reservation takes more than its queue and user may have."""
        return any(map(self.exceeds, self._reserved))

    def delayed_gangs(self, charge: QuotaCharge) -> list[str]:
        """Return the gangs whose reserved start the charge would make impossible."""
        other_charges = [own for name, own in self._reserved.items() if name != charge.gang.id]
        return [own.gang.id for own in other_charges if self._is_delayed(own, charge)]

    def _is_delayed(self, own: QuotaCharge, charge: QuotaCharge) -> bool:
        user = own.gang.job.user
        shares_period = bool(self._tree.node_time_limits) and charge.gang.job.user == user
        if not charge.lasts_at(own.begin_ms) and not shares_period:
            return False
        tree = self._tree_at_start(own.gang.id)
        with tree.undo.trial():
            _count(tree, charge, user, own.begin_ms)
            return _is_barred(tree, own)

    def tree_at(self, user: str, at_ms: int, without: str = "") -> QueueTree:
        """Return the tree at a time, with what the user has; the reservation of the gang `without` does not count."""
        tree, lasting = self._tree.copy_unused(), self._held[:, self._ends_ms > at_ms]
        for queue, taken in self._sum_by_queue(lasting[AMOUNTS:], lasting):
            tree.charge(queue, taken)
        own_rows = lasting[:, lasting[USER] == self._users.get(user, -1)]
        own_amounts = np.concatenate(
            (own_rows[AMOUNTS : AMOUNTS + 1], own_rows[NODE_MS : NODE_MS + 1], np.sign(own_rows[:1]))
        )
        for queue, (gpu_milli, node_ms, jobs) in self._sum_by_queue(own_amounts, own_rows):
            tree.charge_user(queue, user, gpu_milli, node_ms, jobs)
        for queue, nodes, stays_ms in self._own_stays(user):
            tree.charge_period(queue, user, nodes, stays_ms)
        for charge in chain(self._running, (own for name, own in self._reserved.items() if name != without)):
            _count(tree, charge, user, at_ms)
        return tree

    def _own_stays(self, user: str) -> Iterator[tuple[str, int, int]]:
        """Yield the queue, the nodes and the requested stay of each running gang of a user, if a period limits them."""
        if self._tree.node_time_limits:
            rows = self._held[:, self._held[USER] == self._users.get(user, -1)]
            for queue, nodes, stays_ms in rows[[QUEUE, NODES, STAYS]].T.tolist():
                if nodes:  # unused rows are all zero
                    yield self._tree.queues[queue].name, nodes, stays_ms

    def _sum_by_queue(self, amounts: Ints, rows: Ints) -> Iterator[tuple[str, Vector]]:
        """Yield the sums of amounts, a column for each row, for each queue that has any."""
        sums = np.zeros((len(self._tree.queues), len(amounts)), dtype=np.int64)
        np.add.at(sums, rows[QUEUE], amounts.T)
        for index in np.flatnonzero(sums.any(axis=1)).tolist():
            yield self._tree.queues[index].name, tuple(sums[index].tolist())

    def _tree_at_start(self, name: str) -> QueueTree:
        """Return the tree at a reserved start, without that reservation."""
        own = self._reserved[name]
        key = name, own.begin_ms
        if key not in self._trees:
            self._trees[key] = self.tree_at(own.gang.job.user, own.begin_ms, name)
        return self._trees[key]


def _is_barred(tree: QueueTree, own: QuotaCharge) -> bool:
    """Return whether a gang may not start on what it has reserved; GPUs of other types are no substitute."""
    if exceeded_limit_in(tree, start_request(own.gang)) is not None:
        return True
    closed = tree.closed_types(own.gang.queue, own.gang.shape)
    return any(own.taken[tree.resources.index(GPU_TYPE_PREFIX + kind)] for kind in closed)


def _count(tree: QueueTree, charge: QuotaCharge, user: str, at_ms: int, sign: int = 1) -> None:
    """Charge a gang at a time, and its user if that is the one in question; with sign -1 undo it."""
    gang, lasts = charge.gang, charge.lasts_at(at_ms)
    if lasts:
        tree.charge(gang.queue, tuple(sign * amount for amount in charge.taken))
    if gang.job.user != user:
        return
    if lasts:
        tree.charge_user(gang.queue, user, sign * charge.taken[0], sign * gang.node_ms, sign)
    tree.charge_period(gang.queue, user, sign * gang.shape.all_nodes, gang.requested_stay_ms)
