"""One scheduling cycle: which gangs to stop and start, and which pending reasons to publish.

The plan is a function of state, time and policy. The state is left unchanged.

0. predict   jobs without a limit that outlived their predicted run time: a cycle of that alone
1. stop      jobs with a stop request, or that have used up their time; what is left of a failed generation
2. order     heads of the lanes of pending gangs, by the policy
3. fit       each in order: user limits, quota, nodes and devices; a gang starts whole or not at all
4. preempt   only under a policy that orders running gangs
5. reserve   a start for a gang that starves or is the first of its queue, or hold capacity for it
6. publish   pending reasons that have changed
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain

from ganger.core.cycle import preemption, publish_reasons
from ganger.core.cycle.candidates import Candidates
from ganger.core.cycle.cycle import CURABLE, Cycle
from ganger.core.cycle.cycle_skip import CycleSkip
from ganger.core.placement.start_check import could_ever_start, over_quota, start_request
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state import job_arrays
from ganger.core.state.gang import ACTIVE, ClassKey, Gang
from ganger.core.state.runtime_estimate import extend_estimate
from ganger.core.state.state import Shares, State
from ganger.core.state.timers import deadline_ms, timer_times_ms
from ganger.model.decision import Cause, Decision, Expect, Plan, Start, Stop
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode

WITHOUT_NOTICE_MS = 0
Known = dict[ClassKey, PendingReason]


def plan(state: State, now_ms: int, policy: Policy, skip: CycleSkip | None = None) -> Plan:
    """Return the decisions of one cycle, and when the next is due if no event occurs.

    That is None for never and `now_ms` for at once. `skip` is given where pending reasons are not read: then they are
    not published, and a cycle that would change nothing is skipped.
    """
    if not state.ready:
        return Plan(as_of=state.seq)
    if skip is not None and skip.may_skip(state, now_ms, policy):
        return Plan(as_of=state.seq, next_wake_ms=_next_timer_ms(state, now_ms))
    predictions = tuple(_outlived_predictions(state, now_ms))
    if predictions:
        return Plan(as_of=state.seq, decisions=predictions, next_wake_ms=now_ms)
    state.nodes.trim()
    state.allocations.now_ms = state.maintenance.now_ms = now_ms
    stops = tuple(_stops(state, now_ms))
    cycle = Cycle(state, now_ms, policy, {stop.gang: None for stop in stops})
    with state.trial():
        starts, known = _place_pending(cycle)
        reasons = publish_reasons.changed_reasons(cycle, known) if skip is None else []
    preempted = [_preempt(victim) for victim in cycle.victims]
    reservations = cycle.reservations.changes.values()
    decisions: list[Decision] = [*stops, *preempted, *starts, *reservations, *reasons]
    is_unfinished = cycle.is_unfinished
    if skip is not None:
        skip.record(None if stops or preempted or policy.ORDERS_RUNNING or is_unfinished else cycle)
    next_wake_ms = now_ms if is_unfinished or _frees_others(state, stops) else _next_wake_ms(cycle, starts)
    return Plan(as_of=state.seq, decisions=tuple(decisions), next_wake_ms=next_wake_ms)


@contextmanager
def simulated_cycle(state: State, now_ms: int, policy: Policy, without: str = "") -> Iterator[tuple[Cycle, Known]]:
    """Simulate a cycle, with nodes and quotas as it would leave them inside the context.

    Yields the cycle and the pending reasons that it found while it tried gangs. `without` is a gang that does not take
    part.
    """
    state.allocations.now_ms = state.maintenance.now_ms = now_ms
    ending = {stop.gang: None for stop in _stops(state, now_ms)} | ({without: None} if without else {})
    with state.trial():
        cycle = Cycle(state, now_ms, policy, ending)
        _, known = _place_pending(cycle)
        yield cycle, known


def _stops(state: State, now_ms: int) -> Iterator[Stop]:
    """Yield stops of gangs that are to end, leave or pause, and of failed generations, oldest first."""
    timed_out = {name: state.gangs[name] for name in state.timers.expired(now_ms)}
    maintained = {
        gang.id: gang for gang in state.on_nodes(state.maintenance.affected_nodes(now_ms)) if gang.state in ACTIVE
    }
    for gang in sorted((state.timers.in_transition | timed_out | maintained).values(), key=lambda gang: gang.number):
        cause = _end_cause(gang, now_ms) or _failure_cause(gang) or _pause_cause(gang)
        cause = cause or (Cause.DRAINED if gang.id in maintained else None)
        if cause:
            yield Stop(gang=gang.id, generation=gang.generation, cause=cause, notice_ms=_notice_left_ms(gang, now_ms))


def _outlived_predictions(state: State, now_ms: int) -> Iterator[Expect]:
    """Yield new predictions for gangs without a limit that have outlived theirs.

    They make a cycle of their own; the next one, at once, counts on them.
    """
    for name in dict.fromkeys(state.timers.expired(now_ms)):
        gang = state.gangs[name]
        if gang.state in ACTIVE and gang.time_ms is None and gang.expected is not None:
            ran_ms = gang.ran_ms + now_ms - gang.began_ms
            yield Expect(gang=name, generation=gang.generation, run_ms=extend_estimate(gang.expected, ran_ms).run_ms)


def _end_cause(gang: Gang, now_ms: int) -> Cause | None:
    """Return the cause why a gang has to end, or None if there is none or it is ending already."""
    if gang.state in (GangState.FINISHING, GangState.FAILING, GangState.STOPPING):
        return None
    if gang.end_cause:
        return gang.end_cause
    if gang.has_used_its_time:
        return Cause.TIME_LIMIT
    end_ms = deadline_ms(gang)
    if end_ms is None or now_ms < end_ms:
        return None
    return Cause.QUEUE_TIME if gang.state is GangState.PENDING else Cause.TIME_LIMIT


def _failure_cause(gang: Gang) -> Cause | None:
    ending = gang.state in (GangState.REQUEUEING, GangState.FAILING)
    return gang.failure.cause if gang.failure and gang.stop_sent is None and ending else None


def _pause_cause(gang: Gang) -> Cause | None:
    """Return the cause why a gang has to be suspended or leave a node, or why the rest of a finished one may go."""
    if gang.state in ACTIVE and (gang.suspends or gang.drains):
        if gang.suspends:
            return Cause.SUSPENDED
        return Cause.DRAINED if gang.leave_by_ms is None else Cause.NODE_PREEMPTED
    return Cause.DONE if gang.state is GangState.FINISHING and gang.stop_sent is None else None


def notice_ms(gang: Gang) -> int:
    """Return the time that a gang gets to save its work before it is stopped: none without a checkpoint section."""
    checkpoint = gang.job.spec.checkpoint
    return checkpoint.grace_ms if checkpoint and gang.state in ACTIVE else WITHOUT_NOTICE_MS


def _notice_left_ms(gang: Gang, now_ms: int) -> int:
    """Return the notice, at most the time that is left until a node goes away."""
    return notice_ms(gang) if gang.leave_by_ms is None else max(0, min(notice_ms(gang), gang.leave_by_ms - now_ms))


def _place_pending(cycle: Cycle) -> tuple[list[Start], Known]:
    """Try the candidates (steps 2 to 5), recording victims in the cycle; return the starts and the reasons found."""
    state = cycle.state
    starts: list[Start] = []
    known: Known = {}
    if not state.lanes(cycle.policy).by_key:
        return starts, known
    candidates = Candidates(cycle, partial(_urgent_since_ms, cycle))
    while (entry := candidates.next()) is not None:
        result = _attempt(cycle, entry.gang)
        if not isinstance(result, tuple):
            # Gangs of a class have the same reason: the class is done.
            if isinstance(result, PendingReason):
                known[entry.gang.class_key] = result
            candidates.mark_refused(entry, result.code if isinstance(result, PendingReason) else result)
            if cycle.is_cluster_blocked:
                break
            continue
        starting, is_last = _next_to_start(cycle, entry.gang)
        start = _start(cycle, starting, result, starts[-1] if starts else None, cycle.granted_ms.get(entry.gang.id))
        if start.time_ms is not None:
            starting = replace(starting, start=start)  # the rest of the cycle must know that it ends sooner
        state.take(starting, result)
        state.record_start(starting, cycle.now_ms)
        cycle.record_start(starting, entry.gang.id, result)
        cycle.started_gangs[starting.id] = starting
        starts.append(start)
        if is_last:
            candidates.mark_started()
    return starts, known


def _next_to_start(cycle: Cycle, gang: Gang) -> tuple[Gang, bool]:
    """Return the gang that a candidate stands for, and whether it is the last: an array head stands for many."""
    if not gang.is_head:
        return gang, True
    rest, count = cycle.state.arrays[gang.id].rest, cycle.started_elements.get(gang.id, 0)
    cycle.started_elements[gang.id] = count + 1
    return job_arrays.element(gang, rest[count]), count + 1 == len(rest)


def _preempt(victim: Gang) -> Stop:
    return Stop(gang=victim.id, generation=victim.generation, cause=Cause.PREEMPTED, notice_ms=notice_ms(victim))


def _urgent_since_ms(cycle: Cycle, queue: str, large: bool) -> int | None:  # noqa: FBT001 - a part of the question
    """Return the latest time since which a gang must have waited to be tried though the nodes have no room for it.

    Such a gang may preempt others, get a reservation or have capacity held. `large` is for gangs on many nodes; None:
    no gang may.
    """
    if cycle.policy.STRICT_ORDER:
        return None if cycle.is_blocked(queue) else cycle.now_ms
    if (cycle.policy.ORDERS_RUNNING and not cycle.has_no_victims) or cycle.may_try_reservation(queue):
        return cycle.now_ms
    rules = cycle.state.rules
    starvation_ms = rules.starvation.soonest_ms(cycle.policy.STARVATION_AGE_MS)
    ages_ms = [starvation_ms] if cycle.may_help_starving(queue, large=large) else []
    if large and cycle.may_try_reservation(queue, large=True):
        after_ms = rules.reservations.large.after_ms
        ages_ms.append(starvation_ms if after_ms is None else after_ms)
    return max((cycle.now_ms - age_ms for age_ms in ages_ms if age_ms is not None), default=None)


def _attempt(cycle: Cycle, gang: Gang) -> Shares | ReasonCode | PendingReason:
    """Return where the gang starts, or why it waits.

    For a starving gang or a preemptor capacity is held back from later ones. For a gang that the cluster did not admit
    nothing is taken from others: it may never be used.
    """
    if cycle.state.is_full(gang):
        return ReasonCode.ARRAY_LIMIT
    result = cycle.find_start(gang)
    if not isinstance(result, ReasonCode):
        return result
    reason = result
    if gang.unadmitted or reason not in CURABLE or not could_ever_start(cycle.state, start_request(gang)):
        return reason
    if cycle.policy.ORDERS_RUNNING and _is_preemption_useful(cycle, gang, reason) and not cycle.holders_blocking(gang):
        preempting = preemption.preempt_for(cycle, gang)
        if preempting:
            return preempting
    cycle.reserve(gang, reason)
    return reason


def _is_preemption_useful(cycle: Cycle, gang: Gang, reason: ReasonCode) -> bool:
    """Return whether a gang waits for nodes, not for a quota that is set."""
    if reason is ReasonCode.OVER_QUOTA:
        return over_quota(cycle.state, start_request(gang), as_set=True) is None
    return reason in (ReasonCode.NO_CAPACITY, ReasonCode.MAINTENANCE)


def _start(cycle: Cycle, gang: Gang, shares: Shares, last_start: Start | None, time_ms: int | None) -> Start:
    nodes = cycle.state.nodes
    return Start(
        gang=gang.id,
        generation=gang.generation + 1,
        shares=shares,
        host=nodes.nodes[nodes.index[shares[0].node]].address,
        port=cycle.state.rendezvous_port(shares, last_start),
        time_ms=time_ms,
        skipped=gang.fallback.skipped,
    )


def _next_wake_ms(cycle: Cycle, starts: list[Start]) -> int | None:
    """Return the first time at which time alone starts or stops a gang.

    That is a limit, the end of a pause, a change of the order, the end of a node's notice, or the begin or end of
    maintenance. The starvation threshold is not among them: from then on nodes are reserved, which is soon enough in
    the next cycle that could give them to another gang.
    """
    now_ms, policy = cycle.now_ms, cycle.policy
    starting = [
        replace(cycle.started_gangs[start.gang], state=GangState.STARTING, start=start, began_ms=now_ms)
        for start in starts
    ]
    times_ms = [_next_timer_ms(cycle.state, now_ms), *chain.from_iterable(map(timer_times_ms, starting))]
    if policy.ORDERS_RUNNING:
        holding = [cycle.state.gangs[name] for name in cycle.state.allocations]
        # Of pending gangs only the first of each lane competes with running ones.
        heads = [lane.entries[0].gang for lane in cycle.state.lanes(policy).by_key.values()]
        times_ms += [policy.next_key_change_ms(gang, now_ms) for gang in (*holding, *starting, *heads)]
    return min((time_ms for time_ms in times_ms if time_ms is not None and time_ms > now_ms), default=None)


def _next_timer_ms(state: State, now_ms: int) -> int | None:
    """Return the first time at which time alone changes a gang, the nodes or maintenance."""
    times_ms = (state.timers.next_ms(now_ms), state.maintenance.next_ms(now_ms), *state.leaving.values())
    return min((time_ms for time_ms in times_ms if time_ms is not None and time_ms > now_ms), default=None)


def _frees_others(state: State, stops: Iterable[Stop]) -> bool:
    """Return whether a gang that others depend on ends with this very plan, so that the next cycle is due at once."""
    ending = [state.gangs[stop.gang] for stop in stops if state.gangs[stop.gang].start is None]
    return any(gang.id in state.dependents or gang.array in state.dependents for gang in ending)
