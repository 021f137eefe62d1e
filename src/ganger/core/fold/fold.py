"""The fold of events into a state: the only way that a state changes for good. One function a kind of event.

`refusal` says which events cannot be folded in now. Facts about an older generation are stale: the log never holds
them, so that the fold never has to tell them apart.
"""

from dataclasses import replace
from typing import Final

from ganger.core.failure import retry
from ganger.core.fold import fold_arrays, fold_attempt, fold_cluster, fold_policy
from ganger.core.state import maintenance
from ganger.core.state.gang import HEAD, STRIDE, Gang
from ganger.core.state.job_arrays import ArrayJob, untouched
from ganger.core.state.lifecycle import GANG, Act, GangStep, Member, reaction
from ganger.core.state.state import State
from ganger.core.state.time_accounting import Account
from ganger.model import event as e
from ganger.model.decision import Cause, Decision, Expect, ReservedStart, Start, Stop, Wait
from ganger.model.job import GangState, Job

Touched = tuple[Gang, ...]
GIVES_WAY = (Act.AGAIN, Act.ELSEWHERE)
TAKES_ONLY: Final = (e.Submitted, e.Started, e.Progressed, e.Checkpointed, e.Finished)
"""Events that free nothing sooner than was known."""
TOLD_APART: Final = (e.Decided, e.Cleared)
"""Events of which the state says whether they do."""


def refusal(state: State, event: e.Event) -> str | None:
    """Why the event cannot be folded in now, in words, or None."""
    match event:
        case e.Submitted(job=job):
            return _not_taken(state, job)
        case e.StopRequested(gang=gang):
            return None if state.is_live(gang) else f"{gang} is not pending or running"
        case e.SuspendRequested(gang=gang) | e.ResumeRequested(gang=gang) | e.PriorityChanged(gang=gang):
            return _cannot(state, gang, event)
        case e.Deleted(gang=gang):
            live = state.arrays.get(gang) or state.stand_in(gang)
            return f"{gang} is still {live.state}" if live else None
        case e.QueueSet(queue=queue):
            return fold_cluster.misplaced(state, queue)
        case e.QueueDeleted(queue=name):
            return fold_cluster.kept(state, name)
        case e.PolicySet():
            return fold_policy.refusal(state, event)
        case e.MaintenanceSet():
            return maintenance.refusal(state.windows, state.nodes, event)
        case e.MaintenanceCleared(id=name):
            return None if name in state.windows else f"there is no maintenance {name}"
        case (
            e.NodeLost(node=name)
            | e.NodeReturned(node=name)
            | e.NodeCordoned(node=name)
            | e.NodeUncordoned(node=name)
            | e.NodeDrained(node=name)
            | e.NodePreempted(node=name)
        ):
            return fold_cluster.no_node_step(state, name, event.kind)
        case (
            e.Started()
            | e.Progressed()
            | e.Checkpointed()
            | e.Resumed()
            | e.Slow()
            | e.Finished()
            | e.Done()
            | e.Failed()
            | e.Cleared()
        ):
            return fold_attempt.stale(state, event)
        case _:
            return None


def fold(state: State, stamped: e.Stamped) -> tuple[Gang | ArrayJob, ...]:
    """Change a state by one event. Return the gangs that it changed, ended ones too, then the arrays they belong to.

    ValueError: the event is out of order or refused.
    """
    if stamped.seq != state.seq + 1 or stamped.at_ms < state.at_ms:
        raise ValueError(
            f"event {stamped.seq} at {stamped.at_ms} after {state.seq} at {state.at_ms}: the log has a hole"
        )
    why = refusal(state, stamped.event)
    if why:
        raise ValueError(f"event {stamped.seq} ({stamped.event.kind}): {why}")
    state.seq, state.at_ms = stamped.seq, stamped.at_ms
    if not isinstance(stamped.event, TAKES_ONLY + TOLD_APART):
        state.soonest.clear()
    if state.at_ms >= state.standings.until_ms:
        state.recount()
    if state.windows:
        state.windows.forget(state.at_ms)
    touched = fold_arrays.recount(state, _changes(state, stamped), stamped.at_ms)
    for changed in touched:
        if isinstance(changed, Gang):
            state.due.note(changed, lives=state.gangs.get(changed.id) is changed)
    return touched


