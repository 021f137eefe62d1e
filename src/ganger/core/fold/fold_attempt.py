"""The fold of events about a generation: it runs, it stepped, it failed, it is gone.

Events about an older generation and repeated ones are stale: the log never contains them.
"""

from dataclasses import replace

from ganger.core.failure import checkpoint_fallback, retry
from ganger.core.failure.reactions import Action
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import Attempt
from ganger.core.state.lifecycle import GangStep
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.job import GangState

Touched = tuple[Gang, ...]
GenerationEvent = (
    e.Started
    | e.Progressed
    | e.Checkpointed
    | e.Resumed
    | e.Slow
    | e.Quiet
    | e.CodeEdited
    | e.Finished
    | e.Done
    | e.Failed
    | e.Cleared
)
ACTIVE = (GangState.STARTING, GangState.RUNNING)


def staleness(state: State, event: GenerationEvent) -> str | None:
    """Return the reason why the event adds nothing, or None."""
    gang = state.gangs.get(event.gang)
    if gang is None or gang.attempt.generation != event.generation or gang.attempt.start is None:
        return f"generation {event.generation} of {event.gang} is over"
    return None if _is_new(gang, event) else f"{event.kind} of {event.gang} generation {event.generation} is known"


def _is_new(gang: Gang, event: GenerationEvent) -> bool:
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
            recorded = (checkpoints.resumed_step, checkpoints.flawed, checkpoints.fallback.older_step)
            return not has_saved and (step, skipped, event.older_step) != recorded
        case e.Failed():
            return attempt.failure is None and event.node in attempt.left
        case e.Done():
            return gang.state in ACTIVE
        case e.Progressed() | e.Slow() | e.Quiet() | e.CodeEdited():
            return True


def _unreported(attempt: Attempt, nodes: tuple[str, ...], reported: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the nodes that the attempt is left on and that are not among the reported ones."""
    return tuple(node for node in nodes if node in attempt.left and node not in reported)


def fold(state: State, event: GenerationEvent, at_ms: int) -> Touched:
    """Fold an event that is not stale; return the gangs that it changed."""
    gang = state.gangs[event.gang]
    attempt = gang.attempt
    match event:
        case e.Started(nodes=nodes):
            attempt.started += _unreported(attempt, nodes, attempt.started)
            if gang.state is GangState.STARTING and len(attempt.started) == len(gang.nodes):
                gang.step(GangStep.STARTED, at_ms)
                gang.retries = gang.retries.admitted()
                gang.first_started_ms = at_ms if gang.first_started_ms is None else gang.first_started_ms
        case e.Progressed():
            if not attempt.stepped and gang.state is GangState.RUNNING:
                gang.account.first_step(at_ms, "recovery" if attempt.generation > 1 else "starting")
            attempt.stepped = True
            gang.checkpoints = gang.checkpoints.stepped()
        case e.Checkpointed(step=step):
            gang.checkpoints, gang.retries = gang.checkpoints.saved(step), gang.retries.progressed()
            gang.account.save(at_ms, step, event.took_ms, event.saved_ms)
        case e.Resumed(step=step, skipped=flawed, older_step=older_step):
            gang.account.go_back(step)
            gang.checkpoints = gang.checkpoints.resumed(step, flawed, older_step)
        case e.Done():
            gang.step(GangStep.DONE, at_ms)
        case e.Failed():
            fail(gang, event, at_ms)
        case e.Finished(nodes=nodes):
            attempt.finished += _unreported(attempt, nodes, attempt.finished)
        case e.Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
            attempt.killed = tuple(sorted((*attempt.killed, *killed)))
            attempt.grace_ms = max(attempt.grace_ms, grace_ms)
            return (gang, *clear(state, gang, nodes, at_ms))
        case e.Slow() | e.Quiet() | e.CodeEdited():
            pass
    return (gang,)


def fail(gang: Gang, failed: e.Failed, at_ms: int) -> None:
    """Decide what follows from the first failure of a generation; later ones are its consequences."""
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
    gang.retries = retries
    gang.step(GangStep.RETRY if decision.retries else GangStep.FAIL, at_ms)


def clear(state: State, gang: Gang, nodes: tuple[str, ...], at_ms: int) -> Touched:
    """Free what the gang holds on these nodes and return the gangs that waited for its end.

    The generation ends with the last node.
    """
    attempt = gang.attempt
    silent = _unreported(attempt, nodes, attempt.finished)
    if silent and gang.state in ACTIVE and attempt.failure is None:
        detail = "its processes disappeared without an exit record"
        lost = e.Failed(
            gang=gang.id, generation=attempt.generation, node=silent[0], cause=Cause.LAUNCHER_LOST, detail=detail
        )
        fail(gang, lost, at_ms)
    attempt.left = tuple(node for node in attempt.left if node not in nodes)
    if state.allocations.end_ms(gang.id) > at_ms:
        state.reservations.release_early()
    state.leave(gang, nodes)
    if attempt.left:
        return ()
    state.release(gang)
    state.end_usage(gang, at_ms)
    gang.ran_ms += at_ms - attempt.began_ms
    gang.step(GangStep.FINISHED if gang.state in ACTIVE else GangStep.CLEARED, at_ms)
    if gang.account.part != "working":
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
    gang.suspends = False
    state.dequeue(gang)
    gang.step(GangStep.SUSPEND, at_ms)
