"""The return of a job to an older checkpoint: which one, and what a finding of the loss watch leads to."""

from dataclasses import replace

from ganger.core.state.gang import Gang
from ganger.model.decision import Cause
from ganger.model.job import GangState
from ganger.model.watch.rollback import Rollback
from ganger.model.watch.watch_event import Anomaly
from ganger.model.watch.watch_rules import DIVERGENCES, ROLLBACK, STOP, WatchRules, rules_of

ENDING = (GangState.FINISHING, GangState.FAILING, GangState.STOPPING)


def refusal(gang: Gang, step: int) -> str | None:
    """Return why a job cannot go on from its newest checkpoint at or before a step, or None."""
    if gang.state in ENDING or gang.end_cause:
        return f"{gang.id} is {gang.state} already"
    if not gang.job.spec.has_steps:
        return f"{gang.id} has no checkpoints by step: its job file has no checkpoint section, or one file for all"
    if checkpoint_step(gang, step) is not None:
        return None
    steps = kept_steps(gang)
    known = f"its oldest checkpoint is of step {steps[0]}" if steps else "it has saved none"
    return f"{gang.id} has no checkpoint of step {step} or before: {known}"


def kept_steps(gang: Gang) -> list[int]:
    """Return the steps of its known checkpoints that `checkpoint.keep` retains, ascending."""
    checkpoint, steps = gang.job.spec.checkpoint, sorted(gang.checkpoints.steps)
    if checkpoint is None or checkpoint.keep is None:
        return steps
    kept, every = steps[-checkpoint.keep :], checkpoint.keep_every
    return [step for step in steps if step in kept or (every and step % every == 0)]


def checkpoint_step(gang: Gang, step: int) -> int | None:
    """Return the step of its newest known checkpoint at or before a step."""
    return max((kept for kept in kept_steps(gang) if kept <= step), default=None)


def roll_back(gang: Gang, step: int) -> None:
    """Have the next attempt go on from its newest checkpoint at or before a step."""
    rollback = Rollback(step=step, generation=gang.attempt.generation + 1)
    gang.checkpoints = replace(gang.checkpoints, rollback=rollback, steps=tuple(kept_steps(gang)))


def request(gang: Gang, step: int) -> None:
    """Have the next attempt go on from its newest checkpoint at or before a step, at the request of a user."""
    roll_back(gang, step)
    gang.checkpoints = replace(gang.checkpoints, requested_step=step)


def react(gang: Gang, anomaly: Anomaly, policy_rules: WatchRules) -> None:
    """Have a job end or go back, as its rules say of a finding; one that is ending or going back already, does."""
    rules = rules_of(gang.job.spec.watch, policy_rules)
    reaction = rules.reaction(anomaly.finding)
    if reaction not in (STOP, ROLLBACK) or gang.state in ENDING or gang.end_cause or gang.goes_back:
        return
    can_go_back = gang.job.spec.has_steps and checkpoint_step(gang, anomaly.step - 1) is not None
    if reaction == ROLLBACK and can_go_back and gang.checkpoints.rollbacks < rules.max_rollbacks:
        roll_back(gang, anomaly.step - 1)
        gang.checkpoints = replace(gang.checkpoints, rollbacks=gang.checkpoints.rollbacks + 1)
        return
    gang.end_cause = Cause.DIVERGED if anomaly.finding in DIVERGENCES else Cause.STALLED
