"""Quota charges of each gang that holds nodes, and the same as columns with the expected end.

Changed after the gang has its allocation and before it loses it: the rows take their end from the allocation.
"""

from ganger.core.queues.quota import QueueTree, Vector
from ganger.core.state.allocations.allocations import Allocations
from ganger.core.state.allocations.column_table import ColumnTable
from ganger.core.state.gang import Gang

QUEUE, USER, NODE_MS, NODES, STAYS, AMOUNTS = 1, 2, 3, 4, 5, 6
"""Columns after the end: queue index, user number, committed node-milliseconds, nodes, requested stay, then the charge
for each resource."""


class QuotaCharges(dict[str, Vector]):
    """The charged amounts by gang.

    table: a row of columns for each gang.
    users: the number of each user.
    """

    def __init__(self, gangs: dict[str, Gang], allocations: Allocations, tree: QueueTree) -> None:
        """Start without charges. `gangs`: the live gangs by id; `allocations`: theirs; `tree`: their queues."""
        super().__init__()
        self.table = ColumnTable(AMOUNTS + len(tree.resources))
        self.users: dict[str, int] = {}
        self._gangs, self._allocations, self._tree = gangs, allocations, tree

    def __setitem__(self, name: str, charge: Vector) -> None:
        super().__setitem__(name, charge)
        gang = self._gangs[name]
        user = self.users.setdefault(gang.job.user, len(self.users))
        queue, end_ms = self._tree.index[gang.queue], self._allocations.end_ms(name)
        self.table.put(
            name, [(end_ms, queue, user, gang.node_ms, gang.shape.all_nodes, gang.requested_stay_ms, *charge)]
        )

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.table.drop(name)

    def validate(self, rebuilt: "QuotaCharges") -> None:
        """Raise AssertionError naming the difference from charges that were rebuilt from the gangs."""
        assert self == rebuilt, "quota charges differ"
        own, expected = ({name: _row_by_user(charges, name) for name in charges} for charges in (self, rebuilt))
        assert own == expected, "quota charge columns differ"


def _row_by_user(charges: QuotaCharges, name: str) -> list[object]:
    """Return a gang's row with the user's name, since numbers are given in order of appearance."""
    (row,) = charges.table.rows()[name]
    users = list(charges.users)
    return [*row[:USER], users[row[USER]], *row[USER + 1 :]]
