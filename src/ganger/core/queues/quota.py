"""The queue tree: how much a queue may still use, how much it could ever use, and how much one user may.

Source of the arithmetic: Kueue's quota tree (pkg/cache/scheduler/resource_node.go; reference: scheduling, section 2),
here on integers:

    local quota    what a queue keeps for itself: subtree quota - lending limit, at least 0 (0 without a lending limit)
    nominal        what the queue is guaranteed, beyond what its children are
    subtree quota  nominal + what the children lend
    usage          bubbles to the parent only past the local quota
    available      free local quota + min(available of the parent, room under the borrowing limit)

Every resource is counted by itself: GPUs of all types, CPUs, memory, and the GPUs of each type and the extended
resources that some queue has a quota of. A job that takes any type is counted against each of them until it is placed.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from ganger.core.queues.node_time import NodeTimeUsage, PeriodSum
from ganger.core.queues.quota_figures import (
    EXTENDED_PREFIX,
    GPU_TYPE_PREFIX,
    RESOURCES,
    figure_of,
    join_amounts,
    limit_figures,
    named_resources,
    nominal,
    quota_figures,
    resource_label,
    resource_scale,
)
from ganger.core.undo import Undo
from ganger.model.decision import NodeShare
from ganger.model.queue import ROOT, Amount, Queue, UserLimits
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

UNLIMITED: Final = 1 << 62

Vector = tuple[int, ...]


class UserCharge(NamedTuple):
    """A user's charge in a queue and all below it: GPUs and shares, committed node-milliseconds, jobs with nodes.

    period_ms: node-milliseconds that jobs with nodes may use within the period of the queue's `node_time_used`.
    """

    gpu_milli: int = 0
    node_ms: int = 0
    jobs: int = 0
    period_ms: int = 0


def need(shape: Shape) -> Vector:
    """Return what the whole gang uses of each of RESOURCES."""
    per_node = (shape.gpus * DEVICE_MILLI + shape.gpu_milli, shape.cpu_milli, shape.memory_bytes)
    gpu_milli, cpu_milli, memory_bytes = (shape.nodes * amount for amount in per_node)
    for part in shape.more:
        more = need(part)
        gpu_milli, cpu_milli, memory_bytes = gpu_milli + more[0], cpu_milli + more[1], memory_bytes + more[2]
    return gpu_milli, cpu_milli, memory_bytes


class QueueTree:
    """Queues by index, the root first and every parent before its children, and usage of queues and users.

    Attributes:
        usage: By resource, then queue.
        children: The indices of the queues below each.
        path_below_root: Each queue with those above it, the topmost first, without the root.
        guaranteed: What each queue, with all below it, is guaranteed of each resource.
        nominal: The part of it that is not guaranteed to queues below.
    """

    def __init__(
        self,
        queues: Iterable[Queue],
        capacity: Vector,
        undo: Undo,
        of_named: Mapping[str, int] | None = None,
        node_time: NodeTimeUsage | None = None,
    ) -> None:
        """Create a tree without usage.

        `capacity` is that of all nodes, and `of_named` what they have of resources with a prefix: the root's quota of
        any resource that a queue has a quota of.
        """
        self.undo = undo
        self.queues = _parents_first({queue.name: queue for queue in queues})
        self.index = {queue.name: position for position, queue in enumerate(self.queues)}
        self.parent = [self.index[queue.parent] if queue.parent else -1 for queue in self.queues]
        self.children: list[list[int]] = [[] for _ in self.queues]
        for position, parent in enumerate(self.parent[1:], start=1):
            self.children[parent].append(position)
        self.path_below_root = [tuple(self.path(position))[-2::-1] for position in range(len(self.queues))]
        self.types, extended = named_resources(self.queues)
        named = [GPU_TYPE_PREFIX + gpu_type for gpu_type in self.types]
        named += [EXTENDED_PREFIX + name for name in extended]
        self.resources = (*RESOURCES, *named)
        resource_indices = range(len(self.resources))
        self.usage = [[0] * len(self.queues) for _ in resource_indices]
        self.users: dict[tuple[int, str], UserCharge] = {}
        """(queue, user) -> what is held in the queue and below it, for every queue up to the root; none if nothing
        is."""
        self.node_time_limits = {
            index: queue.user_limits.node_time_used
            for index, queue in enumerate(self.queues)
            if queue.user_limits.node_time_used is not None
        }
        """The limits of node time used in a period, by queue."""
        self.node_time = node_time or NodeTimeUsage()
        """Node time of it that ended attempts used, in these queues."""
        self._period_sums: dict[tuple[int, str], PeriodSum] = {}
        self._subtrees_limited = {index: self.subtree(index) for index in self.node_time_limits}
        self.guaranteed = self._guarantees()
        self._borrowing = [[figure_of(queue.borrowing, name) for queue in self.queues] for name in self.resources]
        self.set_capacity(capacity, of_named or {})
        self._local = [[self._unlent(position, r) for position in range(len(self.queues))] for r in resource_indices]

    def set_capacity(self, capacity: Vector, of_named: Mapping[str, int]) -> None:
        """Set what the nodes have, as `__init__` takes it. Only the root's quota follows from that: usage stays."""
        totals = (*capacity, *(of_named.get(name, 0) for name in self.resources[len(RESOURCES) :]))
        resource_indices = range(len(self.resources))
        self.nominal = [self._nominals(r, totals) for r in resource_indices]
        self.subtree_quota = [self._subtrees(r) for r in resource_indices]
        has_no_quota = [nominal(self.queues[0], resource) is None for resource in self.resources]
        self._is_root_unbounded = [has_no_quota[r] and self.subtree_quota[r][0] >= totals[r] for r in resource_indices]
        """By resource, True if the root has what the cluster has, since no quota was set and no queue below keeps
        any."""

    def validate(self, fresh: "QueueTree") -> None:
        """Compare with a newly built tree; the AssertionError names what differs."""
        for name in ("usage", "users", "nominal", "subtree_quota", "binds_before_nodes"):
            assert getattr(self, name) == getattr(fresh, name), f"{name} of queues differs: {getattr(self, name)}"

    def copy_unused(self) -> "QueueTree":
        """Return the same queues with nothing used."""
        other = copy.copy(self)
        other.undo, other.users = Undo(), {}
        other.usage = [[0] * len(self.queues) for _ in self.resources]
        return other

    @cached_property
    def _extended(self) -> list[str]:
        """Names of the extended resources that are counted."""
        return [name.removeprefix(EXTENDED_PREFIX) for name in self.resources[len(RESOURCES) + len(self.types) :]]

    @cached_property
    def has_limits(self) -> bool:
        """True if a queue has a limit that could keep a job waiting."""
        quotas = (amount for queue in self.queues for amount in quota_figures(queue))
        limits: Iterator[Amount | UserLimits] = chain(quotas, (queue.user_limits for queue in self.queues))
        return any(figure is not None for amount in limits for _, figure in limit_figures(amount))

    @cached_property
    def has_guarantees(self) -> bool:
        """True if a queue below the root is guaranteed any resource."""
        return any(any(guaranteed) for guaranteed in self.guaranteed[1:])

    def branches(self, name: str, other: str) -> tuple[int, int] | None:
        """Return the queues, of two and those above them, at which their paths part; None if one is above the other."""
        paths = self.path_below_root[self.index[name]], self.path_below_root[self.index[other]]
        return next((pair for pair in zip(*paths, strict=False) if pair[0] != pair[1]), None)

    def limited(self, index: int, amounts: Vector) -> list[int]:
        """Return the resources among these of which a queue is guaranteed some, or has a quota."""
        return [r for r in self._limited[index] if amounts[r]]

    @cached_property
    def _limited(self) -> list[list[int]]:
        """Resources of which a queue is guaranteed some, or has a quota, by queue."""
        return [
            [r for r, name in enumerate(self.resources) if guaranteed[r] or nominal(queue, name) is not None]
            for guaranteed, queue in zip(self.guaranteed, self.queues, strict=True)
        ]

    def is_guaranteed(self, index: int, demand: Vector) -> bool:
        """Return whether a queue and those below it stay within what it is guaranteed if they use that much more.

        Only resources count of which a quota is set there.
        """
        limited = self.limited(index, demand)
        return bool(limited) and all(demand[r] <= self.guarantee_left(index, r) for r in limited)

    def guarantee_left(self, index: int, r: int) -> int:
        """Return how much more of a resource a queue and those below it may use within what it is guaranteed."""
        return self.guaranteed[index][r] - self.usage[r][index] - self._kept_below(index, r)

    def limited_resources(self, index: int) -> list[int]:
        """Return the resources of which a queue is guaranteed some, or has a quota."""
        return self._limited[index]

    def _kept_below(self, index: int, r: int) -> int:
        """Return what is used in the queues below of what they keep to themselves, which is not charged to this one."""
        return sum(
            min(self.usage[r][child], self._local[r][child]) + self._kept_below(child, r)
            for child in self.children[index]
        )

    @cached_property
    def is_flat(self) -> bool:
        """True if any queue, and any user, may use what no other does: then the root's quota alone binds."""
        limits = ((queue.borrowing, queue.lending, queue.user_limits) for queue in self.queues)
        figures = (figure for amounts in limits for amount in amounts for _, figure in limit_figures(amount))
        return len(self.resources) == len(RESOURCES) and all(figure is None for figure in figures)

    @property
    def binds_before_nodes(self) -> bool:
        """True if a limit may keep a job waiting although there is room for it on the nodes."""
        return self.has_limits and not (self.is_flat and all(self._is_root_unbounded))

    def path(self, index: int) -> Iterator[int]:
        """Yield a queue and those above it, the root last."""
        while index >= 0:
            yield index
            index = self.parent[index]

    def max_priority(self, name: str) -> int | None:
        """Return the highest priority that a user may ask for in a queue, by its limit and those above it, or None."""
        limits = (self.queues[index].user_limits.priority for index in self.path(self.index[name]))
        return min((limit for limit in limits if limit is not None), default=None)

    def subtree(self, index: int) -> list[str]:
        """Return the name of a queue and of those below it."""
        below = [index]
        for ancestor in below:
            below += self.children[ancestor]
        return [self.queues[position].name for position in below]

    def local_quota(self, index: int, r: int) -> int:
        """Return what a queue keeps from its parent; the root keeps everything."""
        return self._local[r][index]

    def available(self, index: int, r: int, *, as_set: bool = False) -> int:
        """Return how much more of resource r a queue may use now.

        With `as_set` only quotas count that were set, not the capacity of the cluster, which is the quota of a root
        without one.
        """
        return self._room_up_the_tree(index, r, self.usage[r].__getitem__, as_set=as_set)

    def subtree_usage(self, r: int) -> list[int]:
        """Return what is used of resource r in each queue and all below it, including local quotas."""
        below = [0] * len(self.queues)
        for index in range(len(below) - 1, 0, -1):
            below[self.parent[index]] += below[index] + min(self.usage[r][index], self._local[r][index])
        return [used + more for used, more in zip(self.usage[r], below, strict=True)]

    def potential(self, index: int, r: int, *, as_set: bool = False) -> int:
        """Return how much of resource r a queue may use when no other queue uses any."""
        return self._room_up_the_tree(index, r, _no_usage, as_set=as_set)

    def _room_up_the_tree(self, index: int, r: int, usage: Callable[[int], int], *, as_set: bool) -> int:
        if self.parent[index] < 0:
            return UNLIMITED if as_set and self._is_root_unbounded[r] else self.subtree_quota[r][index] - usage(index)
        local_quota, used = self._local[r][index], usage(index)
        from_parent = self._room_up_the_tree(self.parent[index], r, usage, as_set=as_set)
        borrowing = self._borrowing[r][index]
        if borrowing is not None:
            lent, taken = self.subtree_quota[r][index] - local_quota, max(0, used - local_quota)
            from_parent = min(from_parent, lent - taken + borrowing)
        return max(0, local_quota - used) + from_parent

    def wanted(self, shape: Shape) -> Vector:
        """Return what the whole gang requests of each resource before it is placed.

        For a type that it names, requests for any type count too: they may come to be of that one.
        """
        if not self.types:
            return (*need(shape), *self._extended_need(shape))
        of_type = _gpu_milli_by_type(shape)
        any_type = of_type.get(None, 0)
        of_types = (of_type[kind] + any_type if kind in of_type else 0 for kind in self.types)
        return (*need(shape), *of_types, *self._extended_need(shape))

    def max_demand(self, shape: Shape) -> Vector:
        """Return `wanted` with requests for any type counted for every type: what to hold for a pending gang."""
        if not self.types:
            return (*need(shape), *self._extended_need(shape))
        of_type = _gpu_milli_by_type(shape)
        of_types = (of_type.get(kind, 0) + of_type.get(None, 0) for kind in self.types)
        return (*need(shape), *of_types, *self._extended_need(shape))

    def taken(self, shape: Shape, shares: Iterable[NodeShare], type_of: Callable[[str], str]) -> Vector:
        """Return what the whole gang takes of each resource where it is placed; `type_of` has the type of a node."""
        if not self.types:
            return (*need(shape), *self._extended_need(shape))
        held = dict.fromkeys(self.types, 0)
        for share in shares:
            gpu_type = type_of(share.node)
            if gpu_type in held:
                held[gpu_type] += shape.gpu_milli_of(share.part)
        return (*need(shape), *held.values(), *self._extended_need(shape))

    def _extended_need(self, shape: Shape) -> Vector:
        """Return what the whole gang uses of each extended resource that some queue has a quota of."""
        if not self._extended:
            return ()
        sums = Counter[str]()
        for part in shape.parts:
            sums.update({name: part.nodes * amount for name, amount in part.extended})
        return tuple(sums[name] for name in self._extended)

    def closed_types(self, name: str, shape: Shape, *, ever: bool = False) -> tuple[str, ...]:
        """Return types of which the queue may not use as many GPUs as the gang requests without naming a type.

        They are closed to the gang, now or `ever`. No type is closed to a gang that names one for each GPU.
        """
        if not self.types or not _gpu_milli_by_type(shape).get(None, 0):
            return ()
        queue_index, max_demand = self.index[name], self.max_demand(shape)
        types, limit_of = enumerate(self.types, start=len(RESOURCES)), self.potential if ever else self.available
        return tuple(gpu_type for r, gpu_type in types if max_demand[r] > limit_of(queue_index, r))

    def exceeded_resource(self, name: str, demand: Vector, *, as_set: bool = False) -> int | None:
        """Return the first resource of which the queue may not use that much more, or None."""
        queue_index = self.index[name]
        for r, amount in enumerate(demand):
            if amount and amount > self.available(queue_index, r, as_set=as_set):
                return r
        return None

    def charge(self, name: str, amounts: Vector) -> None:
        """Add to the usage of a queue, or subtract negative amounts that were charged before."""
        for r, amount in enumerate(amounts):
            if amount:
                self._add(self.index[name], r, amount)

    def charge_user(self, name: str, user: str, gpu_milli: int, node_ms: int, jobs: int = 0) -> None:
        """Add to what a user holds in a queue and all above it."""
        for index in self.path(self.index[name]):
            key = (index, user)
            before = self.users.get(key, NO_CHARGE)
            self._set_user_charge(
                key,
                before._replace(
                    gpu_milli=before.gpu_milli + gpu_milli, node_ms=before.node_ms + node_ms, jobs=before.jobs + jobs
                ),
            )

    def charge_period(self, name: str, user: str, nodes: int, stays_ms: int) -> None:
        """Add what that many nodes for that long use of the node time of a period; negative nodes take it back."""
        for index in self.path(self.index[name]) if self.node_time_limits else ():
            limit = self.node_time_limits.get(index)
            if limit is not None:
                before = self.users.get((index, user), NO_CHARGE)
                period_ms = before.period_ms + nodes * min(stays_ms, limit.per_ms)
                self._set_user_charge((index, user), before._replace(period_ms=period_ms))

    def used_in_period_ms(self, index: int, user: str) -> int:
        """Return the node time that ended attempts of a user used in a queue, and below it, within its period."""
        limit, known = self.node_time_limits[index], self._period_sums.get((index, user))
        used = self.node_time.used(self._subtrees_limited[index], user, limit, known)
        self._period_sums[index, user] = used
        return used.node_ms

    def next_slide_ms(self, now_ms: int) -> int | None:
        """Return when time alone may let a user use more of the node time of a period; None if it does not."""
        return self.node_time.next_leave_ms(now_ms, self.node_time_limits.values())

    def _set_user_charge(self, key: tuple[int, str], charge: UserCharge) -> None:
        if charge != NO_CHARGE:
            self.undo.put(self.users, key, charge)
        elif key in self.users:
            self.undo.drop(self.users, key)

    def _add(self, index: int, r: int, amount: int) -> None:
        """Add usage to a queue; what exceeds its local quota bubbles to the parent."""
        local_quota, used = self._local[r][index], self.usage[r][index]
        self.undo.put(self.usage[r], index, used + amount)
        bubbles = max(0, used + amount - local_quota) - max(0, used - local_quota)
        if bubbles and self.parent[index] >= 0:
            self._add(self.parent[index], r, bubbles)

    def _nominals(self, r: int, capacity: Vector) -> list[int]:
        """Return what each queue has beside what the queues below it are guaranteed."""
        resource = self.resources[r]
        quotas = [nominal(queue, resource) for queue in self.queues]
        if quotas[0] is None:
            # Without any quota only the nodes bind. With one, a guarantee must mean something: the root then has what
            # the cluster has.
            quotas[0] = UNLIMITED if all(quota is None for quota in quotas) else capacity[r]
        return [
            max(0, (quota or 0) - sum(self.guaranteed[child][r] for child in self.children[index]))
            for index, quota in enumerate(quotas)
        ]

    def _subtrees(self, r: int) -> list[int]:
        total = list(self.nominal[r])
        for index in range(len(self.queues) - 1, 0, -1):
            lending = figure_of(self.queues[index].lending, self.resources[r])
            total[self.parent[index]] += total[index] if lending is None else min(total[index], lending)
        return total

    def _unlent(self, index: int, r: int) -> int:
        lending = figure_of(self.queues[index].lending, self.resources[r])
        return max(0, self.subtree_quota[r][index] - lending) if lending is not None and self.parent[index] >= 0 else 0

    def _guarantees(self) -> list[Vector]:
        guarantees = [tuple(nominal(queue, resource) or 0 for resource in self.resources) for queue in self.queues]
        for index in reversed(range(len(self.queues))):
            below = [guarantees[child] for child in self.children[index]]
            sums = [sum(column) for column in zip(*below, strict=True)] if below else [0] * len(self.resources)
            guarantees[index] = tuple(max(own, total) for own, total in zip(guarantees[index], sums, strict=True))
        return guarantees


