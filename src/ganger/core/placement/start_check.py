"""The start check: whether a gang may start now and if not, which constraint binds first. Nothing else answers this.

Order of the checks: user limits, quota, nodes. Cheap checks come first, and a limit that only its owner can change
comes before one that time resolves.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import NamedTuple

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.placement.place import place
from ganger.core.placement.unschedulable import MAX_HOLDERS, no_room
from ganger.core.queues.node_time import by_period, leaves_ms
from ganger.core.queues.quota import NO_CHARGE, UNLIMITED, QueueTree, need
from ganger.core.queues.quota_figures import GPU_TYPE_PREFIX
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.queue import slide_ms
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A gang as the checks see it, also a hypothetical one.

    for_ms: how long it stays, overriding its time limit.
    image: its container image, which nodes may have already.
    takes_suspects: it takes suspect nodes before others that are as good for it.
    jobs: the replica groups that start together, each of which is a job of its user; 1 for another gang.
    """

    queue: str
    user: str
    shape: Shape
    time_ms: int | None
    time_min_ms: int | None = None
    ran_ms: int = 0
    for_ms: int | None = None
    avoids: tuple[str, ...] = ()
    image: str = ""
    takes_suspects: bool = False
    jobs: int = 1

    @property
    def stays_ms(self) -> int:
        """Longest time for which it holds its nodes: the rest of its time limit."""
        return self.requested_stay_ms if self.for_ms is None else self.for_ms

    @property
    def requested_stay_ms(self) -> int:
        """The rest of its time limit, whatever shorter stay is tried."""
        return NEVER_MS if self.time_ms is None else max(1, self.time_ms - self.ran_ms)

    @property
    def node_ms(self) -> int:
        """The node-milliseconds it may use."""
        return self.shape.all_nodes * (self.time_ms or 0)

    def period_ms(self, per_ms: int) -> int:
        """Return the node-milliseconds it may use within a period of that length."""
        return self.shape.all_nodes * min(self.requested_stay_ms, per_ms)

    @property
    def at_least(self) -> "StartRequest":
        """This request with the minimum time that the gang accepts."""
        min_ms = self.time_min_ms
        return self if min_ms is None or min_ms >= self.stays_ms else self.lasting(min_ms)

    def lasting(self, stays_ms: int) -> "StartRequest":
        """Return the same request for a gang that stays for `stays_ms` only."""
        return replace(self, for_ms=stays_ms)


def start_request(gang: Gang) -> StartRequest:
    """Return the start request of a gang."""
    spec = gang.job.spec
    return StartRequest(
        queue=gang.queue,
        user=gang.job.user,
        shape=gang.shape,
        time_ms=spec.limits.time_ms,
        time_min_ms=spec.limits.time_min_ms,
        ran_ms=gang.ran_ms,
        avoids=gang.avoids,
        image=spec.image or "",
        jobs=gang.groups,
    )


def fit(state: State, request: StartRequest, now_ms: int) -> Shares | PendingReason:
    """Return where the gang may start now, or the first constraint that binds."""
    return over_limits(state, request) or check_quota(state, request, find_room(state, request, now_ms))


def over_limits(state: State, request: StartRequest) -> PendingReason | None:
    """Return the reason if the user or the queue exceeds a configured limit; the nodes are not considered."""
    return over_user_limits(state, request) or over_quota(state, request, as_set=True)


def check_quota(state: State, request: StartRequest, placement: Shares | PendingReason) -> Shares | PendingReason:
    """Return the result of `find_room`, unless the queue has no quota for the request.

    Quota comes second here so that on a full cluster the reason names the nodes, and not the quota of a root without a
    configured quota, which equals the nodes.
    """
    return placement if isinstance(placement, PendingReason) else over_quota(state, request) or placement


def find_room(state: State, request: StartRequest, now_ms: int) -> Shares | PendingReason:
    """Return a place on the nodes, with the minimum time if need be, or the reason why there is none.

    The result is the same for all gangs with this demand where no GPU type has a quota.
    """
    request = request.at_least
    shares = place_request(state, request) or maintenance_reason(state, request, now_ms)
    return shares or over_type(state, request) or no_room_reason(state, request, now_ms)


def find_placement(state: State, request: StartRequest) -> Shares | None:
    """Return where the gang may start now with all its time, or None, without determining a reason."""
    return None if exceeded_limit(state, request) else place_request(state, request)


def exceeded_limit(state: State, request: StartRequest) -> ReasonCode | None:
    """Return which limit the gang's user or queue exceeds, or None."""
    return exceeded_limit_in(state.tree, request)


def exceeded_limit_in(tree: QueueTree, request: StartRequest) -> ReasonCode | None:
    """Return the same for the usage in a tree."""
    limit = _user_limit(tree, request)
    if limit is not None:
        return limit.code
    return None if tree.exceeded_resource(request.queue, tree.wanted(request.shape)) is None else ReasonCode.OVER_QUOTA


