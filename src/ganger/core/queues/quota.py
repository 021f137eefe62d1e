"""The queue tree: how much a queue may still use, what it could ever use, and what one user may.

Owned by `core.state.state`; asked by `core.cycle.plan` before a gang is placed. Source of the arithmetic: Kueue's quota
tree (pkg/cache/scheduler/resource_node.go; reference: scheduling, section 2), here on integers:

    local quota    what a queue keeps for itself: subtree quota - lending limit, at least 0 (0 without a lending limit)
    nominal        what the queue is guaranteed, beyond what its children are
    subtree quota  nominal + what the children lend
    usage          bubbles to the parent only past the local quota
    available      free local quota + min(available of the parent, room under the borrowing limit)

Every resource is counted by itself: GPUs of all types, CPUs, memory, and the GPUs of each type that some queue has a
figure for. A job that takes any type is counted, until it is placed, against each of them.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from ganger.core.undo import Undo
from ganger.model.decision import NodeShare
from ganger.model.queue import MAX_FIGURE, MAX_WEIGHT, ROOT, Amount, Queue, UserLimits
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

UNLIMITED: Final = 1 << 62
RESOURCES: Final = ("gpu_milli", "cpu_milli", "memory_bytes")
"""The counted resources that are always there, in the order of every amount; types of GPUs follow."""
OF_TYPE: Final = "gpu_milli."
"""What the resource of a type's GPUs begins with: gpu_milli.h100."""

Vector = tuple[int, ...]


class Held(NamedTuple):
    """What a user has in a queue and all below it: GPUs and shares of them, node-milliseconds committed, jobs that hold
    nodes."""

    gpu_milli: int = 0
    node_ms: int = 0
    jobs: int = 0


def need(shape: Shape) -> Vector:
    """What the whole gang uses of each of RESOURCES."""
    each = (shape.gpus * DEVICE_MILLI + shape.gpu_milli, shape.cpu_milli, shape.memory_bytes)
    gpu_milli, cpu_milli, memory_bytes = (shape.nodes * amount for amount in each)
    for part in shape.more:
        more = need(part)
        gpu_milli, cpu_milli, memory_bytes = gpu_milli + more[0], cpu_milli + more[1], memory_bytes + more[2]
    return gpu_milli, cpu_milli, memory_bytes


