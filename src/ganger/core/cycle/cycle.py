"""One scheduling cycle: which gangs to stop and start, and which pending reasons to publish.

The plan is a function of state, time and policy. The state is left unchanged.

0. repair    faulty nodes: cordons, drains, repairs, returns: a cycle of that alone
   predict   jobs without a limit that outlived their predicted run time: a cycle of that alone
1. stop      jobs with a stop request, or that have used up their time; what is left of a failed generation
   go on     jobs that are resized, as soon as the attempt before has left all nodes
2. order     heads of the lanes of pending gangs, by the policy
3. fit       each in order: user limits, quota, nodes and devices; a gang starts whole or not at all
4. preempt   under a policy that orders running gangs; under others, after all starts, by the rules of the document
5. reserve   a start for a gang that starves or is the first of its queue, or hold capacity for it
6. grow      spares in place of those that are gone, and elastic jobs, into nodes that nothing else needs
   lend      spares to pending jobs that give way
7. move      jobs to other nodes so that a larger one fits: when the policy says so; on request, before step 2
8. publish   pending reasons that have changed; now and then, forecasts of some starts, whose errors are learned
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Final

from ganger.core.cycle import defrag, lending, preemption, publish_reasons, resizing
from ganger.core.cycle.attempt import Preempts, Started, attempt, next_start, start_preemptor
from ganger.core.cycle.candidates import Candidates
from ganger.core.cycle.cycle import Cycle, Victim
from ganger.core.forecast.start_forecast import forecasts_to_record
from ganger.core.node_health import health_plan
from ganger.core.preemption.victim_order import unsaved_ms
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state import spares
from ganger.core.state.elastic_gangs import without_nodes
from ganger.core.state.gang import ACTIVE, STAYING, ClassKey, Gang
from ganger.core.state.runtime_estimate import extend_estimate
from ganger.core.state.state import Shares, State
from ganger.core.state.timers import deadline_ms, timer_times_ms
from ganger.model import event as e
from ganger.model.decision import Cause, Decision, Expect, Plan, PreemptionRule, Start, Stop
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason

REPORTS: Final = (
    e.Started,
    e.Progressed,
    e.Checkpointed,
    e.Resumed,
    e.CopyDropped,
    e.MetricsKept,
    e.Slow,
    e.Quiet,
    e.CodeEdited,
    e.Finished,
    e.Deleted,
    e.Described,
    e.Unreadable,
)
"""Events that change nothing that a plan depends on."""
UNSAVED: Final = (Cause.ROLLED_BACK, Cause.DIVERGED)
"""Causes of stops without a notice: the newest weights are not wanted."""
Known = dict[ClassKey, PendingReason]


def plan(state: State, now_ms: int, policy: Policy, *, explains: bool = True) -> Plan:
    """Return the decisions of one cycle, and when the next is due if no event occurs.

    That is None for never and `now_ms` for at once; `REPORTS` bring it no nearer. With `explains`, changed pending
    reasons are among the decisions, and forecasts are recorded; no other decision depends on either.
    """
    if not state.ready:
        return Plan(as_of=state.seq)
    decided_first: tuple[Decision, ...] = health_plan.decide(state, now_ms)
    decided_first = decided_first or tuple(_outlived_predictions(state, now_ms))
    if decided_first:
        return Plan(as_of=state.seq, decisions=decided_first, next_wake_ms=now_ms)
    state.nodes.trim()
    state.allocations.now_ms = state.maintenance.now_ms = state.tree.node_time.now_ms = now_ms
    stops = tuple(_stops(state, now_ms))
    cycle = Cycle(state, now_ms, policy, {stop.gang: stop.notice_ms for stop in stops})
    with state.trial():
        starts, known = _place_pending(cycle)
        replaced = lending.replace_spares(cycle) if state.timers.lenders else []
        starts, resizes = _grow(cycle, starts)
        starts += lending.lend(cycle, starts[-1] if starts else None) if state.timers.lenders else []
        searched = defrag.move_by_schedule(cycle) if state.document.defrag.every_ms else []
        reasons = publish_reasons.changed_reasons(cycle, known) if explains else []
    preempted = list(map(_preempting_stop, cycle.victims))
    decisions: list[Decision] = [*stops, *preempted, *cycle.stops, *resizes, *replaced, *starts]
    decisions += [*cycle.reservations.new_decisions(), *reasons, *searched]
    is_due_at_once = cycle.limits.is_unfinished or cycle.is_unfinished or _frees_others(state, stops)
    is_due_at_once = is_due_at_once or _recalls_spares(state, (*stops, *preempted))
    is_due_at_once = is_due_at_once or any(_was_scaled(state.gangs.get(start.gang)) for start in starts)
    freeing = (*stops, *preempted, *cycle.stops)
    is_due_at_once = is_due_at_once or any(state.gangs[stop.gang].is_short for stop in freeing)
    next_wake_ms = now_ms if is_due_at_once else _next_wake_ms(cycle, starts)
    errors = state.pending.forecast_errors
    is_forecast_due = explains and bool(decisions) and errors.is_due(state.seq, _pending_count(state))
    forecasts = forecasts_to_record(state, now_ms, policy, cycle.started_gangs) if is_forecast_due else ()
    return Plan(as_of=state.seq, decisions=tuple(decisions), next_wake_ms=next_wake_ms, forecasts=forecasts)


def _pending_count(state: State) -> int:
    """Return about how many gangs are pending."""
    return len(state.gangs) - len(state.allocations)


@contextmanager
def simulated_cycle(state: State, now_ms: int, policy: Policy, without: str = "") -> Iterator[tuple[Cycle, Known]]:
    """Simulate a cycle, with nodes and quotas as it would leave them inside the context.

    Yields the cycle and the pending reasons that it found while it tried gangs. `without` is a gang that does not take
    part.
    """
    state.allocations.now_ms = state.maintenance.now_ms = state.tree.node_time.now_ms = now_ms
    ending = {stop.gang: stop.notice_ms for stop in _stops(state, now_ms)} | ({without: 0} if without else {})
    with state.trial():
        cycle = Cycle(state, now_ms, policy, ending)
        _, known = _place_pending(cycle)
        yield cycle, known


def _stops(state: State, now_ms: int) -> Iterator[Stop]:
    """Yield stops of gangs that are to end, leave or pause, and of failed generations, oldest first."""
    timed_out = {name: state.gangs[name] for name in state.timers.expired(now_ms)}
    closed = frozenset(state.maintenance.affected_nodes(now_ms))
    maintained = {gang.id: gang for gang in state.on_nodes(closed) if gang.state in STAYING and gang.uses(closed)}
    for gang in sorted((state.timers.in_transition | timed_out | maintained).values(), key=lambda gang: gang.number):
        cause = _end_cause(gang, now_ms) or _failure_cause(gang) or _pause_cause(state, gang)
        cause = cause or (Cause.DRAINED if gang.id in maintained else None)
        if cause:
            stop = _stop(gang, cause, 0 if cause in UNSAVED else _notice_left_ms(gang, now_ms))
            if cause is Cause.PREEMPTED:
                stop = _recalling_stop(state, gang, stop, now_ms)
            if cause is Cause.RESIZED:
                stop = replace(stop, shares=resizing.smaller(state, gang, gang.max_nodes))
            if cause in (Cause.DRAINED, Cause.NODE_PREEMPTED, Cause.EVICTED):
                vacates = gang.attempt.vacates or next((node for node in gang.nodes if node in closed), "")
                stop = replace(stop, node=vacates, shares=_goes_on_without(state, gang, vacates))
            if cause is Cause.NODE_LOST and gang.attempt.failure is not None:
                keeps_ms = (gang.retries.kept_until_ms or now_ms) - now_ms
                stop = replace(stop, node=gang.attempt.failure.node, shares=gang.attempt.target, keeps_ms=keeps_ms)
            yield stop


def _recalling_stop(state: State, gang: Gang, stop: Stop, now_ms: int) -> Stop:
    """Return the stop of a gang whose nodes are not lent to it any more, with the node that the lender has lost."""
    lender = state.gangs.get(gang.attempt.recalled_by)
    resizes = lender is not None and lender.state is GangState.RESIZING
    lost = next((node for node in lender.nodes if not lender.uses([node])), "") if lender and resizes else ""
    unsaved = unsaved_ms(gang, now_ms)
    return replace(stop, preemptor=gang.attempt.recalled_by, rule=PreemptionRule.SPARE, node=lost, unsaved_ms=unsaved)


def _goes_on_without(state: State, gang: Gang, node: str) -> Shares:
    """Return what a gang that has to leave a node goes on with at once: a spare, or fewer nodes if it is elastic."""
    closed = (node, *state.maintenance.affected_nodes(state.maintenance.now_ms))
    leaves = [name for name in gang.nodes if name in closed or not spares.is_usable(state, name)]
    if gang.id in state.timers.elastic.surplus:
        return without_nodes(state.nodes, gang, state.allocations[gang.id], leaves)
    return spares.takeover(state, gang, leaves)


def _outlived_predictions(state: State, now_ms: int) -> Iterator[Expect]:
    """Yield new predictions for gangs without a limit that have outlived theirs.

    They make a cycle of their own; the next one, at once, counts on them.
    """
    for name in dict.fromkeys(state.timers.expired(now_ms)):
        gang = state.gangs[name]
        if gang.state in ACTIVE and gang.time_ms is None and gang.expected is not None:
            ran_ms = gang.ran_ms + now_ms - gang.attempt.began_ms
            run_ms = extend_estimate(gang.expected, ran_ms).run_ms
            yield Expect(gang=name, generation=gang.attempt.generation, run_ms=run_ms)


def _end_cause(gang: Gang, now_ms: int) -> Cause | None:
    """Return the cause why a gang has to end, or None if there is none or it is ending already.

    One that has to leave before its notice is over, because a user wants it to end now, is stopped once more: that stop
    has no notice, and so is the last one.
    """
    attempt = gang.attempt
    is_early = attempt.leave_by_ms is not None and attempt.leave_by_ms < attempt.notice_until_ms
    if gang.state is GangState.STOPPING and is_early and gang.notice_ends_ms(now_ms) is not None:
        return gang.end_cause
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
    attempt, is_ending = gang.attempt, gang.state in (GangState.REQUEUEING, GangState.FAILING)
    is_ending = is_ending or (gang.state is GangState.RESIZING and bool(gang.attempt.left))  # a spare takes over
    return attempt.failure.cause if attempt.failure and attempt.stop_sent is None and is_ending else None


def _pause_cause(state: State, gang: Gang) -> Cause | None:
    """Return why a gang has to be suspended, leave a node or be smaller, or why the rest of a finished one goes."""
    if gang.state in STAYING and (gang.suspends or gang.attempt.vacates):
        if gang.suspends:
            return gang.suspends
        return _vacate_cause(state, gang)
    if gang.state in ACTIVE and gang.goes_back:
        return Cause.ROLLED_BACK
    if gang.state in ACTIVE and gang.attempt.recalled_by:
        return Cause.PREEMPTED
    if gang.state in ACTIVE and gang.size > gang.max_nodes:
        return Cause.RESIZED
    return Cause.DONE if gang.state is GangState.FINISHING and gang.attempt.stop_sent is None else None


def _vacate_cause(state: State, gang: Gang) -> Cause:
    """Return why a gang has to leave a node."""
    node = gang.attempt.vacates
    if node in state.health.leaving:
        return Cause.NODE_PREEMPTED
    is_drained = gang.attempt.leave_by_ms is None or state.nodes.is_cordoned(node)
    return Cause.DRAINED if is_drained else Cause.EVICTED


def _notice_left_ms(gang: Gang, now_ms: int) -> int:
    """Return the notice, at most the time that is left until a node goes away, or that a user leaves it."""
    leave_by_ms = gang.attempt.leave_by_ms
    return gang.notice_ms if leave_by_ms is None else max(0, min(gang.notice_ms, leave_by_ms - now_ms))


def _place_pending(cycle: Cycle) -> tuple[list[Start], Known]:
    """Try the candidates (steps 2 to 5), recording victims in the cycle; return the starts and the reasons found."""
    starts = resumed = _next_starts(cycle)
    starts = [*resumed]
    known: Known = {}
    if cycle.state.reservations.requested_moves is not None:
        defrag.move_on_request(cycle)
    if not cycle.state.pending.lanes(cycle.policy).by_key:
        return starts, known
    candidates = Candidates(cycle)
    while (entry := candidates.next()) is not None:
        outcome = attempt(cycle, entry.gang, starts[-1] if starts else None)
        if isinstance(outcome, Started):
            starts += outcome.starts
            candidates.mark_started(outcome)
            continue
        if isinstance(outcome, Preempts):
            known[entry.gang.class_key] = outcome.reason
        candidates.mark_refused(entry, outcome)
        if cycle.is_cluster_blocked:
            break

    def start(gang: Gang) -> bool:
        started = start_preemptor(cycle, gang, starts[-1] if starts else None)
        starts.extend(started)
        return bool(started)

    if _pending_count(cycle.state) and cycle.state.allocations:
        known |= preemption.preempt_by_rules(cycle, start)
    starts = [start for start in starts if start.gang in cycle.started_gangs or start in resumed]
    return _without_parts(cycle, starts), known


def _without_parts(cycle: Cycle, starts: list[Start]) -> list[Start]:
    """Return the starts without those of replica groups of which one has given way to a preemptor meanwhile.

    The groups of a job start together the first time, or none.
    """
    for name in cycle.started_elements:
        groups = [gang.id for gang in cycle.started_gangs.values() if gang.array == name]
        if len(groups) < cycle.state.arrays[name].starting_together:
            for group in groups:
                del cycle.started_gangs[group]
            starts = [start for start in starts if start.gang not in groups]
    return starts


def _next_starts(cycle: Cycle) -> list[Start]:
    """Return the next starts of gangs that are resized and whose attempt before has left all nodes.

    What a gang lacks beside the nodes that it keeps is taken from the first cycle on, so that no later gang gets it
    while the last attempt is being stopped. It gives them up when it has kept them for its time, or can have more by
    waiting in its queue.
    """
    state, starts = cycle.state, list[Start]()
    for gang in sorted(state.timers.in_transition.values(), key=lambda gang: gang.number):
        if gang.state is not GangState.RESIZING or gang.end_cause or gang.suspends or gang.attempt.vacates:
            continue
        completed = resizing.complete(cycle, gang) if gang.missing_nodes else gang
        if gang.attempt.left or gang.id in cycle.ending or not spares.is_clear(state, gang):
            continue
        if completed is not None:
            starts.append(_next_start(cycle, completed, starts[-1] if starts else None))
        elif cycle.now_ms >= (gang.retries.kept_until_ms or 0) or preemption.could_preempt(cycle, gang):
            cycle.stops.append(replace(_stop(gang, Cause.NODE_LOST, 0), gives_up=True))
    return starts


def _next_start(cycle: Cycle, gang: Gang, last_start: Start | None) -> Start:
    attempt, target = gang.attempt, gang.attempt.target
    if gang.size > gang.max_nodes:  # it was scaled meanwhile
        target = resizing.smaller(cycle.state, gang, gang.max_nodes)
    return next_start(cycle, gang, (target, attempt.spares), attempt.granted_ms, last_start)


def _grow(cycle: Cycle, starts: list[Start]) -> tuple[list[Start], list[Stop]]:
    """Let elastic gangs grow (step 6); return the starts and the stops of gangs that are resized."""
    starting = (_starting_gang(cycle, start) for start in starts)
    is_any = bool(cycle.state.timers.elastic.by_unit) or any(gang.size < gang.max_nodes for gang in starting)
    return resizing.grow(cycle, starts) if is_any and not cycle.is_cluster_blocked else (starts, [])


def _stop(gang: Gang, cause: Cause, notice_ms: int) -> Stop:
    return Stop(gang=gang.id, generation=gang.attempt.generation, cause=cause, notice_ms=notice_ms)


def _preempting_stop(victim: Victim) -> Stop:
    stop = _stop(victim.gang, Cause.RESIZED if victim.kept else Cause.PREEMPTED, victim.gang.notice_ms)
    return replace(stop, preemptor=victim.preemptor, rule=victim.rule, unsaved_ms=victim.unsaved_ms, shares=victim.kept)


def _next_wake_ms(cycle: Cycle, starts: list[Start]) -> int | None:
    """Return the first time at which time alone starts or stops a gang.

    That is a limit, the end of a pause, a change of the order, the end of a node's notice, the begin or end of
    maintenance, or the slide of a period that node time is limited in. The starvation threshold is not among them: from
    then on nodes are reserved, which is soon enough in the next cycle that could give them to another gang.
    """
    now_ms, policy = cycle.now_ms, cycle.policy
    starting = [
        replace(gang, state=GangState.STARTING, attempt=gang.attempt.next(start, now_ms))
        for start, gang in ((start, _starting_gang(cycle, start)) for start in starts)
    ]
    times_ms = [
        _next_timer_ms(cycle.state, now_ms),
        *cycle.wakes_ms,
        *chain.from_iterable(map(timer_times_ms, starting)),
    ]
    if policy.ORDERS_RUNNING:
        holding = [cycle.state.gangs[name] for name in cycle.state.allocations]
        # Of pending gangs only the first of each lane competes with running ones.
        heads = [lane.entries[0].gang for lane in cycle.state.pending.lanes(policy).by_key.values()]
        times_ms += [policy.next_key_change_ms(gang, now_ms) for gang in (*holding, *starting, *heads)]
    return min((time_ms for time_ms in times_ms if time_ms is not None and time_ms > now_ms), default=None)


def _recalls_spares(state: State, stops: Iterable[Stop]) -> bool:
    """Return whether a gang that is stopped has lent its spares."""
    return bool(state.timers.borrowers) and any(stop.gang in state.timers.lenders for stop in stops)


def _was_scaled(gang: Gang | None) -> bool:
    """Return whether a gang that starts was scaled while it was resized: it frees nodes, or is to have more."""
    return gang is not None and gang.state is GangState.RESIZING and gang.is_scaled_anew


def _starting_gang(cycle: Cycle, start: Start) -> Gang:
    return cycle.started_gangs.get(start.gang) or cycle.state.gangs[start.gang]


def _next_timer_ms(state: State, now_ms: int) -> int | None:
    """Return the first time at which time alone changes a gang, a node, maintenance or what a user may use."""
    times_ms = (
        state.timers.next_ms(now_ms),
        state.maintenance.next_ms(now_ms),
        state.tree.next_slide_ms(now_ms) if state.pending.classes else None,
        *state.health.leaving.values(),
        health_plan.next_ms(state, now_ms),
    )
    return min((time_ms for time_ms in times_ms if time_ms is not None and time_ms > now_ms), default=None)


def _frees_others(state: State, stops: Iterable[Stop]) -> bool:
    """Return whether a gang that others depend on ends with this very plan, so that the next cycle is due at once."""
    ending = [state.gangs[stop.gang] for stop in stops if state.gangs[stop.gang].attempt.start is None]
    return any(gang.id in state.pending.dependents or gang.array in state.pending.dependents for gang in ending)