def could_ever_start(state: State, request: StartRequest) -> bool:
    """Return whether the gang could start on the nodes in service if no other gang held anything."""
    tree = state.tree
    queue = tree.index[request.queue]
    if any(amount and amount > tree.potential(queue, r) for r, amount in enumerate(tree.wanted(request.shape))):
        return False
    if _user_limit(tree, request, idle=True) is not None:
        return False
    closed = tree.closed_types(request.queue, request.shape, ever=True)
    return _place_outside(state.nodes.bare(), request, closed) is not None


def place_request(state: State, request: StartRequest) -> Shares | None:
    """Return a place on permitted nodes that stay available for its time, of GPU types that its queue has quota for."""
    unavailable = state.maintenance.unavailable(state.nodes, request.stays_ms) if state.maintenance else None
    return _place_avoiding(state, request, unavailable)


def _place_avoiding(state: State, request: StartRequest, unavailable: Ints | None) -> Shares | None:
    closed = state.tree.closed_types(request.queue, request.shape)
    if unavailable is None or not unavailable.size:
        return _place_outside(state.nodes, request, closed, on_probation(state, request))
    with state.nodes.excluding_at(unavailable):
        return _place_outside(state.nodes, request, closed, on_probation(state, request))


def is_blocked_by_maintenance(state: State, request: StartRequest) -> bool:
    """Return whether maintenance alone keeps a gang without a place from having one."""
    unavailable = bool(state.maintenance) and state.maintenance.unavailable(state.nodes, request.stays_ms).size
    return bool(unavailable) and _place_avoiding(state, request, None) is not None


def maintenance_reason(state: State, request: StartRequest, now_ms: int) -> PendingReason | None:
    """Return the reason of a gang that only maintenance keeps from a place, or None.

    It names the nodes that the gang would have otherwise, and until when, if all else stays the same.
    """
    if not is_blocked_by_maintenance(state, request):
        return None
    nodes, windows = state.nodes, state.maintenance
    needed = {share.node: None for share in _place_avoiding(state, request, None) or ()}
    ends = ((ms, windows.unavailable(nodes, request.stays_ms, ms)) for ms in windows.ends_ms(now_ms))
    until = (ms for ms, unavailable in ends if _place_avoiding(state, request, unavailable) is not None)
    binding = windows.overlapping(needed, now_ms, now_ms + request.stays_ms)
    missing = {node: None for window in binding for node in window.nodes if node in needed}
    return PendingReason(
        code=ReasonCode.MAINTENANCE,
        resource="nodes",
        need=len(needed),
        have=len(needed) - len(missing),
        scope=", ".join(window.id for window in binding),
        until_ms=next(until, None),
    )


def on_probation(state: State, request: StartRequest) -> tuple[str, ...]:
    """Return the nodes that are closed to a request of its size because they are on probation after a repair."""
    names = state.health.on_probation
    is_small = not names or request.shape.all_nodes <= state.document.node_health.probation.nodes
    return () if is_small else tuple(names)


def _place_outside(
    nodes: NodeTable, request: StartRequest, closed: tuple[str, ...], besides: tuple[str, ...] = ()
) -> Shares | None:
    nodes_and_types = zip(nodes.nodes, nodes.attributes.gpu_types, strict=True) if closed else ()
    excluded = [node.name for node, gpu_type in nodes_and_types if gpu_type in closed]
    preferred = nodes.preferring(request.image, suspects=request.takes_suspects)
    with nodes.excluding((*request.avoids, *besides, *excluded)), preferred:
        return place(nodes, request.shape)


def no_room_reason(state: State, request: StartRequest, now_ms: int) -> PendingReason:
    """Return the reason why the permitted nodes have no room for the gang."""
    closed = on_probation(state, request)
    with state.nodes.excluding((*request.avoids, *closed)):
        reason = no_room(state, request.shape, now_ms, request.stays_ms)
    own = tuple(name for name in reason.excluded if name in request.avoids)  # by its own rules
    return replace(reason, excluded=own) if closed else reason


def over_type(state: State, request: StartRequest) -> PendingReason | None:
    """Return the reason if only the quota of a GPU type keeps the gang from starting, or None."""
    closed = state.tree.closed_types(request.queue, request.shape)
    if not closed:
        return None
    with state.nodes.excluding((*request.avoids, *on_probation(state, request))):
        if place(state.nodes, request.shape) is None:
            return None
    resources, max_demand = state.tree.resources, state.tree.max_demand(request.shape)
    r = resources.index(GPU_TYPE_PREFIX + closed[0])
    return _quota_reason(state, request, r, max_demand[r])


def over_user_limits(state: State, request: StartRequest) -> PendingReason | None:
    """Return the reason for the first queue, upwards, in which the user exceeds a limit, or None."""
    limit = _user_limit(state.tree, request)
    if limit is None:
        return None
    holders = () if limit.code is ReasonCode.USER_TIME else _holders(state, request.user, limit.at)
    reason = PendingReason(
        code=limit.code,
        resource=limit.resource,
        need=limit.need,
        have=max(0, limit.have),
        limit=limit.limit,
        scope=state.tree.queues[limit.at].name,
        holders=holders,
    )
    if limit.code is not ReasonCode.USER_NODE_TIME_USED:
        return reason
    until_ms = _enough_left_ms(state, request, limit)
    return replace(reason, per_ms=state.tree.node_time_limits[limit.at].per_ms, until_ms=until_ms)


