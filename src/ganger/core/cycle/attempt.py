"""The attempt to start one pending gang, and its outcome: fit, then preempt, then reserve or hold capacity."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from ganger.core.cycle import preemption
from ganger.core.cycle.cycle_state import CURABLE, Cycle
from ganger.core.failure.save_interval import estimate_saves
from ganger.core.placement.start_check import (
    StartRequest,
    could_ever_start,
    exceeded_limit,
    find_placement,
    is_blocked_by_maintenance,
    over_quota,
    start_request,
)
from ganger.core.placement.suspect_nodes import suspects_to_avoid, takes_suspects
from ganger.core.reservations.capacity_forecast import Moved
from ganger.core.reservations.earliest_start import find_earliest_start
from ganger.core.state import job_arrays, spares
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import Shares
from ganger.model.decision import Start
from ganger.model.job_sections.checkpoint_spec import AUTO
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.units import DAY_MS

SLOW_MILLI: Final = 100
"""Lack of performance from which large gangs avoid a node where they can: a tenth."""
MEASUREMENT_HOLDS_MS: Final = 7 * DAY_MS
"""Time for which a measurement of a node is believed."""


@dataclass(frozen=True, slots=True)
class PossibleStart:
    """A start that a gang may make now.

    Attributes:
        shares: What it would start on.
        time_ms: Its time limit if it may start with less time than it requests.
        moved: The reservations of others that do not keep it from starting, and why.
    """

    shares: Shares
    time_ms: int | None = None
    moved: Moved = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The gang starts in this cycle, or those that start together.

    Attributes:
        starts: The decisions.
        moves: It may have moved reservations of others.
        is_last: The candidate stands for no more gangs; the head of an array stands for all its elements.
    """

    starts: list[Start]
    moves: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class Preempts:
    """Others are stopped for the gang, and capacity is held for it."""

    reason: PendingReason


@dataclass(frozen=True, slots=True)
class Blocked:
    """The gang waits without a reservation.

    Attributes:
        reason: Why.
        max_stay_of_others_ms: The longest stay with which other gangs of its kind might start.
    """

    reason: ReasonCode
    max_stay_of_others_ms: int = NEVER_MS


@dataclass(frozen=True, slots=True)
class Reserved:
    """The gang waits with a reservation; the attributes are those of `Blocked`."""

    reason: ReasonCode
    max_stay_of_others_ms: int = NEVER_MS


Outcome = Started | Preempts | Reserved | Blocked


def attempt(cycle: Cycle, candidate: Gang, last_start: Start | None) -> Outcome:
    """Try to start a pending gang, and do what may be done for it if it cannot start.

    For a starving gang or a preemptor capacity is held back from later ones. For a gang that the cluster did not admit
    nothing is taken from others: it may never be used. `last_start` is the cycle's latest start.
    """
    state, policy, limits, holds = cycle.state, cycle.policy, cycle.limits, cycle.holds
    if state.arrays.is_full(candidate):
        return Blocked(ReasonCode.ARRAY_LIMIT)

    # 1. Fit: a start that delays no reservation and uses nothing that is held for others.
    request = request_in_cycle(cycle, candidate)
    found = find_start(cycle, candidate, request)
    if isinstance(found, PossibleStart):
        return _start(cycle, candidate, found, last_start)

    # 2. Nothing is stopped, reserved or held for a gang that would not start after it either.
    reason = found.reason
    if candidate.retries.unadmitted or reason not in CURABLE or not could_ever_start(state, request):
        return found

    # 3. Preempt, under a policy that orders running gangs: for nodes, and for a quota that is the size of the cluster,
    # but not for one that is set, which its own queue has to free.
    waits_for_nodes = reason in (ReasonCode.NO_CAPACITY, ReasonCode.MAINTENANCE)
    if reason is ReasonCode.OVER_QUOTA:
        waits_for_nodes = over_quota(state, request, as_set=True) is None
    if policy.ORDERS_RUNNING and waits_for_nodes and not holds.holders_blocking(candidate):
        preempted = preemption.preempt_for(cycle, candidate)
        if preempted is not None:
            return Preempts(preempted)

    # 4. Strict order: no later gang starts. One that waits for its user's allowance blocks no other.
    reserved = Reserved(reason, found.max_stay_of_others_ms)
    if candidate.id in cycle.reservations.by_gang:
        return reserved
    if policy.STRICT_ORDER:
        if reason is ReasonCode.OVER_QUOTA and not cycle.is_queue_blocked(candidate.queue):
            holds.hold(candidate, reason, ())
        elif reason in (ReasonCode.NO_CAPACITY, ReasonCode.RESERVED, ReasonCode.MAINTENANCE):
            holds.hold_all_nodes(candidate)
        return found

    # 5. Reserve a start as far as the limits allow, or else hold for one cycle what a starving gang would start on
    # first: without that, smaller gangs would take each node as it becomes free, for ever.
    may_reserve = limits.may_reserve(candidate)
    if limits.reserve(candidate):
        return reserved
    if reason is ReasonCode.MAINTENANCE or not limits.starves(candidate) or not holds.may_hold(candidate.queue):
        return found
    if may_reserve or not candidate.is_forecastable:
        is_placeable = reason in (ReasonCode.NO_CAPACITY, ReasonCode.RESERVED)
        earliest = find_earliest_start(state, request, cycle.now_ms) if is_placeable else None
        holds.hold(candidate, reason, earliest.shares if earliest else ())
    else:
        holds.count_unreserved(candidate.queue)
    return found


