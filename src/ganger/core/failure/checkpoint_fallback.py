"""Checkpoints that a gang could not resume from, and the decision to begin from an older one."""

from dataclasses import replace
from typing import Final

from ganger.core.failure.attribution import Blame, attribute
from ganger.core.failure.signatures import CRASHES
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import CheckpointFallback, Checkpoints
from ganger.model.decision import Cause
from ganger.model.event import Failed

LOADED_MS: Final = 10 * 60_000
"""From this time on a gang without a reported step counts as past its checkpoint: it may not report steps at all."""


def failed_on_checkpoint(gang: Gang, failed: Failed, at_ms: int) -> bool:
    """Return whether the checkpoint may be to blame: the program failed after a resume, before any progress."""
    attempt, checkpoints = gang.attempt, gang.checkpoints
    return (
        checkpoints.resumed_step is not None
        and checkpoints.newest_step == checkpoints.resumed_step
        and not attempt.stepped
        and (attempt.stepped_before or at_ms - gang.since_ms < LOADED_MS)
        and failed.cause is Cause.RANK_FAILED
        and (failed.signal is None or failed.signal in CRASHES)
        and attribute(failed).blame is not Blame.INFRASTRUCTURE
    )


def falls_back(gang: Gang, failed: Failed, at_ms: int) -> bool:
    """Return whether the next attempt begins from an older checkpoint than this one did.

    Not if the attempt on a newer checkpoint failed the same way: then neither checkpoint is to blame. Not if this
    checkpoint was to be skipped: then no other one was complete. Not if a rule of the job says what the failure means,
    or `retry.max` is reached; without `retry.max` there are as many of these attempts as checkpoints.
    """
    max_attempts, fallback = gang.job.spec.retry.max, gang.checkpoints.fallback
    return (
        failed_on_checkpoint(gang, failed, at_ms)
        and gang.checkpoints.resumed_step not in fallback.skipped
        and failed.match is None
        and fallback.older_step is not None
        and (max_attempts is None or gang.retries.used < max_attempts)
        and _error_signature(failed) != fallback.failure
    )


def checkpoints_after(gang: Gang, failed: Failed, at_ms: int) -> Checkpoints:
    """Return the checkpoints after the failure of an attempt, before it counts as a retry."""
    checkpoints, fallback, step = gang.checkpoints, gang.checkpoints.fallback, gang.checkpoints.resumed_step
    if step is None or not failed_on_checkpoint(gang, failed, at_ms):
        return replace(checkpoints, fallback=replace(fallback, tried=()))
    signature = _error_signature(failed)
    tried = (*(known for known in fallback.tried if known != step), step)
    if falls_back(gang, failed, at_ms):
        after = CheckpointFallback(skipped=(*fallback.skipped, step), tried=tried, failure=signature)
        return replace(checkpoints, newest_step=fallback.older_step, fallback=after)
    # The same error on two checkpoints: neither is to blame.
    skipped = () if signature == fallback.failure else fallback.skipped
    return replace(checkpoints, fallback=replace(fallback, skipped=skipped, tried=tried, failure=signature))


def _error_signature(failed: Failed) -> str:
    """Return exception and place, or without an exception the exit code or signal."""
    error = attribute(failed).error
    if error is not None:
        return f"{error.type} at {error.file}:{error.line}"
    return f"exit code {failed.exit_code}, signal {failed.signal}"
