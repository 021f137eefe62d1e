"""The queue tree: how much a queue may still use, what it could ever use, and what one user may.

Owned by `core.state`; asked by `core.plan` before a gang is placed. Source of the arithmetic: Kueue's quota tree
(pkg/cache/scheduler/resource_node.go; reference: scheduling, section 2), here on integers:

    local quota    what a queue keeps for itself: subtree quota - lending limit, at least 0 (0 without a lending limit)
    subtree quota  nominal + what the children lend
    usage          bubbles to the parent only past the local quota
    available      free local quota + min(available of the parent, room under the borrowing limit)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Final

from ganger.core.undo import Undo
from ganger.model.job import Shape
from ganger.model.queue import ROOT, Amount, Queue

UNLIMITED: Final = 1 << 62
RESOURCES: Final = tuple(item.name for item in fields(Amount))
"""Names of the counted resources: gpus, cpu_milli, memory_bytes, in the order of every amount below."""

Vector = tuple[int, ...]


def need(shape: Shape) -> Vector:
    """What the whole gang uses of each resource."""
    gpus, cpu_milli, memory_bytes = (shape.nodes * each for each in (shape.gpus, shape.cpu_milli, shape.memory_bytes))
    for part in shape.more:
        more = need(part)
        gpus, cpu_milli, memory_bytes = gpus + more[0], cpu_milli + more[1], memory_bytes + more[2]
    return gpus, cpu_milli, memory_bytes


class QueueTree:
    """Queues by index, the root first and every parent before its children; usage of queues and of users in them."""

    def __init__(self, queues: Iterable[Queue], capacity: Vector, undo: Undo) -> None:
        """Nothing used. `capacity` is what all nodes have: the root's quota once any queue has a quota of its own."""
        self._undo = undo
        self.queues = _parents_first({queue.name: queue for queue in queues})
        self.index = {queue.name: at for at, queue in enumerate(self.queues)}
        self.parent = [self.index[queue.parent] if queue.parent else -1 for queue in self.queues]
        self.usage = [[0] * len(self.queues) for _ in RESOURCES]
        self.users: dict[tuple[int, str], tuple[int, int]] = {}
        """(queue, user) -> (GPUs held, node-milliseconds committed), in every queue up to the root; none of (0, 0)."""
        self.nominal = [self._nominals(r, capacity) for r in range(len(RESOURCES))]
        self.subtree = [self._subtrees(r) for r in range(len(RESOURCES))]

    def path(self, at: int) -> Iterator[int]:
        """A queue and those above it, the root last."""
        while at >= 0:
            yield at
            at = self.parent[at]

    def local(self, at: int, r: int) -> int:
        """What the queue keeps from its parent; the root keeps everything."""
        lending = _figure(self.queues[at].lending, r)
        return max(0, self.subtree[r][at] - lending) if lending is not None and self.parent[at] >= 0 else 0

    def available(self, at: int, r: int) -> int:
        """How much more of resource r the queue may use now."""
        return self._room(at, r, self.usage[r])

    def potential(self, at: int, r: int) -> int:
        """How much of resource r the queue may use when nobody else uses any."""
        return self._room(at, r, [0] * len(self.queues))

    def _room(self, at: int, r: int, usage: Sequence[int]) -> int:
        if self.parent[at] < 0:
            return self.subtree[r][at] - usage[at]
        local = self.local(at, r)
        from_parent = self._room(self.parent[at], r, usage)
        borrowing = _figure(self.queues[at].borrowing, r)
        if borrowing is not None:
            lent, taken = self.subtree[r][at] - local, max(0, usage[at] - local)
            from_parent = min(from_parent, lent - taken + borrowing)
        return max(0, local - usage[at]) + from_parent

    def short_of(self, name: str, wanted: Vector) -> int | None:
        """The first resource the queue may not use that much more of, or None when it may."""
        at = self.index[name]
        return next((r for r, amount in enumerate(wanted) if amount and amount > self.available(at, r)), None)

    def charge(self, name: str, wanted: Vector) -> None:
        """The queue uses that much more (less, with negative amounts, which must have been charged)."""
        for r, amount in enumerate(wanted):
            self._add(self.index[name], r, amount)

    def charge_user(self, name: str, user: str, gpus: int, node_ms: int) -> None:
        """The user holds that much more (or less) in the queue and in all above it."""
        for at in self.path(self.index[name]):
            key = (at, user)
            held, committed = self.users.get(key, (0, 0))
            if held + gpus or committed + node_ms:
                self._undo.put(self.users, key, (held + gpus, committed + node_ms))
            elif key in self.users:
                self._undo.drop(self.users, key)

    def _add(self, at: int, r: int, amount: int) -> None:
        local, used = self.local(at, r), self.usage[r][at]
        self._undo.put(self.usage[r], at, used + amount)
        bubbles = max(0, used + amount - local) - max(0, used - local)
        if bubbles and self.parent[at] >= 0:
            self._add(self.parent[at], r, bubbles)

    def _nominals(self, r: int, capacity: Vector) -> list[int]:
        own = [_figure(queue.nominal, r) or 0 for queue in self.queues]
        if _figure(self.queues[0].nominal, r) is None:
            # With no figure anywhere only the nodes bind. With one, a guarantee must mean something: the root then has
            # what the cluster has and nobody was promised.
            figured = any(_figure(queue.nominal, r) is not None for queue in self.queues)
            own[0] = max(0, capacity[r] - sum(own)) if figured else UNLIMITED
        return own

    def _subtrees(self, r: int) -> list[int]:
        total = list(self.nominal[r])
        for at in range(len(self.queues) - 1, 0, -1):
            lending = _figure(self.queues[at].lending, r)
            total[self.parent[at]] += total[at] if lending is None else min(total[at], lending)
        return total


def _figure(amount: Amount, r: int) -> int | None:
    value: int | None = getattr(amount, RESOURCES[r])
    return value


def _parents_first(queues: dict[str, Queue]) -> list[Queue]:
    """The root, then every queue after its parent, names in order. Queues that hang on nothing are left out."""
    ordered = [queues[ROOT]]
    for parent in ordered:
        ordered += [queues[name] for name in sorted(queues) if queues[name].parent == parent.name]
    return ordered