class QueueTree:
    """Queues by index, the root first and every parent before its children; usage of queues and of users in them.

    usage: by resource, then queue; children: indices of the queues below each; below_root: each with those above it,
    the topmost first, without the root; promised: what each, with all below it, is guaranteed of each resource;
    nominal: the part of it that none of those below is.
    """

    def __init__(
        self, queues: Iterable[Queue], capacity: Vector, undo: Undo, of_type: Mapping[str, int] | None = None
    ) -> None:
        """Nothing used. `capacity` is what all nodes have, `of_type` their GPUs by type: the root's quota of what any
        queue has a quota of its own of."""
        self.undo = undo
        self.queues = _parents_first({queue.name: queue for queue in queues})
        self.index = {queue.name: at for at, queue in enumerate(self.queues)}
        self.parent = [self.index[queue.parent] if queue.parent else -1 for queue in self.queues]
        self.children: list[list[int]] = [[] for _ in self.queues]
        for at, above in enumerate(self.parent[1:], start=1):
            self.children[above].append(at)
        self.below_root = [tuple(self.path(at))[-2::-1] for at in range(len(self.queues))]
        figured = {kind: None for queue in self.queues for each in _amounts(queue) for kind in each.gpu_types}
        self.types = tuple(sorted(figured))
        self.resources = (*RESOURCES, *(OF_TYPE + kind for kind in self.types))
        there = (*capacity, *((of_type or {}).get(kind, 0) for kind in self.types))
        every = range(len(self.resources))
        self.usage = [[0] * len(self.queues) for _ in every]
        self.users: dict[tuple[int, str], Held] = {}
        """(queue, user) -> what is held in the queue and below it, for every queue up to the root; none of nothing."""
        self.promised = self._promised()
        self.nominal = [self._nominals(r, there) for r in every]
        self._borrowing = [[_figure(queue.borrowing, self.resources[r]) for queue in self.queues] for r in every]
        self._lending = [[_figure(queue.lending, self.resources[r]) for queue in self.queues] for r in every]
        self.subtree = [self._subtrees(r) for r in every]
        self._local = [[self._kept(at, r) for at in range(len(self.queues))] for r in every]
        unsaid = [nominal(self.queues[0], resource) is None for resource in self.resources]
        self._is_of_nodes = [unsaid[r] and self.subtree[r][0] >= there[r] for r in every]
        """Whether the root has what the cluster has, since nobody said, and nobody below keeps any for himself."""

    def unused(self) -> "QueueTree":
        """The same queues with nothing used, to charge at will."""
        other = copy.copy(self)
        other.undo, other.users = Undo(), {}
        other.usage = [[0] * len(self.queues) for _ in self.resources]
        return other

    @cached_property
    def limits_anybody(self) -> bool:
        """Whether any queue has a figure that could keep a job waiting."""
        figured = (figure for queue in self.queues for each in _amounts(queue) for _, figure in _figures(each))
        limited = (figure for queue in self.queues for _, figure in _figures(queue.user_limits))
        return any(figure is not None for figure in chain(figured, limited))

    @cached_property
    def is_pooled(self) -> bool:
        """Whether any queue may use what no other does, and its users too: then the root's quota alone binds."""
        bounds = (
            figure for queue in self.queues for of in (queue.borrowing, queue.lending) for _, figure in _figures(of)
        )
        limits = (figure for queue in self.queues for _, figure in _figures(queue.user_limits))
        return not self.types and all(figure is None for figure in chain(bounds, limits))

    def path(self, at: int) -> Iterator[int]:
        """A queue and those above it, the root last."""
        while at >= 0:
            yield at
            at = self.parent[at]

    def local(self, at: int, r: int) -> int:
        """What the queue keeps from its parent; the root keeps everything."""
        return self._local[r][at]

    def available(self, at: int, r: int, *, as_set: bool = False) -> int:
        """How much more of resource r the queue may use now. `as_set`: by what somebody has set, not because the
        cluster has no more: that is the quota of a root without a figure."""
        return self._room(at, r, self.usage[r].__getitem__, as_set=as_set)

    def held(self, r: int) -> list[int]:
        """What is used of resource r in each queue and all below it, also of what they keep from their parents."""
        below = [0] * len(self.queues)
        for at in range(len(below) - 1, 0, -1):
            below[self.parent[at]] += below[at] + min(self.usage[r][at], self._local[r][at])
        return [used + more for used, more in zip(self.usage[r], below, strict=True)]

    def potential(self, at: int, r: int, *, as_set: bool = False) -> int:
        """How much of resource r the queue may use when nobody else uses any."""
        return self._room(at, r, _nothing, as_set=as_set)

    def _room(self, at: int, r: int, usage: Callable[[int], int], *, as_set: bool) -> int:
        if self.parent[at] < 0:
            return UNLIMITED if as_set and self._is_of_nodes[r] else self.subtree[r][at] - usage(at)
        local, used = self._local[r][at], usage(at)
        from_parent = self._room(self.parent[at], r, usage, as_set=as_set)
        borrowing = self._borrowing[r][at]
        if borrowing is not None:
            lent, taken = self.subtree[r][at] - local, max(0, used - local)
            from_parent = min(from_parent, lent - taken + borrowing)
        return max(0, local - used) + from_parent

    def wanted(self, shape: Shape) -> Vector:
        """What the whole gang asks of each of `resources`, before it is placed. Of a type that it names, also what asks
        for any type: it may come to be of that one."""
        if not self.types:
            return need(shape)
        of_type = _by_type(shape)
        any_type = of_type.get(None, 0)
        return (*need(shape), *(of_type[kind] + any_type if kind in of_type else 0 for kind in self.types))

    def counted(self, shape: Shape) -> Vector:
        """The same of every type, also of those that it does not name: what room is kept of for a gang that waits."""
        if not self.types:
            return need(shape)
        of_type = _by_type(shape)
        return (*need(shape), *(of_type.get(kind, 0) + of_type.get(None, 0) for kind in self.types))

    def taken(self, shape: Shape, shares: Iterable[NodeShare], type_of: Callable[[str], str]) -> Vector:
        """What the whole gang holds of each of `resources` where it is placed; `type_of` has the type of a node."""
        if not self.types:
            return need(shape)
        held = dict.fromkeys(self.types, 0)
        for share in shares:
            kind = type_of(share.node)
            if kind in held:
                held[kind] += shape.gpu_milli_of(share.part)
        return (*need(shape), *held.values())

    def closed_types(self, name: str, shape: Shape, *, ever: bool = False) -> tuple[str, ...]:
        """Types of which the queue may not use as many GPUs as the gang asks for without naming a type, now or `ever`:
        these are closed to it. No type is closed to a gang that names one for each GPU."""
        if not self.types or not _by_type(shape).get(None, 0):
            return ()
        at, counted = self.index[name], self.counted(shape)
        each, room = enumerate(self.types, start=len(RESOURCES)), self.potential if ever else self.available
        return tuple(kind for r, kind in each if counted[r] > room(at, r))

    def short_of(self, name: str, wanted: Vector, *, as_set: bool = False) -> int | None:
        """The first resource the queue may not use that much more of, or None when it may."""
        at = self.index[name]
        for r, amount in enumerate(wanted):
            if amount and amount > self.available(at, r, as_set=as_set):
                return r
        return None

    def charge(self, name: str, wanted: Vector) -> None:
        """The queue uses that much more (less, with negative amounts, which must have been charged)."""
        for r, amount in enumerate(wanted):
            if amount:
                self._add(self.index[name], r, amount)

    def charge_user(self, name: str, user: str, gpu_milli: int, node_ms: int, jobs: int = 0) -> None:
        """The user holds that much more (or less) in the queue and in all above it."""
        for at in self.path(self.index[name]):
            key = (at, user)
            before = self.users.get(key, NOTHING_HELD)
            now = Held(before.gpu_milli + gpu_milli, before.node_ms + node_ms, before.jobs + jobs)
            if now != NOTHING_HELD:
                self.undo.put(self.users, key, now)
            elif key in self.users:
                self.undo.drop(self.users, key)

    def _add(self, at: int, r: int, amount: int) -> None:
        local, used = self._local[r][at], self.usage[r][at]
        self.undo.put(self.usage[r], at, used + amount)
        bubbles = max(0, used + amount - local) - max(0, used - local)
        if bubbles and self.parent[at] >= 0:
            self._add(self.parent[at], r, bubbles)

    def _nominals(self, r: int, capacity: Vector) -> list[int]:
        """What each queue has beside what the queues below it are guaranteed."""
        resource = self.resources[r]
        own = [nominal(queue, resource) for queue in self.queues]
        if own[0] is None:
            # With no figure anywhere only the nodes bind. With one, a guarantee must mean something: the root then has
            # what the cluster has.
            own[0] = UNLIMITED if all(figure is None for figure in own) else capacity[r]
        return [
            max(0, (figure or 0) - sum(self.promised[child][r] for child in self.children[at]))
            for at, figure in enumerate(own)
        ]

    def _subtrees(self, r: int) -> list[int]:
        total = list(self.nominal[r])
        for at in range(len(self.queues) - 1, 0, -1):
            lending = self._lending[r][at]
            total[self.parent[at]] += total[at] if lending is None else min(total[at], lending)
        return total

    def _kept(self, at: int, r: int) -> int:
        lending = self._lending[r][at]
        return max(0, self.subtree[r][at] - lending) if lending is not None and self.parent[at] >= 0 else 0

    def _promised(self) -> list[Vector]:
        found = [tuple(nominal(queue, resource) or 0 for resource in self.resources) for queue in self.queues]
        for at in reversed(range(len(self.queues))):
            below = [found[child] for child in self.children[at]]
            sums = [sum(each) for each in zip(*below, strict=True)] if below else [0] * len(self.resources)
            found[at] = tuple(max(own, total) for own, total in zip(found[at], sums, strict=True))
        return found


