"""Checkpoints that a gang could not go on from, and the decision to begin from the one before.

Called by `core.failure.retry`, which judges a failure, and by `core.fold.fold_attempt`, which folds it in. Pure.
"""

from dataclasses import replace
from typing import Final

from ganger.core.failure.attribution import Blame, attribute
from ganger.core.failure.signatures import CRASHES
from ganger.core.state.gang import CheckpointFallback, Gang
from ganger.model.decision import Cause
from ganger.model.event import Failed

LOADED_MS: Final = 10 * 60_000
"""From then on a gang that has never reported a step is taken to be past its checkpoint: it may not report any."""


def failed_on_checkpoint(gang: Gang, failed: Failed, at_ms: int) -> bool:
    """Tell a failure that the checkpoint may have caused: by the program, after a resume, before any progress."""
    return (
        gang.resumed_step is not None
        and gang.checkpoint_step == gang.resumed_step
        and not gang.stepped
        and (gang.stepped_before or at_ms - gang.since_ms < LOADED_MS)
        and failed.cause is Cause.RANK_FAILED
        and (failed.signal is None or failed.signal in CRASHES)
        and attribute(failed).blame is not Blame.INFRASTRUCTURE
    )


def falls_back(gang: Gang, failed: Failed, at_ms: int) -> bool:
    """Tell if the next attempt is to begin from an older checkpoint than this one did.

    Not if the attempt on a newer checkpoint failed alike: then neither checkpoint is to blame. Not if this one was to
    be passed over: then no other one was whole. And not if a rule of the job says what the failure means, or
    `retry.max` is reached; without `retry.max` there are as many of these attempts as checkpoints.
    """
    most = gang.job.spec.retry.max
    return (
        failed_on_checkpoint(gang, failed, at_ms)
        and gang.resumed_step not in gang.fallback.skipped
        and failed.match is None
        and gang.fallback.older_step is not None
        and (most is None or gang.spent < most)
        and _signature(failed) != gang.fallback.failure
    )


def after(gang: Gang, failed: Failed, at_ms: int) -> CheckpointFallback:
    """Return what holds after the failure of an attempt."""
    now, step = gang.fallback, gang.resumed_step
    if step is None or not failed_on_checkpoint(gang, failed, at_ms):
        return replace(now, tried=())
    signature = _signature(failed)
    tried = (*(each for each in now.tried if each != step), step)
    if falls_back(gang, failed, at_ms):
        return CheckpointFallback(skipped=(*now.skipped, step), tried=tried, failure=signature)
    # The same error on two checkpoints: both are as good as any.
    skipped = () if signature == now.failure else now.skipped
    return replace(now, skipped=skipped, tried=tried, failure=signature)


def _signature(failed: Failed) -> str:
    """The exception and its place; without one the exit code or the signal."""
    found = attribute(failed).error
    if found is not None:
        return f"{found.type} at {found.file}:{found.line}"
    return f"exit code {failed.exit_code}, signal {failed.signal}"