def _changes(state: State, stamped: e.Stamped) -> Touched:
    """Change a state by one event that is not refused. Return the gangs that it changed."""
    event, at_ms = stamped.event, stamped.at_ms
    match event:
        case e.ServerStarted():
            state.ready = False
            if stamped.seq == 1:
                state.port_turn = at_ms
            return ()
        case e.Submitted(job=job):
            return _submitted(state, job, stamped)
        case e.StopRequested(gang=name):
            asked = fold_arrays.meant(state, name)
            for gang in asked:
                gang.end_cause = Cause.USER
            return tuple(asked)
        case e.SuspendRequested(gang=name) | e.ResumeRequested(gang=name) | e.PriorityChanged(gang=name):
            able = [gang for gang in fold_arrays.meant(state, name) if _cannot_take(gang, event) is None]
            return tuple(_changed(state, gang, event, at_ms) for gang in able)
        case e.Deleted() | e.Described() | e.Unreadable():
            return ()
        case e.Decided(plan=plan):
            return _decided(state, plan.decisions, at_ms)
        case e.PolicySet():
            return fold_policy.take(state, event)
        case (
            e.NodesListed()
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
            return fold_cluster.take(state, event, at_ms)
        case _:
            return fold_attempt.take(state, event, at_ms)


# -- requests ---------------------------------------------------------------------------------------------------------


def _not_taken(state: State, job: Job) -> str | None:
    """Why a submission cannot be taken, or None."""
    if state.is_live(job.id):
        return f"job {job.id} exists already"
    over = [after.job for after in job.awaits if not state.is_live(after.job)]
    return f"{over[0]} has ended meanwhile" if over else fold_cluster.no_queue(state, job.spec.queue)


def _cannot(state: State, name: str, request: e.Event) -> str | None:
    """Why nothing of what a request means can be suspended, or resumed, as it stands; or why it is not there."""
    if not state.is_live(name):
        return f"{name} is not pending or running"
    if name in state.arrays:
        those = [gang for gang in state.gangs.values() if gang.array == name]
    else:
        those = [gang] if (gang := state.stand_in(name)) else []
    reasons = [_cannot_take(gang, request) for gang in those]
    return None if None in reasons else reasons[0]


def _cannot_take(gang: Gang, request: e.Event) -> str | None:
    name = gang.id
    suspended = gang.suspends or gang.state in (GangState.SUSPENDING, GangState.SUSPENDED)
    if isinstance(request, e.SuspendRequested):
        ending = suspended or gang.end_cause or gang.state in (GangState.FAILING, GangState.FINISHING)
        return f"{name} is {gang.state} already" if ending else None
    return f"{name} is not suspended" if isinstance(request, e.ResumeRequested) and not suspended else None


def submitted(job: Job, seq: int, at_ms: int) -> Gang:
    """The gang that a submission makes."""
    account = Account(opened_ms=at_ms, since_ms=at_ms)
    gang = Gang(job=job, shape=job.spec.shape, number=seq * STRIDE, submitted_ms=at_ms, since_ms=at_ms, account=account)
    gang.awaits = list(job.awaits)
    gang.number += HEAD if gang.is_head else 0
    return gang


def _submitted(state: State, job: Job, stamped: e.Stamped) -> Touched:
    at_ms = stamped.at_ms
    # What an untouched element comes to is told to nobody, so it gets a gang of its own.
    named = [
        gang for each in job.awaits if untouched(state.arrays, each.job) for gang in fold_arrays.meant(state, each.job)
    ]
    gang = submitted(job, stamped.seq, at_ms)
    if gang.is_head:
        fold_arrays.begin(state, gang)
    state.gangs[gang.id] = gang
    state.dependents.add(gang, state.is_live)
    state.enqueue(gang)
    return (*named, gang)


def _changed(
    state: State, gang: Gang, request: e.SuspendRequested | e.ResumeRequested | e.PriorityChanged, at_ms: int
) -> Gang:
    match request:
        case e.SuspendRequested() if gang.state is GangState.PENDING:
            fold_attempt.suspend(state, gang, at_ms)
        case e.SuspendRequested():
            gang.suspends = True
        case e.ResumeRequested():
            gang.suspends = False
            gang.forget_refusals()
            if (gang.state, GangStep.RESUME) in GANG:
                gang.step(GangStep.RESUME, at_ms)
            if gang.state is GangState.PENDING:
                state.enqueue(gang)
        case e.PriorityChanged(priority=priority):
            waits = gang.state is GangState.PENDING
            if waits:
                state.dequeue(gang)
            gang.job = replace(gang.job, spec=replace(gang.job.spec, priority=priority))
            gang.forget_refusals()
            if waits:
                state.enqueue(gang)
    return gang


# -- decisions --------------------------------------------------------------------------------------------------------


def _decided(state: State, decisions: tuple[Decision, ...], at_ms: int) -> Touched:
    touched: list[Gang] = []
    for decision in decisions:
        match decision:
            case Start():
                touched += _begin(state, decision, at_ms)
            case Stop():
                state.soonest.clear()
                touched += _stop(state, decision, at_ms)
            case Wait(gang_class=text, reason=reason):
                state.waits[text] = reason
            case ReservedStart():
                touched.append(_promised(state, decision))
            case Expect(gang=name, run_ms=run_ms):
                state.soonest.clear()
                state.outlive(state.gangs[name], run_ms)
                touched.append(state.gangs[name])
    return tuple(touched)


def _begin(state: State, start: Start, at_ms: int) -> Touched:
    gang = fold_arrays.meant(state, start.gang)[0]
    if _is_as_promised(state, gang, start, at_ms):
        del state.promises[gang.id]  # nothing is free sooner by it
    state.dequeue(gang)
    head = state.unpromise(gang.array or "")  # it was its head's
    state.port_turn = state.turn_after(start)
    gang.generation, gang.start, gang.began_ms = start.generation, start, at_ms
    gang.step(GangStep.PLACED, at_ms)
    if gang.generation > 1:
        gang.account.restart()
    gang.left, gang.started, gang.finished = list(gang.nodes), [], []
    gang.stepped_before = gang.stepped_before or gang.stepped
    gang.stepped, gang.failure, gang.stop_sent, gang.drains = False, None, None, False
    gang.leave_by_ms, gang.killed, gang.grace_ms = None, (), 0
    gang.resume(gang.checkpoint_step, ())
    gang.fallback = gang.fallback.begun()
    state.take(gang, start.shares)
    state.meter(gang)
    return (gang, *head)


def _is_as_promised(state: State, gang: Gang, start: Start, at_ms: int) -> bool:
    """Whether it takes all that it was promised, and not before its time. A share of a device takes less."""
    promise, shape = state.promises.get(gang.id), gang.shape
    if promise is None or promise.start_ms is None or at_ms < promise.start_ms:
        return False
    is_plain = not shape.more and not shape.has_share and start.time_ms is None
    return is_plain and promise.nodes == tuple(share.node for share in start.shares)


def _promised(state: State, promise: ReservedStart) -> Gang:
    if promise.start_ms is None:
        state.unpromise(promise.gang)
    else:
        if promise.gang in state.promises:
            state.release_early()  # what it was promised until now
        state.promises[promise.gang] = promise
    return state.gangs[promise.gang]


def _stop(state: State, stop: Stop, at_ms: int) -> Touched:
    gang = state.gangs[stop.gang]
    gang.stop_sent, gang.notice_until_ms = stop.cause, at_ms + stop.notice_ms
    if stop.cause not in retry.ENDINGS:
        return (gang,)  # a failure: what it leads to was decided when it came
    act = reaction(Member.WORKER, retry.ENDINGS[stop.cause], gang.phase).act
    if act in GIVES_WAY:
        gang.account.give_way(stop.cause)
        gang.step(GangStep.GIVE_WAY, at_ms)
    elif act is Act.SUSPEND:
        gang.account.give_way(stop.cause)
        gang.suspends = False
        gang.step(GangStep.SUSPEND, at_ms)
    elif act is Act.END:
        gang.end_cause = gang.end_cause or stop.cause
        if gang.state is GangState.PENDING:
            state.dequeue(gang)
        gang.step(GangStep.END, at_ms)
        if gang.ended:
            return (gang, *state.drop(gang, at_ms))
    return (gang,)