NOTHING_HELD: Final = Held()


def lowered(queue: Queue) -> Queue:
    """The queue with its types of GPUs in lower-case, as nodes have them."""
    own, borrowing, lending = (
        replace(amount, gpu_types={kind.lower(): figure for kind, figure in amount.gpu_types.items()})
        for amount in _amounts(queue)
    )
    return replace(queue, nominal=own, borrowing=borrowing, lending=lending)


def wrong_with(queue: Queue) -> str | None:
    """What is wrong with a queue's figures by themselves, or None: the place, what stands there, and what may."""
    if not 1 <= queue.weight <= MAX_WEIGHT:
        return f"weight is {queue.weight}: it is from 1 to {MAX_WEIGHT}"
    for part in ("nominal", "borrowing", "lending", "user_limits"):
        for name, figure in _figures(getattr(queue, part)):
            if figure is not None and not 0 <= figure <= MAX_FIGURE:
                return f"{part}.{name} is {figure}: it is from 0 to {MAX_FIGURE}; leave it out for no limit"
    if queue.default_time_ms is not None and not 1 <= queue.default_time_ms <= MAX_FIGURE:
        return f"default_time_ms is {queue.default_time_ms}: it is from 1 to {MAX_FIGURE}; leave it out for no limit"
    types = queue.nominal.gpu_types
    together = sum(types.values())
    if queue.nominal.gpus is not None and together > queue.nominal.gpus:
        return f"nominal.gpus is {queue.nominal.gpus}, and its types add up to {together}: {_listed(types)}"
    odd = [kind for amount in _amounts(queue) for kind in amount.gpu_types if not kind or kind != kind.lower()]
    return f"gpu_types names {odd[0]!r}: a type is written in lower-case" if odd else None


