"""The fold of events about a generation: it runs, it stepped, it failed, it is gone.

Events about an older generation and repeated ones are stale: the log never contains them.
"""

from dataclasses import replace

from ganger.core.failure import checkpoint_fallback, retry, rollback
from ganger.core.failure.attribution import Blame, attribute
from ganger.core.failure.reactions import Action
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import Attempt
from ganger.core.state.lifecycle import GangStep
from ganger.core.state.state import Shares, State
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.idle.idle_event import Idle, IdleStep
from ganger.model.idle.idle_rules import STOP
from ganger.model.job import GangState
from ganger.model.watch import watch_event as w

Touched = tuple[Gang, ...]
NO_EXIT_RECORD = "its processes disappeared without an exit record"
"""Failure of an attempt that has left a node without a report of its end."""
ACTIVE = (GangState.STARTING, GangState.RUNNING)


def staleness(state: State, event: e.GenerationFact) -> str | None:
    """Return the reason why the event adds nothing, or None."""
    gang = state.gangs.get(event.gang)
    if isinstance(event, e.MetricsKept) and gang is not None and event.generation <= gang.attempt.generation:
        return None  # after the loss of a node the attempt may be over before they are known
    if gang is None or gang.attempt.generation != event.generation or gang.attempt.start is None:
        return f"generation {event.generation} of {event.gang} is over"
    return None if _is_new(gang, event) else f"{event.kind} of {event.gang} generation {event.generation} is known"


def _is_new(gang: Gang, event: e.GenerationFact) -> bool:
    """Return whether an event of the current generation says what is not known yet."""
    attempt, checkpoints = gang.attempt, gang.checkpoints
    match event:
        case e.Started(nodes=nodes):
            return bool(_unreported(attempt, nodes, attempt.started))
        case e.Finished(nodes=nodes):
            return bool(_unreported(attempt, nodes, attempt.finished))
        case e.Cleared(nodes=nodes):
            return any(node in attempt.left for node in nodes)
        case e.Checkpointed(step=step):
            return checkpoints.newest_step is None or step > checkpoints.newest_step
        case e.Resumed(step=step, skipped=skipped):
            has_saved = checkpoints.newest_step != checkpoints.resumed_step
            reported = (step, event.source, skipped, event.older_step)
            recorded = (checkpoints.resumed_step, checkpoints.resumed_job, checkpoints.flawed)
            return not has_saved and reported != (*recorded, checkpoints.fallback.older_step)
        case e.Failed():
            return attempt.failure is None and event.node in attempt.left
        case e.Evicted():
            return gang.state in ACTIVE and event.node in attempt.left
        case e.Done():
            return gang.state in ACTIVE
        case e.Progressed() | e.CopyDropped() | e.MetricsKept() | e.Slow() | e.Quiet() | e.CodeEdited() | w.Anomaly():
            return True
        case Idle():
            return gang.state is GangState.RUNNING and not (gang.end_cause or gang.suspends)