def _enough_left_ms(state: State, request: StartRequest, limit: "_UserLimit") -> int | None:
    """Return when the user, starting nothing else, has enough of the node time of a period left; None if unknown.

    That is unknown if gangs have to end of which nothing is sure to leave: they may run for longer than the period.
    """
    tree = state.tree
    used, queues, now_ms = tree.node_time_limits[limit.at], tree.subtree(limit.at), tree.node_time.now_ms
    leaving = list(tree.node_time.leaving(queues, request.user, used))
    for gang in state.allocations.oldest(user=request.user):
        if gang.queue in queues and gang.requested_stay_ms <= used.per_ms:
            began_ms = now_ms if gang.state is GangState.PENDING else gang.attempt.began_ms
            parts = by_period(began_ms, began_ms + gang.requested_stay_ms, slide_ms(used.per_ms))
            leaving += ((leaves_ms(bucket, used), gang.shape.all_nodes * part_ms) for bucket, part_ms in parts)
    leaving.sort()
    sums = accumulate(amount for _, amount in leaving)
    missing_ms = limit.need - limit.have
    enough = (leave_ms for (leave_ms, _), total in zip(leaving, sums, strict=True) if total >= missing_ms)
    return next(enough, None)


class _UserLimit(NamedTuple):
    """A user limit that binds, in queue `at`."""

    code: ReasonCode
    at: int
    resource: str
    need: int
    have: int
    limit: int


def _user_limit(tree: QueueTree, request: StartRequest, *, idle: bool = False) -> _UserLimit | None:
    """Return the first limit that binds; with `idle` as if the user held nothing and had used nothing."""
    gpu_milli, time_ms = need(request.shape)[0], request.time_ms or 0
    for queue in tree.path(tree.index[request.queue]):
        limits = tree.queues[queue].user_limits
        held, committed, jobs, period_ms = NO_CHARGE if idle else tree.users.get((queue, request.user), NO_CHARGE)
        if limits.jobs is not None and jobs + request.jobs > limits.jobs:
            return _UserLimit(ReasonCode.USER_JOBS, queue, "jobs", request.jobs, limits.jobs - jobs, limits.jobs)
        if limits.time_ms is not None and time_ms > limits.time_ms:
            return _UserLimit(ReasonCode.USER_TIME, queue, "time_ms", time_ms, limits.time_ms, limits.time_ms)
        # A request for none of a resource is allowed even when the limit was lowered below what is held.
        max_milli = None if limits.gpus is None else DEVICE_MILLI * limits.gpus
        if max_milli is not None and gpu_milli and gpu_milli > max_milli - held:
            return _UserLimit(ReasonCode.USER_GPUS, queue, "gpu_milli", gpu_milli, max_milli - held, max_milli)
        if limits.node_ms is not None and request.node_ms and request.node_ms > limits.node_ms - committed:
            return _UserLimit(
                ReasonCode.USER_NODE_TIME, queue, "node_ms", request.node_ms, limits.node_ms - committed, limits.node_ms
            )
        used = limits.node_time_used
        if used is not None:
            need_ms = request.period_ms(used.per_ms)
            past_ms = 0 if idle else tree.used_in_period_ms(queue, request.user)
            left_ms = used.limit_ms - period_ms - past_ms
            if need_ms > left_ms:
                return _UserLimit(ReasonCode.USER_NODE_TIME_USED, queue, "node_ms", need_ms, left_ms, used.limit_ms)
    return None


def _holders(state: State, user: str, queue: int) -> tuple[str, ...]:
    """Return gangs of the user that count in a queue."""
    tree = state.tree
    gangs = (gang.id for gang in state.allocations.oldest(user=user) if queue in tree.path(tree.index[gang.queue]))
    return tuple(islice(gangs, MAX_HOLDERS))


def over_quota(state: State, request: StartRequest, *, as_set: bool = False) -> PendingReason | None:
    """Return the reason for the first resource that exceeds the quota of the queue, or None.

    as_set: only configured quotas count, not the size of the cluster.
    """
    amounts = state.tree.wanted(request.shape)
    r = state.tree.exceeded_resource(request.queue, amounts, as_set=as_set)
    return None if r is None else _quota_reason(state, request, r, amounts[r])


def _quota_reason(state: State, request: StartRequest, r: int, amount: int) -> PendingReason:
    """Return the reason that the queue cannot use that much more of resource r."""
    tree = state.tree
    queue = tree.index[request.queue]
    own, all_holders = (
        tuple(
            islice(
                (gang.id for gang in state.allocations.oldest(queue=name) if state.quota_charges[gang.id][r]),
                MAX_HOLDERS,
            )
        )
        for name in (request.queue, "")
    )
    limit = tree.potential(queue, r)
    return PendingReason(
        code=ReasonCode.OVER_QUOTA,
        resource=tree.resources[r],
        need=amount,
        have=max(0, tree.available(queue, r)),
        limit=None if limit >= UNLIMITED // 2 else limit,
        scope=request.queue,
        holders=own or all_holders,
    )
