"""What every gang that holds nodes is charged for, by gang, and as columns with the time at which each ends.

Owned by `core.state.state`, changed through its `Undo`, after `core.state.allocations` has the gang and before it lets
go of it; read by `core.placement.start_check`, and by `core.reservations.capacity_forecast` for what queues and users
may have later."""

from ganger.core.queues.quota import QueueTree, Vector
from ganger.core.state.allocations import Allocations
from ganger.core.state.column_table import Ledger
from ganger.core.state.gang import Gang

QUEUE, USER, NODE_MS, TAKEN = 1, 2, 3, 4
"""Columns after the end, by the gang's limit: the queue by index, the user by number, node-milliseconds committed, and
then what it is charged for of each resource."""


class QuotaCharges(dict[str, Vector]):
    """Amounts by gang. ledger: a row for each of them; users: their numbers."""

    def __init__(self, gangs: dict[str, Gang], holding: Allocations, tree: QueueTree) -> None:
        """Nobody is charged. `gangs`: the live ones by id; `holding`: what they hold; `tree`: their queues."""
        super().__init__()
        self.ledger = Ledger(TAKEN + len(tree.resources))
        self.users: dict[str, int] = {}
        self._gangs, self._holding, self._tree = gangs, holding, tree

    def __setitem__(self, name: str, taken: Vector) -> None:
        super().__setitem__(name, taken)
        gang = self._gangs[name]
        user = self.users.setdefault(gang.job.user, len(self.users))
        at, end_ms = self._tree.index[gang.queue], self._holding.end_ms(name)
        self.ledger.put(name, [(end_ms, at, user, gang.node_ms, *taken)])

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.ledger.drop(name)

    def validate(self, anew: "QuotaCharges") -> None:
        """Compare with one that everything was put into anew. AssertionError names what differs."""
        assert self == anew, "what gangs are charged for differs"
        mine, other = ({name: _named(each, name) for name in each} for each in (self, anew))
        assert mine == other, "what gangs are charged for, as columns, differs"


def _named(charged: QuotaCharges, name: str) -> list[object]:
    """A row, with the user by name: numbers are given in order of appearance."""
    (row,) = charged.ledger.rows()[name]
    users = list(charged.users)
    return [*row[:USER], users[row[USER]], *row[USER + 1 :]]
