"""The fold of events into a state, the only way that a state changes for good. One function for each kind of event.

`refusal` says which events cannot be folded. Events about an older generation are stale: the log never contains them,
so the fold need not recognize them.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ganger.core.failure import retry, rollback
from ganger.core.failure.reactions import Action, Member, reaction
from ganger.core.fold import fold_arrays, fold_attempt, fold_cluster, fold_health, fold_moves, fold_policy
from ganger.core.node_health import transitions
from ganger.core.state import spares
from ganger.core.state.gang import HEAD, STRIDE, Gang, WantedSize
from ganger.core.state.job_arrays import ArrayJob, array_of_unsplit
from ganger.core.state.lifecycle import GANG, GangStep
from ganger.core.state.state import State
from ganger.core.state.time_accounting import Account
from ganger.model import event as e
from ganger.model.decision import (
    Cause,
    Decision,
    Defragmented,
    Expect,
    PreemptionRule,
    ReservedStart,
    SpareNodes,
    Start,
    Stop,
    Wait,
)
from ganger.model.idle import idle_event as i
from ganger.model.job import GangState, Job, JobSpec
from ganger.model.node_health import health_event as h
from ganger.model.node_health.health_decision import ActOnNode, GroupFaults, OpenHealthBreaker
from ganger.model.units import HOUR_MS
from ganger.model.watch import watch_event as w

Touched = tuple[Gang, ...]
REQUEUES = (Action.RETRY, Action.RETRY_ELSEWHERE)
FREES_NOTHING: Final = (e.Submitted, e.Started, e.Progressed, e.Checkpointed, e.Finished)
"""Events that free nothing earlier than was known."""
MAY_FREE: Final = (e.Decided, e.Cleared)
"""Events for which that depends on the state."""


def refusal(state: State, event: e.Event) -> str | None:
    """Return the reason why the event cannot be folded now, or None."""
    match event:
        case e.Submitted(job=job):
            return _submission_refusal(state, job)
        case e.StopRequested(gang=gang):
            return None if state.is_live(gang) else f"{gang} is not pending or running"
        case (
            e.SuspendRequested(gang=gang)
            | e.ResumeRequested(gang=gang)
            | e.PriorityChanged(gang=gang)
            | e.ScaleRequested(gang=gang)
            | w.RollbackRequested(gang=gang)
            | e.NodesRestricted(gang=gang)
        ):
            return _change_refusal(state, gang, event)
        case e.Deleted(gang=gang):
            live = state.arrays.get(gang) or state.gang_or_head(gang)
            return f"{gang} is still {live.state}" if live else None
        case e.PolicySet():
            return fold_policy.refusal(state, event)
        case e.DefragRequested():
            return fold_moves.refusal(state, event)
        case e.QueueSet() | e.QueueDeleted() | e.MaintenanceSet() | e.MaintenanceCleared() | e.NodeChanged():
            return fold_cluster.refusal(state, event)
        case (
            e.NodeLost(node=name)
            | e.NodeReturned(node=name)
            | e.NodeCordoned(node=name)
            | e.NodeUncordoned(node=name)
            | e.NodeDrained(node=name)
            | e.NodePreempted(node=name)
        ):
            return fold_cluster.node_step_refusal(state, name, event.kind)
        case (
            h.NodeFaulty()
            | h.RepairEnded()
            | h.NodesMeasured()
            | h.RepairRequested()
            | h.NodeReturnRequested()
            | h.NodeRetired()
            | h.BreakerReset()
        ):
            return fold_health.refusal(state, event)
        case (
            e.Started()
            | e.Progressed()
            | e.Checkpointed()
            | e.Resumed()
            | e.CopyDropped()
            | e.MetricsKept()
            | e.Slow()
            | e.Quiet()
            | e.CodeEdited()
            | w.Anomaly()
            | i.Idle()
            | e.Evicted()
            | e.Finished()
            | e.Done()
            | e.Failed()
            | e.Cleared()
        ):
            return fold_attempt.staleness(state, event)
        case e.ServerStarted() | e.NodesListed() | e.Described() | e.Decided() | e.Unreadable():
            return None


def fold(state: State, stamped: e.Stamped) -> tuple[Gang | ArrayJob, ...]:
    """Change a state by one event and return the changed gangs, ended ones too, then the arrays they belong to.

    Raise ValueError if the event is out of order or refused.
    """
    if stamped.seq != state.seq + 1 or stamped.at_ms < state.at_ms:
        raise ValueError(
            f"event {stamped.seq} at {stamped.at_ms} after {state.seq} at {state.at_ms}: the log has a hole"
        )
    reason = refusal(state, stamped.event)
    if reason:
        raise ValueError(f"event {stamped.seq} ({stamped.event.kind}): {reason}")
    state.seq, state.at_ms = stamped.seq, stamped.at_ms
    if not isinstance(stamped.event, FREES_NOTHING + MAY_FREE):
        state.reservations.earliest_checked_ms.clear()
    if state.at_ms >= state.fair_shares.until_ms:
        state.recount()
    if state.maintenance:
        state.maintenance.forget(state.at_ms)
    touched = fold_arrays.recount(state, _fold(state, stamped), stamped.at_ms)
    note(state, touched)
    is_borrowed = bool(state.timers.borrowers) and not isinstance(stamped.event, FREES_NOTHING)
    if is_borrowed and (isinstance(stamped.event, e.Decided) or any(gang.job.spec.spares for gang in touched)):
        recalled = spares.recall(state, stamped.at_ms)
        note(state, recalled)
        touched = (*touched, *(gang for gang in recalled if gang not in touched))
    return touched


def note(state: State, touched: Iterable[Gang | ArrayJob]) -> None:
    """Update the timers of gangs that have changed."""
    for changed in touched:
        if isinstance(changed, Gang):
            state.timers.note(changed, live=state.gangs.get(changed.id) is changed)


def _fold(state: State, stamped: e.Stamped) -> Touched:
    """Change a state by one event that is not refused and return the changed gangs."""
    event, at_ms = stamped.event, stamped.at_ms
    match event:
        case e.ServerStarted():
            state.ready = False
            state.port_index = at_ms if stamped.seq == 1 else state.port_index
            transitions.await_reports(state, at_ms)
            return ()
        case e.Submitted(job=job):
            return _submit(state, job, stamped)
        case e.StopRequested(gang=name, now=now):
            gangs = fold_arrays.named_gangs(state, name)
            for gang in gangs:
                gang.end_cause = Cause.USER
                if now:
                    gang.attempt.leave_by_ms = at_ms
            return tuple(gangs)
        case (
            e.SuspendRequested(gang=name)
            | e.ResumeRequested(gang=name)
            | e.PriorityChanged(gang=name)
            | e.ScaleRequested(gang=name)
            | w.RollbackRequested(gang=name)
            | e.NodesRestricted(gang=name)
        ):
            changeable = [gang for gang in fold_arrays.named_gangs(state, name) if _gang_refusal(gang, event) is None]
            return tuple(_change(state, gang, event, at_ms) for gang in changeable)
        case e.Deleted() | e.Described() | e.Unreadable():
            return ()
        case e.DefragRequested():
            state.reservations.requested_moves = at_ms, event
            return ()
        case e.Decided(plan=plan):
            touched = _decide(state, plan.decisions, at_ms)
            pending = (forecast for forecast in plan.forecasts if _is_pending(state, forecast.gang))
            state.pending.forecast_errors.record(pending, state.seq, at_ms)
            return touched
        case e.PolicySet():
            return fold_policy.fold(state, event)
        case (
            e.NodesListed()
            | e.NodeChanged()
            | e.NodeLost()
            | e.NodeReturned()
            | e.NodeCordoned()
            | e.NodeUncordoned()
            | e.NodeDrained()
            | e.NodePreempted()
            | e.MaintenanceSet()
            | e.MaintenanceCleared()
            | e.QueueSet()
            | e.QueueDeleted()
        ):
            return fold_cluster.fold(state, event, at_ms)
        case (
            h.NodeFaulty()
            | h.RepairEnded()
            | h.NodesMeasured()
            | h.RepairRequested()
            | h.NodeReturnRequested()
            | h.NodeRetired()
            | h.BreakerReset()
        ):
            return fold_health.fold(state, event, at_ms)
        case _:
            return fold_attempt.fold(state, event, at_ms)


# -- requests ---------------------------------------------------------------------------------------------------------


def _submission_refusal(state: State, job: Job) -> str | None:
    """Return the reason why a submission cannot be accepted, or None."""
    if state.is_live(job.id):
        return f"job {job.id} exists already"
    ended = [after.job for after in job.awaits if not state.is_live(after.job)]
    return f"{ended[0]} has ended meanwhile" if ended else fold_cluster.unknown_queue(state, job.spec.queue)


def _change_refusal(state: State, name: str, request: e.Event) -> str | None:
    """Return the reason why none of the gangs that a request names can be changed that way, or None."""
    if not state.is_live(name):
        return f"{name} is not pending or running"
    if name in state.arrays:
        gangs = [gang for gang in state.gangs.values() if gang.array == name]
    else:
        gangs = [gang] if (gang := state.gang_or_head(name)) else []
    reasons = [_gang_refusal(gang, request) for gang in gangs]
    return None if None in reasons else reasons[0]


def _gang_refusal(gang: Gang, request: e.Event) -> str | None:
    name = gang.id
    suspended = gang.suspends or gang.state in (GangState.SUSPENDING, GangState.SUSPENDED)
    if isinstance(request, e.SuspendRequested):
        is_refused = suspended or gang.end_cause or gang.state in (GangState.FAILING, GangState.FINISHING)
        return f"{name} is {gang.state} already" if is_refused else None
    if isinstance(request, e.ScaleRequested):
        is_in_range = gang.is_elastic and request.nodes in gang.job.spec.sizes
        return None if is_in_range else f"{name} cannot have {request.nodes} nodes"
    if isinstance(request, w.RollbackRequested):
        return rollback.refusal(gang, request.step)
    if isinstance(request, e.NodesRestricted):
        return None if gang.attempt.start is None else f"{name} has its nodes"
    return f"{name} is not suspended" if isinstance(request, e.ResumeRequested) and not suspended else None


def new_gang(job: Job, seq: int, at_ms: int) -> Gang:
    """Return the gang that a submission creates."""
    account = Account(opened_ms=at_ms, since_ms=at_ms)
    gang = Gang(job=job, shape=job.spec.shape, number=seq * STRIDE, submitted_ms=at_ms, since_ms=at_ms, account=account)
    gang.awaits = job.awaits
    gang.number += HEAD if gang.is_head else 0
    return gang


def _submit(state: State, job: Job, stamped: e.Stamped) -> Touched:
    at_ms = stamped.at_ms
    # The end of an element is recorded only if it has a gang of its own.
    split_off = [
        gang
        for after in job.awaits
        if array_of_unsplit(state.arrays, after.job)
        for gang in fold_arrays.named_gangs(state, after.job)
    ]
    gang = new_gang(job, stamped.seq, at_ms)
    if gang.is_head:
        fold_arrays.begin(state, gang)
    state.gangs[gang.id] = gang
    state.pending.dependents.add(gang, state.is_live)
    state.enqueue(gang)
    return (*split_off, gang)


def _change(
    state: State,
    gang: Gang,
    request: e.SuspendRequested
    | e.ResumeRequested
    | e.PriorityChanged
    | e.ScaleRequested
    | e.NodesRestricted
    | w.RollbackRequested,
    at_ms: int,
) -> Gang:
    match request:
        case e.SuspendRequested() if gang.state is GangState.PENDING:
            if gang.attempt.stop_sent is Cause.IDLE_SUSPEND:
                gang.attempt.stop_sent = Cause.SUSPENDED  # now it is the user's request
            fold_attempt.suspend(state, gang, at_ms)
        case e.SuspendRequested():
            gang.suspends = Cause.SUSPENDED
        case e.ResumeRequested():
            gang.suspends = None
            gang.forget_refusals()
            if (gang.state, GangStep.RESUME) in GANG:
                gang.step(GangStep.RESUME, at_ms)
            if gang.state is GangState.PENDING:
                state.enqueue(gang)
        case e.PriorityChanged(priority=priority):
            _replace_spec(state, gang, replace(gang.job.spec, priority=priority), is_admitted_anew=True)
        case e.ScaleRequested(nodes=nodes):
            gang.wanted = WantedSize(nodes=nodes, at_ms=at_ms)
        case w.RollbackRequested(step=step):
            rollback.request(gang, step)
        case e.NodesRestricted(required=required):
            placement = gang.job.spec.placement
            placement = replace(placement, affinity=replace(placement.affinity, required=required))
            _replace_spec(state, gang, replace(gang.job.spec, placement=placement))
    return gang


def _replace_spec(state: State, gang: Gang, spec: JobSpec, *, is_admitted_anew: bool = False) -> None:
    """Replace the spec of a gang, which enters its queue again if it is pending.

    is_admitted_anew: what the cluster refused before is forgotten.
    """
    waits = gang.state is GangState.PENDING
    if waits:
        state.dequeue(gang)
    gang.job, gang.shape = replace(gang.job, spec=spec), spec.shape
    gang.shape = gang.shape_on(gang.attempt.shares) if gang.attempt.start else gang.shape
    if is_admitted_anew:
        gang.forget_refusals()  # before it enters: its place in the queue depends on them
    if waits:
        state.enqueue(gang)
    elif gang.id in state.quota_charges:
        state.quota_charges[gang.id] = state.quota_charges[gang.id]  # its columns have the priority


# -- decisions --------------------------------------------------------------------------------------------------------


def _decide(state: State, decisions: tuple[Decision, ...], at_ms: int) -> Touched:
    touched: list[Gang] = []
    for decision in decisions:
        match decision:
            case Start():
                touched += _start(state, decision, at_ms)
            case Stop():
                state.reservations.earliest_checked_ms.clear()
                touched += _stop(state, decision, at_ms)
            case Wait(gang_class=text, reason=reason):
                state.pending.reasons[text] = reason
            case ReservedStart():
                touched.append(_reserve(state, decision))
            case Defragmented():
                state.reservations.defragmented_ms = at_ms
            case SpareNodes(gang=name):
                touched.append(_hold_spares(state, state.gangs[name], decision, at_ms))
            case Expect(gang=name, run_ms=run_ms):
                state.reservations.earliest_checked_ms.clear()
                state.extend_expected_end(state.gangs[name], run_ms)
                touched.append(state.gangs[name])
            case ActOnNode() | GroupFaults() | OpenHealthBreaker():
                touched += fold_health.decide(state, decision, at_ms)
    return tuple(touched)


def _hold_spares(state: State, gang: Gang, decision: SpareNodes, at_ms: int) -> Gang:
    start = gang.attempt.start
    if start is not None:
        gang.attempt.start, gang.attempt.lost_spares = replace(start, spares=decision.shares), ()
        if decision.shares != start.spares:
            state.reallocate(gang, at_ms)
    return gang


def _is_pending(state: State, name: str) -> bool:
    return name in state.gangs and state.gangs[name].state is GangState.PENDING


def _start(state: State, start: Start, at_ms: int) -> Touched:
    gang = fold_arrays.named_gangs(state, start.gang)[0]
    if _is_as_reserved(state, gang, start, at_ms):
        del state.reservations[gang.id]  # it frees nothing earlier than was known
    state.pending.forecast_errors.score(gang.id, at_ms)
    if gang.state is GangState.RESIZING:
        state.end_allocation(gang, at_ms)
        gang.wanted = replace(gang.wanted, at_ms=at_ms) if gang.is_scaled_anew else gang.wanted
    else:
        state.dequeue(gang)
    head = state.drop_reservation(gang.array or "")  # an element's reservation is its head's
    state.port_index = state.next_port_index(start)
    state.record_start(gang, at_ms)
    gang.attempt, gang.checkpoints = gang.attempt.next(start, at_ms), gang.checkpoints.begun(start.generation)
    gang.retries = gang.retries.keeping_nothing()
    gang.shape = gang.shape_on(gang.attempt.shares)
    gang.step(GangStep.PLACED, at_ms)
    if gang.attempt.generation > 1:
        gang.account.restart()
    state.take(gang, gang.attempt.held)
    state.begin_usage(gang)
    return (gang, *head)


def _is_as_reserved(state: State, gang: Gang, start: Start, at_ms: int) -> bool:
    """Return whether the start uses all that was reserved, and not before its time. A share of a device uses less."""
    reserved, shape = state.reservations.get(gang.id), gang.shape
    if reserved is None or reserved.start_ms is None or at_ms < reserved.start_ms:
        return False
    is_plain = not shape.more and not shape.has_share and start.time_ms is None
    return is_plain and reserved.nodes == tuple(share.node for share in (*start.shares, *start.spares))


def _reserve(state: State, reserved: ReservedStart) -> Gang:
    if reserved.start_ms is None:
        state.drop_reservation(reserved.gang)
    else:
        if reserved.gang in state.reservations:
            state.reservations.release_early()  # its previous reservation ends
        state.reservations[reserved.gang] = reserved
    return state.gangs[reserved.gang]


def _stop(state: State, stop: Stop, at_ms: int) -> Touched:
    gang = state.gangs[stop.gang]
    gang.attempt.stop_sent, gang.attempt.notice_until_ms = stop.cause, at_ms + stop.notice_ms
    if stop.cause is Cause.PREEMPTED and stop.rule is not PreemptionRule.SPARE:
        gang.attempt.preempted_ms = at_ms
        lately = (preemption for preemption in state.history.preemptions if preemption[1] > at_ms - HOUR_MS)
        state.history.preemptions = (*lately, (gang.queue, at_ms))
        owner = state.gangs.get(stop.preemptor)
        if owner is not None and stop.rule is PreemptionRule.GUARANTEE and owner.retries.owner_since_ms is None:
            owner.retries = replace(owner.retries, owner_since_ms=at_ms)
            return (owner, *_react(state, gang, stop, at_ms))
    return _react(state, gang, stop, at_ms)


def _react(state: State, gang: Gang, stop: Stop, at_ms: int) -> Touched:
    """Apply the reaction of a gang to its stop; return the gangs that it changes."""
    failure = gang.attempt.failure
    if stop.gives_up:
        gang.step(GangStep.REQUEUE, at_ms)
        return (gang, *fold_attempt.abandon_target(state, gang, at_ms))
    if stop.cause not in retry.ENDINGS or (failure is not None and stop.cause is failure.cause):
        if gang.state is GangState.RESIZING:
            state.reallocate(gang, at_ms)  # now it is known until when it leaves its nodes
        return (gang,)  # a failure: the reaction was decided when it was reported
    action = reaction(Member.WORKER, retry.ENDINGS[stop.cause], gang.phase).action
    if action is Action.RESIZE or (action in REQUEUES and stop.shares):
        gang.account.requeue(stop.cause)
        gang.attempt.target, gang.attempt.vacates = stop.shares, ""
        state.reallocate(gang, at_ms)
        gang.step(GangStep.RESIZE, at_ms)
        return (gang,)
    if action in REQUEUES:
        gang.account.requeue(stop.cause)
        gang.step(GangStep.REQUEUE, at_ms)
    elif action is Action.SUSPEND:
        gang.account.requeue(stop.cause)
        gang.suspends = None
        gang.step(GangStep.SUSPEND, at_ms)
    elif action is Action.END:
        gang.end_cause = gang.end_cause or stop.cause
        if gang.state is GangState.PENDING:
            state.dequeue(gang)
        gang.step(GangStep.END, at_ms)
        if gang.ended:
            return (gang, *state.drop(gang, at_ms))
    if gang.attempt.target and gang.state is not GangState.RESIZING:
        return (gang, *fold_attempt.abandon_target(state, gang, at_ms))
    return (gang,)
