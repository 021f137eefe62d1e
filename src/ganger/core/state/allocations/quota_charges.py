"""Quota charges of each gang that holds nodes, and the same as columns with the expected end.

Changed after the gang has its allocation and before it loses it: the rows take their end from the allocation.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np

from ganger.core.nodes.topology import Ints
from ganger.core.queues.quota import QueueTree, Vector
from ganger.core.state.allocations.allocations import Allocations
from ganger.core.state.allocations.column_table import ColumnTable
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import STOP_MS
from ganger.model.job import MAX_PRIORITY
from ganger.model.shape import Shape

QUEUE, USER, NODE_MS, NODES, STAYS, PRIORITY, AMOUNTS = 1, 2, 3, 4, 5, 6, 7
"""Columns after the end: queue index, user number, committed node-milliseconds, nodes, requested stay, priority, then
the charge for each resource."""


_PRIORITIES: Final = 2 * MAX_PRIORITY + 1
"""Number of possible priorities."""
NO_USER = -2
"""In the row of what a gang is about to leave: it has one besides that of what it keeps."""


class Beyond(NamedTuple):
    """The gangs of a queue that no guarantee protects, as of some changes.

    Attributes:
        preemptible: Those of `gangs` that may be preempted.
        gpu_milli: GPUs of all `gangs`, in thousandths.
    """

    as_of: tuple[int, tuple[str, ...]]
    gangs: tuple[str, ...]
    preemptible: tuple[str, ...]
    gpu_milli: int


class Reclaimable(NamedTuple):
    """The GPU types with which a queue stays within its guarantee with a pending gang.

    Attributes:
        as_of: How often charges have changed there, and the owners of what is being stopped there.
        types: The types, by the shape of the gang, and its id if it is such an owner.
    """

    as_of: tuple[int, tuple[tuple[str, Shape], ...]]
    types: dict[tuple[Shape, str], tuple[str | None, ...]]


class QuotaCharges(dict[str, Vector]):
    """The charged amounts by gang.

    table: a row of columns for each gang.
    users: the number of each user.
    changes: by queue index, how often a charge in it or below it has changed; undoing a change is one too.
    beyond, reclaimable: by two queues and by one, what cycles remember of them (`core.preemption.legality`).
    """

    def __init__(
        self, gangs: dict[str, Gang], allocations: Allocations, tree: QueueTree, type_of: Callable[[str], str]
    ) -> None:
        """Start without charges of the live gangs, by id, and their queues; `type_of` has the GPU type of a node."""
        super().__init__()
        self.table = ColumnTable(AMOUNTS + len(tree.resources))
        self.users: dict[str, int] = {}
        self.changes = [0] * len(tree.queues)
        self.beyond: dict[tuple[str, int | None], Beyond] = {}
        self.reclaimable: dict[int, Reclaimable] = {}
        self._gangs, self._allocations, self._tree, self._type_of = gangs, allocations, tree, type_of

    def __setitem__(self, name: str, charge: Vector) -> None:
        super().__setitem__(name, charge)
        gang = self._gangs[name]
        self._count_change(gang)
        user = self.users.setdefault(gang.job.user, len(self.users))
        queue, end_ms = self._tree.index[gang.queue], self._allocations.end_ms(name)
        stays_ms, priority = gang.requested_stay_ms, gang.job.spec.priority
        row = (end_ms, queue, user, gang.node_ms, gang.charged_nodes, stays_ms, priority, *charge)
        target = () if gang.attempt.lent else gang.attempt.target
        kept = self._tree.taken(gang.shape_on(target), target, self._type_of) if target else charge
        if kept == charge:
            self.table.put(name, [row] if gang.charged_nodes else [])
            return
        # What it is about to leave is no job of its user.
        gone_ms = gang.attempt.notice_until_ms + STOP_MS
        given = (amount - rest for amount, rest in zip(charge, kept, strict=True))
        self.table.put(name, [(*row[:AMOUNTS], *kept), (gone_ms, queue, NO_USER, 0, 0, 0, 0, *given)])

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._count_change(self._gangs[name])
        self.table.drop(name)

    def _count_change(self, gang: Gang) -> None:
        for index in self._tree.path(self._tree.index[gang.queue]):
            self.changes[index] += 1

    def held_by_priority(self, without: Iterable[str]) -> Ints:
        """Return (3, N) queue index, priority and GPUs in thousandths of the other gangs, added up by the first two."""
        is_counted = self.table.cells[NODES] > 0  # unused rows are all zero
        is_counted[self.table.row_indices(without)] = False
        queues, priorities, gpu_milli = self.table.cells[[QUEUE, PRIORITY, AMOUNTS]][:, is_counted]
        keys, at = np.unique(queues * _PRIORITIES + priorities + MAX_PRIORITY, return_inverse=True)
        held = np.zeros((3, len(keys)), dtype=np.int64)
        held[0], held[1] = keys // _PRIORITIES, keys % _PRIORITIES - MAX_PRIORITY
        np.add.at(held[2], at, gpu_milli)
        return held

    def validate(self, rebuilt: "QuotaCharges") -> None:
        """Raise AssertionError naming the difference from charges that were rebuilt from the gangs."""
        assert self == rebuilt, "quota charges differ"
        own, expected = ({name: _row_by_user(charges, name) for name in charges} for charges in (self, rebuilt))
        assert own == expected, "quota charge columns differ"


def _row_by_user(charges: QuotaCharges, name: str) -> list[object]:
    """Return a gang's rows with the user's name, since numbers are given in order of appearance."""
    users = list(charges.users)
    return [
        [*row[:USER], users[row[USER]] if row[USER] >= 0 else "", *row[USER + 1 :]]
        for row in charges.table.rows().get(name, ())
    ]