def contradiction(queues: Iterable[Queue], name: str) -> str | None:
    """Where a queue, or one above it, has less than those below it are guaranteed together; None where none does."""
    tree = QueueTree(queues, (0,) * len(RESOURCES), Undo())
    for at in tree.path(tree.index[name]):
        for r, resource in enumerate(tree.resources):
            scale = scale_of(resource)
            figure = nominal(tree.queues[at], resource)
            below = {tree.queues[child].name: tree.promised[child][r] for child in tree.children[at]}
            if figure is not None and sum(below.values()) > figure:
                guaranteed = {queue: amount // scale for queue, amount in below.items() if amount}
                return (
                    f"nominal.{in_figures(resource)} of queue {tree.queues[at].name} is {figure // scale}, and the "
                    f"queues below it are guaranteed {sum(guaranteed.values())}: {_listed(guaranteed)}"
                )
    return None


def nominal(queue: Queue, resource: str) -> int | None:
    """A queue's own quota of a resource; of GPUs without a figure the sum of those by type."""
    own = _figure(queue.nominal, resource)
    types = queue.nominal.gpu_types
    return DEVICE_MILLI * sum(types.values()) if own is None and resource == RESOURCES[0] and types else own


def in_figures(resource: str) -> str:
    """What people call a resource: quota is written in whole GPUs, and counted in thousandths."""
    return resource.replace(RESOURCES[0], "gpus")


def scale_of(resource: str) -> int:
    """How many of what is counted are one of what people write."""
    return DEVICE_MILLI if resource.startswith(RESOURCES[0]) else 1


def _figure(amount: Amount, resource: str) -> int | None:
    if resource.startswith(OF_TYPE):
        value = amount.gpu_types.get(resource.removeprefix(OF_TYPE))
    else:
        value = getattr(amount, in_figures(resource))
    return None if value is None else scale_of(resource) * value


def _amounts(queue: Queue) -> tuple[Amount, ...]:
    return queue.nominal, queue.borrowing, queue.lending


def _figures(amount: Amount | UserLimits) -> Iterator[tuple[str, int | None]]:
    for each in fields(amount):
        value = getattr(amount, each.name)
        if isinstance(value, dict):
            yield from ((f"{each.name}.{kind}", figure) for kind, figure in value.items())
        else:
            yield each.name, value


def _listed(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


def _nothing(_at: int) -> int:
    return 0


def _by_type(shape: Shape) -> dict[str | None, int]:
    """Thousandths of GPUs that the gang asks for, by the type it names."""
    found: dict[str | None, int] = {}
    for part in shape.parts:
        if part.has_gpus:
            # Of several types it will have one, as of any.
            kind = None if part.other_types else part.gpu_type
            found[kind] = found.get(kind, 0) + part.nodes * part.gpu_milli_of(0)
    return found


def _parents_first(queues: dict[str, Queue]) -> list[Queue]:
    """The root, then every queue after its parent, names in order. Queues that hang on nothing are left out."""
    ordered = [queues[ROOT]]
    for parent in ordered:
        ordered += [queues[name] for name in sorted(queues) if queues[name].parent == parent.name]
    return ordered
