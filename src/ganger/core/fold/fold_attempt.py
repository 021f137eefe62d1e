"""The fold of events about a generation: it runs, it stepped, it failed, it is gone.

Events about an older generation and repeated ones are stale: the log never contains them.
"""

from dataclasses import replace

from ganger.core.failure import checkpoint_fallback, retry
from ganger.core.failure.reactions import Action
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import GangStep
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import UNADMITTED, Cause
from ganger.model.job import GangState

Touched = tuple[Gang, ...]
GenerationEvent = (
    e.Started | e.Progressed | e.Checkpointed | e.Resumed | e.Slow | e.Finished | e.Done | e.Failed | e.Cleared
)
ACTIVE = (GangState.STARTING, GangState.RUNNING)


def staleness(state: State, event: GenerationEvent) -> str | None:
    """Return the reason why the event adds nothing, or None."""
    gang = state.gangs.get(event.gang)
    if gang is None or gang.generation != event.generation or gang.start is None:
        return f"generation {event.generation} of {event.gang} is over"
    return None if _is_new(gang, event) else f"{event.kind} of {event.gang} generation {event.generation} is known"


def _is_new(gang: Gang, event: GenerationEvent) -> bool:
    """Return whether an event of the current generation says what is not known yet."""
    match event:
        case e.Started(nodes=nodes):
            return any(node in gang.left and node not in gang.started for node in nodes)
        case e.Finished(nodes=nodes):
            return any(node in gang.left and node not in gang.finished for node in nodes)
        case e.Cleared(nodes=nodes):
            return any(node in gang.left for node in nodes)
        case e.Checkpointed(step=step):
            return gang.checkpoint_step is None or step > gang.checkpoint_step
        case e.Resumed(step=step, skipped=skipped):
            has_saved = gang.checkpoint_step != gang.resumed_step
            recorded = (gang.resumed_step, gang.skipped_checkpoints, gang.fallback.older_step)
            return not has_saved and (step, skipped, event.older_step) != recorded
        case e.Failed():
            return gang.failure is None and event.node in gang.left
        case e.Done():
            return gang.state in ACTIVE
        case e.Progressed() | e.Slow():
            return True


def fold(state: State, event: GenerationEvent, at_ms: int) -> Touched:
    """Fold an event that is not stale; return the gangs that it changed."""
    gang = state.gangs[event.gang]
    match event:
        case e.Started(nodes=nodes):
            gang.started += [node for node in nodes if node in gang.left and node not in gang.started]
            if gang.state is GangState.STARTING and len(gang.started) == len(gang.nodes):
                gang.step(GangStep.STARTED, at_ms)
                gang.unadmitted = 0
                gang.first_started_ms = at_ms if gang.first_started_ms is None else gang.first_started_ms
        case e.Progressed():
            if not gang.stepped and gang.state is GangState.RUNNING:
                gang.account.first_step(at_ms, "recovery" if gang.generation > 1 else "starting")
            gang.stepped = True
            gang.fallback = gang.fallback.stepped()
        case e.Checkpointed(step=step, took_ms=took_ms):
            gang.fallback = gang.fallback.saved(step, gang.checkpoint_step)
            gang.checkpoint_step = step
            gang.failed_on = ("", 0)
            gang.account.save(at_ms, step, took_ms)
        case e.Resumed(step=step, skipped=passed):
            gang.account.go_back(step)
            gang.resume(step, passed)
            gang.fallback = replace(gang.fallback, older_step=event.older_step)
        case e.Done():
            gang.step(GangStep.DONE, at_ms)
        case e.Failed():
            fail(gang, event, at_ms)
        case e.Finished(nodes=nodes):
            gang.finished += [node for node in nodes if node in gang.left and node not in gang.finished]
        case e.Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
            gang.killed = tuple(sorted((*gang.killed, *killed)))
            gang.grace_ms = max(gang.grace_ms, grace_ms)
            return (gang, *clear(state, gang, nodes, at_ms))
        case e.Slow():
            pass
    return (gang,)


def fail(gang: Gang, failed: e.Failed, at_ms: int) -> None:
    """Decide what follows from the first failure of a generation; later ones are its consequences."""
    if gang.failure is not None:
        return
    failed = replace(failed, match=retry.matching_rule(gang, failed))
    if gang.state not in ACTIVE:
        gang.failure = failed
        return
    decision = retry.decide_retry(gang, failed, at_ms)
    if decision.action is Action.NOTHING:
        return
    gang.failure = failed
    match = failed.match
    if match is not None and match.do == retry.EXCLUDE and match.node not in gang.avoids:
        gang.excluded = (*gang.excluded, (match.node, match.rule))
    if failed.cause in UNADMITTED and decision.retries:
        gang.unadmitted += 1
        gang.not_before_ms = at_ms + decision.pause_ms
        gang.account.requeue(failed.cause)
        gang.step(GangStep.RETRY, at_ms)
        return
    gang.unadmitted = 0
    gang.attempts_without_progress = 0 if gang.has_progressed else gang.attempts_without_progress + 1
    gang.failed_on, gang.same_error = retry.failed_on(gang, failed), retry.program_error(failed)
    older_step = (
        gang.fallback.older_step if checkpoint_fallback.falls_back(gang, failed, at_ms) else gang.checkpoint_step
    )
    gang.fallback = checkpoint_fallback.fallback_after(gang, failed, at_ms)
    gang.checkpoint_step = older_step
    gang.retries_used += decision.counts and decision.retries
    gang.not_before_ms = at_ms + decision.pause_ms
    gang.account.fail(at_ms, failed.cause, failed.since_ms)
    gang.step(GangStep.RETRY if decision.retries else GangStep.FAIL, at_ms)


def clear(state: State, gang: Gang, nodes: tuple[str, ...], at_ms: int) -> Touched:
    """Free what the gang holds on these nodes and return the gangs that waited for its end.

    The generation ends with the last node.
    """
    silent = [node for node in nodes if node in gang.left and node not in gang.finished]
    if silent and gang.state in ACTIVE and gang.failure is None:
        detail = "its processes disappeared without an exit record"
        lost = e.Failed(
            gang=gang.id, generation=gang.generation, node=silent[0], cause=Cause.LAUNCHER_LOST, detail=detail
        )
        fail(gang, lost, at_ms)
    gang.left = [node for node in gang.left if node not in nodes]
    if state.allocations.end_ms(gang.id) > at_ms:
        state.release_early()
    state.leave(gang, nodes)
    if gang.left:
        return ()
    state.release(gang)
    state.end_usage(gang, at_ms)
    gang.ran_ms += at_ms - gang.began_ms
    gang.step(GangStep.FINISHED if gang.state in ACTIVE else GangStep.CLEARED, at_ms)
    if gang.account.part != "working":
        gang.account.lose(at_ms)  # it continues later, or failed; the work of a stopped gang counts as kept
    if gang.ended:
        return state.drop(gang, at_ms)
    gang.start = None
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
