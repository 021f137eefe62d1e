"""Whether a gang may start now, and if not, which constraint binds first: the one place that answers both.

Called by `core.cycle.plan` for every class of pending gangs, by `core.explain.explain` for what-ifs. Order of the
checks: what the user may have, what the queue may have, what the nodes have; cheap ones first, and a limit that only
the owner can change before one that time cures."""

from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.placement.place import place
from ganger.core.placement.unschedulable import MAX_HOLDERS, no_room
from ganger.core.queues.quota import GPU_TYPE_PREFIX, NO_CHARGE, UNLIMITED, QueueTree, UserCharge, need
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares, State
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A gang as the checks see it: whose, where, how large, for how long, on which nodes not. Also a gang that does not
    exist (what-if). for_ms: it stays for so long only, whatever it asks for."""

    queue: str
    user: str
    shape: Shape
    time_ms: int | None
    time_min_ms: int | None = None
    ran_ms: int = 0
    for_ms: int | None = None
    avoids: tuple[str, ...] = ()

    @property
    def stays_ms(self) -> int:
        """How long it holds its nodes at most, if it starts; of its time what earlier generations had is gone."""
        if self.for_ms is not None:
            return self.for_ms
        return NEVER_MS if self.time_ms is None else max(1, self.time_ms - self.ran_ms)

    @property
    def node_ms(self) -> int:
        """Node-milliseconds it may use."""
        return self.shape.all_nodes * (self.time_ms or 0)

    @property
    def at_least(self) -> "StartRequest":
        """The same with as much time as it must have, if it may be granted less than all."""
        enough_ms = self.time_min_ms
        return self if enough_ms is None or enough_ms >= self.stays_ms else self.lasting(enough_ms)

    def lasting(self, stays_ms: int) -> "StartRequest":
        """The same if it stays for so long only."""
        return replace(self, for_ms=stays_ms)


def ask(gang: Gang) -> StartRequest:
    """What a gang asks for."""
    spec = gang.job.spec
    return StartRequest(
        queue=gang.queue,
        user=gang.job.user,
        shape=gang.shape,
        time_ms=spec.limits.time_ms,
        time_min_ms=spec.limits.time_min_ms,
        ran_ms=gang.ran_ms,
        avoids=gang.avoids,
    )


def fit(state: State, wanted: StartRequest, now_ms: int) -> Shares | PendingReason:
    """Where it may start now, or the first constraint that binds."""
    return over_limits(state, wanted) or within_quota(state, wanted, room(state, wanted, now_ms))


def over_limits(state: State, wanted: StartRequest) -> PendingReason | None:
    """What its user may not have, or its queue, by what somebody has set; of the nodes nothing."""
    return over_user_limits(state, wanted) or over_quota(state, wanted, as_set=True)


def within_quota(state: State, wanted: StartRequest, found: Shares | PendingReason) -> Shares | PendingReason:
    """What `room` found, unless the queue may not have it. On a full cluster the nodes are named, not the quota of a
    root that nobody gave one, which is what the nodes have."""
    return found if isinstance(found, PendingReason) else over_quota(state, wanted) or found


def room(state: State, wanted: StartRequest, now_ms: int) -> Shares | PendingReason:
    """Its place on the nodes, if need be with as much time as it must have, or why there is none: the same for all of
    its kind where no type has a quota."""
    wanted = wanted.at_least
    found = placed(state, wanted) or maintained(state, wanted, now_ms)
    return found or over_type(state, wanted) or without_room(state, wanted, now_ms)


def where(state: State, wanted: StartRequest) -> Shares | None:
    """Where it may start now with all its time, without a word of why not: for those who try many times."""
    return None if barred(state, wanted) else placed(state, wanted)


def barred(state: State, wanted: StartRequest) -> ReasonCode | None:
    """Whether its user may not have that much more, or its queue: which of them."""
    return barred_in(state.tree, wanted)


def barred_in(tree: QueueTree, wanted: StartRequest) -> ReasonCode | None:
    """The same, where so much is used as a tree says."""
    bar = _user_bar(tree, wanted, tree.users)
    if bar is not None:
        return bar.why
    return None if tree.exceeded_resource(wanted.queue, tree.wanted(wanted.shape)) is None else ReasonCode.OVER_QUOTA


def could_ever(state: State, wanted: StartRequest) -> bool:
    """Whether it could start if nobody else held anything, its nodes being in service as they are."""
    tree = state.tree
    at = tree.index[wanted.queue]
    if any(amount and amount > tree.potential(at, r) for r, amount in enumerate(tree.wanted(wanted.shape))):
        return False
    if _user_bar(tree, wanted, {}) is not None:
        return False
    closed = tree.closed_types(wanted.queue, wanted.shape, ever=True)
    return _place_but(state.nodes.bare(), wanted, closed) is not None


def placed(state: State, wanted: StartRequest) -> Shares | None:
    """Its place on nodes that it may have, that stay for as long as it does, of types that its queue may use as much
    of."""
    away = state.windows.away(state.nodes, wanted.stays_ms) if state.windows else None
    return _placed_without(state, wanted, away)


def _placed_without(state: State, wanted: StartRequest, away: Ints | None) -> Shares | None:
    closed = state.tree.closed_types(wanted.queue, wanted.shape)
    if away is None or not away.size:
        return _place_but(state.nodes, wanted, closed)
    with state.nodes.barring(away):
        return _place_but(state.nodes, wanted, closed)


def is_maintained(state: State, wanted: StartRequest) -> bool:
    """Whether a gang without a place has none because of maintenance alone."""
    there = bool(state.windows) and state.windows.away(state.nodes, wanted.stays_ms).size
    return bool(there) and _placed_without(state, wanted, None) is not None


def maintained(state: State, wanted: StartRequest, now_ms: int) -> PendingReason | None:
    """The answer for a gang without a place that has none because of maintenance alone: of the nodes that it would have
    otherwise, and until when, if the others stay as they are."""
    if not is_maintained(state, wanted):
        return None
    nodes, windows = state.nodes, state.windows
    there = {share.node: None for share in _placed_without(state, wanted, None) or ()}
    ends = ((ms, windows.away(nodes, wanted.stays_ms, ms)) for ms in windows.ends_ms(now_ms))
    over = (ms for ms, away in ends if _placed_without(state, wanted, away) is not None)
    binding = windows.meeting(there, now_ms, now_ms + wanted.stays_ms)
    gone = {node: None for window in binding for node in window.nodes if node in there}
    return PendingReason(
        why=ReasonCode.MAINTENANCE,
        resource="nodes",
        need=len(there),
        have=len(there) - len(gone),
        scope=", ".join(window.id for window in binding),
        until_ms=next(over, None),
    )


def _place_but(nodes: NodeTable, wanted: StartRequest, closed: tuple[str, ...]) -> Shares | None:
    shell_quoted_id = zip(nodes.nodes, nodes.gpu_types, strict=True) if closed else ()
    kept_out = [node.name for node, kind in shell_quoted_id if kind in closed]
    with nodes.without((*wanted.avoids, *kept_out)):
        return place(nodes, wanted.shape)


def without_room(state: State, wanted: StartRequest, now_ms: int) -> PendingReason:
    """Why the nodes that it may have hold no place for it."""
    with state.nodes.without(wanted.avoids):
        return no_room(state, wanted.shape, now_ms, wanted.stays_ms)


def over_type(state: State, wanted: StartRequest) -> PendingReason | None:
    """A type of GPUs of which its queue may not use that much more, where it would have room but for that."""
    closed = state.tree.closed_types(wanted.queue, wanted.shape)
    if not closed:
        return None
    with state.nodes.without(wanted.avoids):
        if place(state.nodes, wanted.shape) is None:
            return None
    resources, max_demand = state.tree.resources, state.tree.max_demand(wanted.shape)
    r = resources.index(GPU_TYPE_PREFIX + closed[0])
    return _short(state, wanted, r, max_demand[r])


def over_user_limits(state: State, wanted: StartRequest) -> PendingReason | None:
    """The first queue, upwards, in which its user may not hold that much more."""
    bar = _user_bar(state.tree, wanted, state.tree.users)
    if bar is None:
        return None
    holders = () if bar.why is ReasonCode.USER_TIME else _held_by(state, wanted.user, bar.at)
    return PendingReason(
        why=bar.why,
        resource=bar.resource,
        need=bar.need,
        have=max(0, bar.have),
        limit=bar.limit,
        scope=state.tree.queues[bar.at].name,
        holders=holders,
    )


class _Bar(NamedTuple):
    """A limit of a user that binds, in queue `at`."""

    why: ReasonCode
    at: int
    resource: str
    need: int
    have: int
    limit: int


def _user_bar(tree: QueueTree, wanted: StartRequest, users: dict[tuple[int, str], UserCharge]) -> _Bar | None:
    """The first limit that binds where users hold that much, by queue."""
    gpu_milli, time_ms = need(wanted.shape)[0], wanted.time_ms or 0
    for at in tree.path(tree.index[wanted.queue]):
        limits = tree.queues[at].user_limits
        held, committed, jobs = users.get((at, wanted.user), NO_CHARGE)
        if limits.jobs is not None and jobs >= limits.jobs:
            return _Bar(ReasonCode.USER_JOBS, at, "jobs", 1, limits.jobs - jobs, limits.jobs)
        if limits.time_ms is not None and time_ms > limits.time_ms:
            return _Bar(ReasonCode.USER_TIME, at, "time_ms", time_ms, limits.time_ms, limits.time_ms)
        # Who asks for none of it is not kept out by a limit that was lowered below what is held.
        most = None if limits.gpus is None else DEVICE_MILLI * limits.gpus
        if most is not None and gpu_milli and gpu_milli > most - held:
            return _Bar(ReasonCode.USER_GPUS, at, "gpu_milli", gpu_milli, most - held, most)
        if limits.node_ms is not None and wanted.node_ms and wanted.node_ms > limits.node_ms - committed:
            return _Bar(
                ReasonCode.USER_NODE_TIME, at, "node_ms", wanted.node_ms, limits.node_ms - committed, limits.node_ms
            )
    return None


def _held_by(state: State, user: str, at: int) -> tuple[str, ...]:
    """Gangs of the user that count in a queue."""
    tree = state.tree
    own = (gang.id for gang in state.shares.oldest(user=user) if at in tree.path(tree.index[gang.queue]))
    return tuple(islice(own, MAX_HOLDERS))


def over_quota(state: State, wanted: StartRequest, *, as_set: bool = False) -> PendingReason | None:
    """The first resource of which its queue may not use that much more; `as_set`: not because the cluster has none."""
    total = state.tree.wanted(wanted.shape)
    r = state.tree.exceeded_resource(wanted.queue, total, as_set=as_set)
    return None if r is None else _short(state, wanted, r, total[r])


def _short(state: State, wanted: StartRequest, r: int, amount: int) -> PendingReason:
    """Its queue may not use that much more of resource r."""
    tree = state.tree
    at = tree.index[wanted.queue]
    near, all_of_them = (
        tuple(islice((gang.id for gang in state.shares.oldest(queue=name) if state.charged[gang.id][r]), MAX_HOLDERS))
        for name in (wanted.queue, "")
    )
    limit = tree.potential(at, r)
    return PendingReason(
        why=ReasonCode.OVER_QUOTA,
        resource=tree.resources[r],
        need=amount,
        have=max(0, tree.available(at, r)),
        limit=None if limit >= UNLIMITED // 2 else limit,
        scope=wanted.queue,
        holders=near or all_of_them,
    )
