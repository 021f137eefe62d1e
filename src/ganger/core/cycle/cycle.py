"""One scheduling cycle: which gangs to stop and start, and which pending reasons to publish.

The plan is a function of state, time and policy. The state is left unchanged. These are its steps:

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

The steps from 1 to 8 run inside a trial of the state: each takes and gives nodes and quota as if its decisions were in
force, so that the next one needs to know nothing of it, and the end of the trial takes all of it back. Until step 6
nodes and quota only become fewer: that a gang was refused holds for the rest of the cycle, and is what makes the search
for candidates cheap (`core.cycle.viability`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Final

from ganger.core.cycle import defrag, lending, preemption, publish_reasons, resizing
from ganger.core.cycle.attempt import Preempts, Started, attempt, next_start, start_preemptor
from ganger.core.cycle.candidates import Candidates
from ganger.core.cycle.cycle_state import Cycle, Victim
from ganger.core.cycle.stops import find_stops, stop_of
from ganger.core.forecast.start_forecast import forecasts_to_record
from ganger.core.node_health import health_plan
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state import spares
from ganger.core.state.gang import ACTIVE, ClassKey, Gang
from ganger.core.state.runtime_estimate import extend_estimate
from ganger.core.state.state import State
from ganger.core.state.timers import timer_times_ms
from ganger.model import event as e
from ganger.model.decision import Cause, Decision, Expect, Plan, Start, Stop
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
Known = dict[ClassKey, PendingReason]


def _not_watched(step: str, /) -> None:
    """Take no notice of a step that begins."""


def plan(
    state: State,
    now_ms: int,
    policy: Policy,
    *,
    explains: bool = True,
    begin_step: Callable[[str], None] = _not_watched,
) -> Plan:
    """Return the decisions of one cycle, and when the next is due if no event occurs.

    That is None for never and `now_ms` for at once; `REPORTS` bring it no nearer. With `explains`, changed pending
    reasons are among the decisions, and forecasts are recorded; no other decision depends on either. `begin_step` is
    called with the name of each step, as it begins.
    """
    if not state.ready:
        return Plan(as_of=state.seq)

    # 0. What is decided of nodes and predictions changes what all other steps see: the next cycle, at once, has it.
    begin_step("repair")
    decided_first: tuple[Decision, ...] = health_plan.decide(state, now_ms)
    decided_first = decided_first or tuple(_outlived_predictions(state, now_ms))
    if decided_first:
        return Plan(as_of=state.seq, decisions=decided_first, next_wake_ms=now_ms)

    # 1. Gangs that end. Their nodes are not free before they have left them, in a later cycle.
    begin_step("stop")
    state.nodes.trim()
    _set_time(state, now_ms)
    stops = tuple(find_stops(state, now_ms))
    cycle = Cycle(state, now_ms, policy, {stop.gang: stop.notice_ms for stop in stops})
    with state.trial():
        # 1 to 5.
        starts, known = _place_pending(cycle, begin_step)
        # 6. After the pending gangs, so that nothing grows into nodes that one of them could have.
        begin_step("grow")
        replaced = lending.replace_spares(cycle) if state.timers.lenders else []
        starting = (_starting_gang(cycle, start) for start in starts)
        may_grow = bool(state.timers.elastic.by_unit) or any(gang.size < gang.max_nodes for gang in starting)
        resizes: list[Stop] = []
        if may_grow and not cycle.is_cluster_blocked:
            starts, resizes = resizing.grow(cycle, starts)
        starts += lending.lend(cycle, starts[-1] if starts else None) if state.timers.lenders else []
        # 7.
        searched = defrag.move_by_schedule(cycle) if state.document.defrag.every_ms else []
        # 8. Last: a reason is that of a gang which waits after all decisions.
        begin_step("publish")
        reasons = publish_reasons.changed_reasons(cycle, known) if explains else []

    preempted = list(map(_preempting_stop, cycle.victims))
    decisions: list[Decision] = [*stops, *preempted, *cycle.stops, *resizes, *replaced, *starts]
    decisions += [*cycle.reservations.new_decisions(), *reasons, *searched]
    is_due_at_once = _is_due_at_once(cycle, stops, [*stops, *preempted, *cycle.stops], starts)
    next_wake_ms = now_ms if is_due_at_once else _next_wake_ms(cycle, starts)
    errors = state.pending.forecast_errors
    is_forecast_due = explains and bool(decisions) and errors.is_due(state.seq, _pending_count(state))
    forecasts = forecasts_to_record(state, now_ms, policy, cycle.started_gangs) if is_forecast_due else ()
    return Plan(as_of=state.seq, decisions=tuple(decisions), next_wake_ms=next_wake_ms, forecasts=forecasts)


@contextmanager
def simulated_cycle(state: State, now_ms: int, policy: Policy, without: str = "") -> Iterator[tuple[Cycle, Known]]:
    """Simulate a cycle, with nodes and quotas as it would leave them inside the context.

    Yields the cycle and the pending reasons that it found while it tried gangs. `without` is a gang that does not take
    part.
    """
    _set_time(state, now_ms)
    ending = {stop.gang: stop.notice_ms for stop in find_stops(state, now_ms)} | ({without: 0} if without else {})
    with state.trial():
        cycle = Cycle(state, now_ms, policy, ending)
        _, known = _place_pending(cycle, _not_watched)
        yield cycle, known


def _set_time(state: State, now_ms: int) -> None:
    """Set the time of the parts of the state that what time alone changes is asked of."""
    state.allocations.now_ms = state.maintenance.now_ms = state.tree.node_time.now_ms = now_ms


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


def _place_pending(cycle: Cycle, begin_step: Callable[[str], None]) -> tuple[list[Start], Known]:
    """Try the gangs that may start (rest of step 1, to step 5); return the starts and the reasons found.

    Victims are recorded in the cycle.
    """
    state, known = cycle.state, Known()

    # 1. Gangs that are resized go on, before any pending gang could get what they lack.
    begin_step("go on")
    resumed = _next_starts(cycle)
    starts = list(resumed)
    if state.reservations.requested_moves is not None:
        defrag.move_on_request(cycle)  # 7, as soon as it is asked for
    if not state.pending.lanes(cycle.policy).by_key:
        return starts, known

    # 2 to 5. A candidate stays first until its outcome is recorded: an array is one candidate with many starts.
    begin_step("place")
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

    # 4, by the rules of the document: with what no pending gang could start on, and so only for what still waits.
    begin_step("preempt")

    def start(gang: Gang) -> bool:
        started = start_preemptor(cycle, gang, starts[-1] if starts else None)
        starts.extend(started)
        return bool(started)

    if _pending_count(state) and state.allocations:
        known |= preemption.preempt_by_rules(cycle, start)
    # A start of this very cycle may have given way to a preemptor.
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
            new, target = completed.attempt, completed.attempt.target
            if completed.size > completed.max_nodes:  # it was scaled meanwhile
                target = resizing.smaller(state, completed, completed.max_nodes)
            last_start = starts[-1] if starts else None
            starts.append(next_start(cycle, completed, (target, new.spares), new.granted_ms, last_start))
        elif cycle.now_ms >= (gang.retries.kept_until_ms or 0) or preemption.could_preempt(cycle, gang):
            cycle.stops.append(replace(stop_of(gang, Cause.NODE_LOST, 0), gives_up=True))
            cycle.ending[gang.id] = 0  # no preemptor stops it a second time
    return starts


def _preempting_stop(victim: Victim) -> Stop:
    stop = stop_of(victim.gang, Cause.RESIZED if victim.kept else Cause.PREEMPTED, victim.gang.notice_ms)
    return replace(stop, preemptor=victim.preemptor, rule=victim.rule, unsaved_ms=victim.unsaved_ms, shares=victim.kept)


# -- when the next cycle is due ----------------------------------------------------------------------------------------


def _is_due_at_once(cycle: Cycle, stops: Iterable[Stop], freeing: Sequence[Stop], starts: Iterable[Start]) -> bool:
    """Return whether the decisions of this cycle are themselves a reason for another one, without any event.

    `freeing` are the stops by which nodes become free; of `stops` none is for another gang.
    """
    state = cycle.state
    if cycle.limits.is_unfinished or cycle.is_unfinished:
        return True
    # Jobs may depend on one that ends by this very plan: it has no attempt whose end would be reported.
    ending = [state.gangs[stop.gang] for stop in stops if state.gangs[stop.gang].attempt.start is None]
    if any(gang.id in state.pending.dependents or gang.array in state.pending.dependents for gang in ending):
        return True
    # What borrows the spares of a gang that is stopped has to leave too, by a stop of its own.
    if state.timers.borrowers and any(stop.gang in state.timers.lenders for stop in freeing):
        return True
    # One that was scaled while it was resized frees nodes, or is to have more.
    scaled = (state.gangs.get(start.gang) for start in starts)
    if any(gang is not None and gang.state is GangState.RESIZING and gang.is_scaled_anew for gang in scaled):
        return True
    return any(state.gangs[stop.gang].is_short for stop in freeing)


def _next_wake_ms(cycle: Cycle, starts: list[Start]) -> int | None:
    """Return the first time at which time alone starts or stops a gang.

    That is a limit, the end of a pause, a change of the order, the end of a node's notice, the begin or end of
    maintenance, or the slide of a period that node time is limited in. The starvation threshold is not among them: from
    then on nodes are reserved, which is soon enough in the next cycle that could give them to another gang.
    """
    state, now_ms, policy = cycle.state, cycle.now_ms, cycle.policy
    starting = [
        replace(gang, state=GangState.STARTING, attempt=gang.attempt.next(start, now_ms))
        for start, gang in ((start, _starting_gang(cycle, start)) for start in starts)
    ]
    times_ms = [
        state.timers.next_ms(now_ms),
        state.maintenance.next_ms(now_ms),
        state.tree.next_slide_ms(now_ms) if state.pending.classes else None,
        *state.health.leaving.values(),
        health_plan.next_ms(state, now_ms),
        *cycle.wakes_ms,
        *chain.from_iterable(map(timer_times_ms, starting)),
    ]
    if policy.ORDERS_RUNNING:
        holding = [state.gangs[name] for name in state.allocations]
        # Of pending gangs only the first of each lane competes with running ones.
        heads = [lane.entries[0].gang for lane in state.pending.lanes(policy).by_key.values()]
        times_ms += [policy.next_key_change_ms(gang, now_ms) for gang in (*holding, *starting, *heads)]
    return min((time_ms for time_ms in times_ms if time_ms is not None and time_ms > now_ms), default=None)


def _starting_gang(cycle: Cycle, start: Start) -> Gang:
    return cycle.started_gangs.get(start.gang) or cycle.state.gangs[start.gang]


def _pending_count(state: State) -> int:
    """Return about how many gangs are pending."""
    return len(state.gangs) - len(state.allocations)