def request_in_cycle(cycle: Cycle, gang: Gang) -> StartRequest:
    """Return the start request of a gang, which prefers suspect nodes so that they are left by large gangs."""
    return replace(start_request(gang), takes_suspects=takes_suspects(cycle.state, gang))


def start_preemptor(cycle: Cycle, gang: Gang, last_start: Start | None) -> list[Start]:
    """Start a gang on what is free, and held for others; return no start if it cannot start now."""
    found = find_start(cycle, gang, request_in_cycle(cycle, gang), uses_holds=True)
    return _start(cycle, gang, found, last_start).starts if isinstance(found, PossibleStart) else []


def find_start(cycle: Cycle, gang: Gang, request: StartRequest, *, uses_holds: bool = False) -> PossibleStart | Blocked:
    """Return where a gang may start, or why it may not.

    With `uses_holds` it may use what is held for others; so may a gang with a reservation: holds are for gangs that
    have none, and last one cycle.
    """
    state, reservations = cycle.state, cycle.reservations
    with cycle.holds.released() if uses_holds or gang.id in reservations.by_gang else nullcontext():
        # 1. Limits of the user and the queue, which no node can change.
        reason = exceeded_limit(state, request)
        if reason is not None:
            return Blocked(reason)

        # 2. Beside all reservations.
        found = reservations.find_start(gang, request)
        if found.shares is not None:
            return PossibleStart(_find_better_start(cycle, gang, request, found.shares))
        if not (reservations.by_gang or state.maintenance) or not find_placement(state, request.at_least):
            is_maintained = is_blocked_by_maintenance(state, request.at_least)
            return Blocked(ReasonCode.MAINTENANCE if is_maintained else ReasonCode.NO_CAPACITY)

        # 3. It is reservations, or maintenance to come, that keep it: at the cost of those that it may move. They are
        # found now: once it has started, its usage may put it behind them in the order.
        moved = reservations.movable_by(gang)
        shares = reservations.find_start(gang, request, [other for other, _ in moved]).shares if moved else None
        if shares is not None:
            return PossibleStart(shares, moved=moved)

        # 4. With less time than it asks for, if it accepts that.
        shortened = reservations.find_shortened_start(gang, request)
        if shortened is not None:
            shares, stays_ms = shortened
            return PossibleStart(shares, gang.ran_ms + stays_ms)
        return Blocked(ReasonCode.RESERVED, found.max_stay_of_others_ms)


def _find_better_start(cycle: Cycle, gang: Gang, request: StartRequest, shares: Shares) -> Shares:
    """Return a start without nodes that the gang has left, and with few suspect ones, or else `shares`.

    A large gang avoids slow nodes too. Faults go before performance: a gang that waits for a slow node loses less than
    one that ends.
    """
    left, suspicions, slow = gang.left_nodes, cycle.state.health.suspicions, _slow_nodes(cycle, gang)
    if not any(share.node in suspicions or share.node in left or share.node in slow for share in shares):
        return shares
    suspects = suspects_to_avoid(cycle.state, gang)
    if not (suspects or left or slow):
        return shares

    def start_with(count: int, avoided: tuple[str, ...] = ()) -> Shares | None:
        avoids = (*request.avoids, *left, *suspects[count:], *avoided)
        return cycle.reservations.find_start(gang, replace(request, avoids=avoids)).shares

    best = start_with(0, slow) if slow else None
    usual = cycle.state.document.node_health.suspicion.per_job
    return best or _start_with_fewest(start_with, usual, len(suspects)) or shares


def _start_with_fewest(start_with: Callable[[int], Shares | None], usual: int, most: int) -> Shares | None:
    """Return the start with the fewest suspect nodes, at least `usual` if not none; None if there is none with `most`.

    By bisection: a gang fits where it fits without some of the nodes.
    """
    best = start_with(0) or (start_with(usual) if 0 < usual < most else None)
    if best is not None or not most:
        return best
    best, low, high = start_with(most), min(usual, most), most
    while best is not None and high - low > 1:
        middle = (low + high) // 2
        fewer = start_with(middle)
        best, low, high = (best, middle, high) if fewer is None else (fewer, low, middle)
    return best