NO_CHARGE: Final = UserCharge()


def guarantee_conflict(queues: Iterable[Queue], name: str) -> str | None:
    """Return where a queue, or one above it, has less than those below it are guaranteed together, or None."""
    tree = QueueTree(queues, (0,) * len(RESOURCES), Undo())
    for index in tree.path(tree.index[name]):
        for r, resource in enumerate(tree.resources):
            scale = resource_scale(resource)
            figure = nominal(tree.queues[index], resource)
            guarantees = {tree.queues[child].name: tree.guaranteed[child][r] for child in tree.children[index]}
            if figure is not None and sum(guarantees.values()) > figure:
                guaranteed = {queue: amount // scale for queue, amount in guarantees.items() if amount}
                return (
                    f"nominal.{resource_label(resource)} of queue {tree.queues[index].name} is {figure // scale}, and "
                    f"the queues below it are guaranteed {sum(guaranteed.values())}: {join_amounts(guaranteed)}"
                )
    return None


def _no_usage(_at: int) -> int:
    return 0


def _gpu_milli_by_type(shape: Shape) -> dict[str | None, int]:
    """Return thousandths of GPUs that the gang requests, by the type it names."""
    by_type: dict[str | None, int] = {}
    for part in shape.parts:
        if part.has_gpus:
            # Of several types it gets one, like a gang that takes any.
            gpu_type = None if part.other_types else part.gpu_type
            by_type[gpu_type] = by_type.get(gpu_type, 0) + part.nodes * part.gpu_milli_of(0)
    return by_type


def _parents_first(queues: dict[str, Queue]) -> list[Queue]:
    """Return the root, then every queue after its parent, names in order; queues without a path to it are left out."""
    ordered = [queues[ROOT]]
    for parent in ordered:
        ordered += [queues[name] for name in sorted(queues) if queues[name].parent == parent.name]
    return ordered