def _unreported(attempt: Attempt, nodes: tuple[str, ...], reported: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the nodes that the attempt is left on and that are not among the reported ones."""
    if len(nodes) == 1:
        return nodes if nodes[0] in attempt.left and nodes[0] not in reported else ()
    left, known = frozenset(attempt.left), frozenset(reported)
    return tuple(node for node in nodes if node in left and node not in known)


def fold(state: State, event: e.GenerationFact, at_ms: int) -> Touched:
    """Fold an event that is not stale; return the gangs that it changed."""
    gang = state.gangs[event.gang]
    attempt = gang.attempt
    match event:
        case e.Started(nodes=nodes):
            _start(gang, nodes, at_ms)
        case e.Progressed():
            if not attempt.stepped and gang.state is GangState.RUNNING:
                gang.account.first_step(at_ms, "recovery" if attempt.generation > 1 else "starting")
            attempt.stepped = True
            gang.checkpoints = gang.checkpoints.stepped()
        case e.Checkpointed() | e.Resumed():
            _checkpoint(gang, event, at_ms)
        case e.MetricsKept(metrics=metrics):
            gang.metrics = gang.metrics.followed_by(metrics)
        case w.Anomaly() | Idle():
            _react(state, gang, event)
        case e.Done():
            gang.step(GangStep.DONE, at_ms)
        case e.Evicted(node=node, notice_ms=notice_ms):
            _evict(attempt, node, at_ms + notice_ms)
        case e.Failed():
            fail(state, gang, event, at_ms)
        case e.Finished(nodes=nodes):
            attempt.finished += _unreported(attempt, nodes, attempt.finished)
        case e.Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
            attempt.killed = tuple(sorted((*attempt.killed, *killed)))
            attempt.grace_ms = max(attempt.grace_ms, grace_ms)
            return (gang, *clear(state, gang, nodes, at_ms))
        case e.CopyDropped() | e.Slow() | e.Quiet() | e.CodeEdited():
            pass
    return (gang,)


def _checkpoint(gang: Gang, event: e.Checkpointed | e.Resumed, at_ms: int) -> None:
    """Record a checkpoint that is complete, or that the attempt has resumed from."""
    if isinstance(event, e.Resumed):
        gang.account.go_back(event.step)
        gang.checkpoints = gang.checkpoints.resumed(event.step, event.skipped, event.older_step, event.source)
        return
    gang.checkpoints = gang.checkpoints.saved(event.step, event.took_ms, event.generation)
    gang.retries = gang.retries.progressed()
    gang.account.save(at_ms, event.step, event.took_ms, event.saved_ms)


def _react(state: State, gang: Gang, event: w.Anomaly | Idle) -> None:
    """Do what the policy says of a finding of the loss watch, or of a job that has been idle for its window."""
    if isinstance(event, w.Anomaly):
        rollback.react(gang, event, state.document.watch)
    elif event.step is IdleStep.ENDED and event.action == STOP:
        gang.end_cause = Cause.IDLE_STOP
    elif event.step is IdleStep.ENDED:
        gang.suspends = Cause.IDLE_SUSPEND


def _start(gang: Gang, nodes: tuple[str, ...], at_ms: int) -> None:
    attempt = gang.attempt
    attempt.started += _unreported(attempt, nodes, attempt.started)
    if gang.state is GangState.STARTING and len(attempt.started) == len(gang.nodes):
        gang.step(GangStep.STARTED, at_ms)
        gang.retries = gang.retries.admitted()
        gang.first_started_ms = at_ms if gang.first_started_ms is None else gang.first_started_ms


def _evict(attempt: Attempt, node: str, leave_by_ms: int) -> None:
    """Have the attempt vacate a node, by the earliest time that was announced."""
    if attempt.leave_by_ms is not None:
        leave_by_ms = min(leave_by_ms, attempt.leave_by_ms)
    attempt.vacates, attempt.leave_by_ms = node, leave_by_ms


def fail(
    state: State, gang: Gang, failed: e.Failed, at_ms: int, target: Shares = (), kept_until_ms: int | None = None
) -> None:
    """Decide what follows from the first failure of a generation; later ones are its consequences.

    `target` is what the next attempt may start on at once, or what it keeps until `kept_until_ms` while that is too
    little: not through a pause, which a gang gets that has failed before without progress, and may do so again.
    """
    attempt = gang.attempt
    if attempt.failure is not None:
        return
    failed = replace(failed, match=retry.matching_rule(gang, failed))
    if gang.state not in ACTIVE:
        attempt.failure = failed
        return
    decision = retry.decide_retry(gang, failed, at_ms)
    if decision.action is Action.NOTHING:
        return
    attempt.failure = failed
    retries = retry.retries_after(gang, failed, decision, at_ms)
    if retries.unadmitted:
        gang.account.requeue(failed.cause)
    else:
        gang.checkpoints = checkpoint_fallback.checkpoints_after(gang, failed, at_ms)
        gang.account.fail(at_ms, failed.cause, failed.since_ms)
        state.history.failures.failures += attribute(failed).blame is not Blame.USER
    gang.retries = retries
    if decision.retries and target and (kept_until_ms is None or not decision.pause_ms):
        attempt.target, gang.retries = target, replace(retries, kept_until_ms=kept_until_ms)
        gang.step(GangStep.RESIZE, at_ms)
    else:
        gang.step(GangStep.RETRY if decision.retries else GangStep.FAIL, at_ms)


def clear(state: State, gang: Gang, nodes: tuple[str, ...], at_ms: int) -> Touched:
    """Free what the gang holds on these nodes and return the gangs that waited for its end.

    The generation ends with the last node.
    """
    attempt = gang.attempt
    silent = _unreported(attempt, nodes, attempt.finished)
    if silent and gang.state in ACTIVE and attempt.failure is None:
        lost = e.Failed(
            gang=gang.id,
            generation=attempt.generation,
            node=silent[0],
            cause=Cause.LAUNCHER_LOST,
            detail=NO_EXIT_RECORD,
        )
        fail(state, gang, lost, at_ms)
    gone = frozenset(nodes)
    attempt.left = tuple(node for node in attempt.left if node not in gone)
    if state.allocations.end_ms(gang.id) > at_ms:
        state.reservations.release_early()
    state.leave(gang, nodes)
    if attempt.left:
        return ()
    if gang.state is GangState.RESIZING and not gang.has_finished:
        gang.account.lose(at_ms, is_observed=gang.is_observed)
        state.reallocate(gang, at_ms)
        return ()
    return abandon_target(state, gang, at_ms) if gang.attempt.target else end_attempt(state, gang, at_ms)


def abandon_target(state: State, gang: Gang, at_ms: int) -> Touched:
    """Free what a gang that is resized no more holds for its next attempt; return the gangs that waited for its end."""
    gang.attempt.target = ()
    state.reallocate(gang, at_ms)
    gang.retries = gang.retries.keeping_nothing()
    return () if gang.attempt.left else end_attempt(state, gang, at_ms)


def end_attempt(state: State, gang: Gang, at_ms: int) -> Touched:
    """End an attempt that has left all nodes, and return the gangs that waited for the end of the gang."""
    attempt = gang.attempt
    state.end_allocation(gang, at_ms)
    attempt.lent, attempt.recalled_by = (), ""
    gang.retries = replace(gang.retries.keeping_nothing(), owner_since_ms=None)
    gang.shape = gang.job.spec.shape if gang.has_other_size else gang.shape
    was_active = gang.state in ACTIVE
    gang.step(GangStep.FINISHED if gang.has_finished else GangStep.CLEARED, at_ms)
    if gang.account.part != "working" and (was_active or gang.state is not GangState.SUCCEEDED):
        # It continues later, or failed; the work of a stopped gang counts as kept.
        gang.account.lose(at_ms, is_observed=gang.is_observed)
    if gang.ended:
        return state.drop(gang, at_ms)
    attempt.start = None
    if gang.state is GangState.PENDING:
        state.enqueue(gang)
        if gang.suspends:
            suspend(state, gang, at_ms)
    return ()


def suspend(state: State, gang: Gang, at_ms: int) -> None:
    """Remove a gang that holds nothing from its queue until it is resumed."""
    gang.suspends = None
    state.dequeue(gang)
    gang.step(GangStep.SUSPEND, at_ms)