def _slow_nodes(cycle: Cycle, gang: Gang) -> tuple[str, ...]:
    """Return the nodes that a gang avoids where it can because of their performance: it is as fast as its slowest one.

    A measurement ends some time later: a node that is avoided is measured by no further job.
    """
    state, since_ms = cycle.state, cycle.now_ms - MEASUREMENT_HOLDS_MS
    slowness_milli = state.health.slowness_milli
    if not slowness_milli or gang.shape.all_nodes < state.document.node_health.suspicion.large:
        return ()
    return tuple(
        sorted(
            name
            for name, lack_milli in slowness_milli.items()
            if lack_milli >= SLOW_MILLI and (state.health.by_node[name].measured_ms or 0) > since_ms
        )
    )


def _start(cycle: Cycle, candidate: Gang, possible: PossibleStart, last_start: Start | None) -> Started:
    """Start what a candidate stands for, one gang or replica groups, and postpone the reservations in its way."""
    state, starts = cycle.state, list[Start]()
    gangs, is_last = next_to_start(cycle, candidate)
    for pending, shares in zip(gangs, _divided(possible.shares, len(gangs)), strict=True):
        placed = spares.split(pending, shares) if pending.job.spec.spares else (shares, ())
        start = next_start(cycle, pending, placed, possible.time_ms, starts[-1] if starts else last_start)
        # The rest of the cycle must know if it ends sooner.
        is_shorter = start.time_ms is not None
        gang = replace(pending, attempt=replace(pending.attempt, start=start)) if is_shorter else pending
        state.take(gang, shares)
        state.record_start(gang, cycle.now_ms)
        cycle.reservations.record_start(candidate.id, gang, shares)
        cycle.started_gangs[gang.id] = gang
        starts.append(start)
    cycle.has_no_victims = False  # its user's usage may now put other gangs of the user behind pending ones
    cycle.reservations.postpone(possible.moved)
    return Started(starts, bool(possible.moved), is_last)


def _divided(shares: Shares, groups: int) -> list[Shares]:
    """Return the shares of each replica group, with ranks of its own.

    They are divided in the order of their ranks, in which those that have to be in one domain follow each other.
    """
    if groups == 1:
        return [shares]
    ordered, nodes = sorted(shares, key=lambda share: share.ranks), len(shares) // groups
    parts = [tuple(ordered[first : first + nodes]) for first in range(0, len(ordered), nodes)]
    return [
        tuple(replace(share, ranks=tuple(rank - part[0].ranks[0] for rank in share.ranks)) for share in part)
        for part in parts
    ]


def next_start(
    cycle: Cycle, gang: Gang, placed: tuple[Shares, Shares], time_ms: int | None, last_start: Start | None
) -> Start:
    """Return the start of a gang's next attempt on shares with these spares, after the latest start of the cycle."""
    state, (shares, spare_shares), saves = cycle.state, placed, None
    checkpoint = gang.job.spec.checkpoint
    if checkpoint is not None and checkpoint.every_ms == AUTO:
        saves = estimate_saves(state, gang, len({share.node for share in shares}), cycle.now_ms)
    return Start(
        gang=gang.id,
        generation=gang.attempt.generation + 1,
        shares=shares,
        host=state.nodes.nodes[state.nodes.index[shares[0].node]].address,
        port=state.rendezvous_port(shares, last_start),
        time_ms=time_ms,
        skipped=gang.checkpoints.fallback.skipped,
        rollback=gang.checkpoints.rollback,
        saves=saves,
        spares=spare_shares,
        preflight_ms=_preflight_ms(cycle, gang, shares),
    )


def _preflight_ms(cycle: Cycle, gang: Gang, shares: Shares) -> int | None:
    """Return the time limit of the test of the nodes of an attempt, None if they are not tested.

    A gang of parts that differ is not: its nodes are not equal ones.
    """
    rules, health = cycle.state.document.node_health.preflight, cycle.state.health.by_node
    if rules.min_nodes is None or gang.shape.more:
        return None
    names = {share.node: None for share in shares}
    since_ms = cycle.now_ms - rules.every_ms
    records = (health.get(name) for name in names)
    is_tested = all(record is not None and (record.measured_ms or 0) > since_ms for record in records)
    return None if is_tested or len(names) < rules.min_nodes else rules.timeout_ms


def next_to_start(cycle: Cycle, candidate: Gang) -> tuple[list[Gang], bool]:
    """Return the gangs that a candidate stands for, and whether it has no more: an array head stands for many.

    They are one, or the replica groups that start together. The groups beside these follow in the next cycle, in which
    the head asks for one.
    """
    array = cycle.state.arrays.get(candidate.array or "")
    if array is None:
        return [candidate], True
    is_wide = array.starting_together > 1
    cycle.is_unfinished |= is_wide
    if not candidate.is_head:
        return [candidate], True
    count = cycle.started_elements.get(candidate.id, 0)
    end = cycle.started_elements[candidate.id] = count + array.starting_together
    elements = [job_arrays.element(candidate, index) for index in array.rest[count:end]]
    return elements, is_wide or end == len(array.rest)
