"""What a fact about a generation does to its gang: it runs, it stepped, it failed, nothing of it is left.

Called by `core.fold.fold`, and by `core.fold.fold_cluster` for what a lost node takes with it. Facts about an older
generation, and what is known already, are stale: the log never holds them."""

from dataclasses import replace

from ganger.core.failure import checkpoint_fallback, retry
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import Act, GangStep
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import UNADMITTED, Cause
from ganger.model.job import GangState

Touched = tuple[Gang, ...]
Fact = e.Started | e.Progressed | e.Checkpointed | e.Resumed | e.Slow | e.Finished | e.Done | e.Failed | e.Cleared
ALIVE = (GangState.STARTING, GangState.RUNNING)


def stale(state: State, fact: Fact) -> str | None:
    """Why the fact says nothing new, or None."""
    gang = state.gangs.get(fact.gang)
    if gang is None or gang.generation != fact.generation or gang.start is None:
        return f"generation {fact.generation} of {fact.gang} is over"
    match fact:
        case e.Started(nodes=nodes):
            news = any(node in gang.left and node not in gang.started for node in nodes)
        case e.Finished(nodes=nodes):
            news = any(node in gang.left and node not in gang.finished for node in nodes)
        case e.Cleared(nodes=nodes):
            news = any(node in gang.left for node in nodes)
        case e.Checkpointed(step=step):
            news = gang.checkpoint_step is None or step > gang.checkpoint_step
        case e.Resumed(step=step, passed=passed):
            has_saved = gang.checkpoint_step != gang.resumed_step
            known = (gang.resumed_step, gang.passed, gang.fallback.older_step)
            news = not has_saved and (step, passed, fact.older_step) != known
        case e.Failed():
            news = gang.failure is None and fact.node in gang.left
        case e.Done():
            news = gang.state in ALIVE
        case _:
            news = True
    return None if news else f"{fact.kind} of {fact.gang} generation {fact.generation} is known"


def take(state: State, fact: Fact, at_ms: int) -> Touched:
    """Fold in a fact that is not stale; gives the gang it is about."""
    gang = state.gangs[fact.gang]
    match fact:
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
        case e.Resumed(step=step, passed=passed):
            gang.account.go_back(step)
            gang.resume(step, passed)
            gang.fallback = replace(gang.fallback, older_step=fact.older_step)
        case e.Done():
            gang.step(GangStep.DONE, at_ms)
        case e.Failed():
            fail(gang, fact, at_ms)
        case e.Finished(nodes=nodes):
            gang.finished += [node for node in nodes if node in gang.left and node not in gang.finished]
        case e.Cleared(nodes=nodes, killed=killed, grace_ms=grace_ms):
            gang.killed = tuple(sorted((*gang.killed, *killed)))
            gang.grace_ms = max(gang.grace_ms, grace_ms)
            return (gang, *clear(state, gang, nodes, at_ms))
    return (gang,)


def fail(gang: Gang, failed: e.Failed, at_ms: int) -> None:
    """The first failure of a generation decides what becomes of the gang; later ones are its wake."""
    if gang.failure is not None:
        return
    failed = replace(failed, match=retry.matching(gang, failed))
    if gang.state not in ALIVE:
        gang.failure = failed
        return
    judged = retry.verdict(gang, failed, at_ms)
    if judged.act is Act.NOTHING:
        return
    gang.failure = failed
    match = failed.match
    if match is not None and match.do == retry.EXCLUDE and match.node not in gang.avoids:
        gang.excluded = (*gang.excluded, (match.node, match.rule))
    if failed.cause in UNADMITTED and judged.again:
        gang.unadmitted += 1
        gang.not_before_ms = at_ms + judged.pause_ms
        gang.account.give_way(failed.cause)
        gang.step(GangStep.RETRY, at_ms)
        return
    gang.unadmitted = 0
    gang.fruitless = 0 if gang.progressed else gang.fruitless + 1
    gang.failed_on, gang.same_error = retry.failed_on(gang, failed), retry.error_of(failed)
    older_step = (
        gang.fallback.older_step if checkpoint_fallback.falls_back(gang, failed, at_ms) else gang.checkpoint_step
    )
    gang.fallback = checkpoint_fallback.after(gang, failed, at_ms)
    gang.checkpoint_step = older_step
    gang.spent += judged.spends and judged.again
    gang.not_before_ms = at_ms + judged.pause_ms
    gang.account.fail(at_ms, failed.cause, failed.since_ms)
    gang.step(GangStep.RETRY if judged.again else GangStep.GIVE_UP, at_ms)


def clear(state: State, gang: Gang, nodes: tuple[str, ...], at_ms: int) -> Touched:
    """Nothing is left there, and what it held there is free. With the last node the generation is over. Gives the gangs
    that waited for its end."""
    silent = [node for node in nodes if node in gang.left and node not in gang.finished]
    if silent and gang.state in ALIVE and gang.failure is None:
        detail = "its processes were gone without a word of how they ended"
        lost = e.Failed(
            gang=gang.id, generation=gang.generation, node=silent[0], cause=Cause.LAUNCHER_LOST, detail=detail
        )
        fail(gang, lost, at_ms)
    gang.left = [node for node in gang.left if node not in nodes]
    if state.shares.end_ms(gang.id) > at_ms:
        state.release_early()
    state.leave(gang, nodes)
    if gang.left:
        return ()
    state.release(gang)
    state.metered(gang, at_ms)
    gang.ran_ms += at_ms - gang.began_ms
    gang.step(GangStep.FINISHED if gang.state in ALIVE else GangStep.CLEARED, at_ms)
    if gang.account.part != "working":
        gang.account.lose(at_ms)  # it goes on later, or had failed; the work of one that was stopped is kept
    if gang.ended:
        return state.drop(gang, at_ms)
    gang.start = None
    if gang.state is GangState.PENDING:
        state.enqueue(gang)
        if gang.suspends:
            suspend(state, gang, at_ms)
    return ()


def suspend(state: State, gang: Gang, at_ms: int) -> None:
    """A gang that holds nothing leaves the queue until it is resumed."""
    gang.suspends = False
    state.dequeue(gang)
    gang.step(GangStep.SUSPEND, at_ms)
