"""What a failure leads to: another attempt, after which pause, or the end.

Called by `core.apply` when a rank, a launcher or a node fails. The rules are those of docs/decisions/3-foundation.md,
"Retries"; their source is reference/reliability.md section 1 (job reaction by role; an end after fruitless attempts).
"""

from dataclasses import dataclass
from typing import Final

from ganger.core.gang import Gang
from ganger.model.decision import Cause
from ganger.model.event import Failed

NOT_ITS_FAULT: Final = (Cause.PORT_BUSY, Cause.LAUNCHER_LOST, Cause.NODE_LOST, Cause.PREEMPTED)
"""Causes that never spend an attempt."""
DEFAULT_RETRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """`again`: start another generation, `pause_ms` from now; `spends`: it counts against the retry limit."""

    again: bool
    spends: bool
    pause_ms: int


def verdict(gang: Gang, failed: Failed) -> Verdict:
    """Judge the first failure of a generation."""
    if _is_final(gang, failed):
        return Verdict(again=False, spends=True, pause_ms=0)
    if gang.progressed:
        return Verdict(again=True, spends=False, pause_ms=0)
    retry = gang.job.spec.retry
    pause_ms = min(retry.backoff_first_ms << min(gang.fruitless, 32), retry.backoff_max_ms)
    if failed.cause in NOT_ITS_FAULT:
        # The next port is another one, and another node is chosen for a lost one: at first, waiting gains nothing.
        return Verdict(again=True, spends=False, pause_ms=pause_ms if gang.fruitless else 0)
    return Verdict(again=gang.spent < _retries(gang, failed), spends=True, pause_ms=pause_ms)


def _is_final(gang: Gang, failed: Failed) -> bool:
    """Whether it is the failure of a process whose role says that the job fails with it."""
    shares = gang.start.shares if gang.start else ()
    part = next((share.part for share in shares if failed.rank in share.ranks), None)
    if part is None or failed.cause is not Cause.RANK_FAILED:
        return False
    spec = gang.job.spec
    return spec.role(spec.order[part]).on_failure == "fail"


def _retries(gang: Gang, failed: Failed) -> int:
    """Attempts without progress that are forgiven."""
    if gang.job.spec.retry.max is not None:
        return gang.job.spec.retry.max
    by_itself = failed.signal is None and failed.exit_code is not None
    return 0 if by_itself and not gang.stepped else DEFAULT_RETRIES
