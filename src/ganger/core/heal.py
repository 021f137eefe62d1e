"""What a failure leads to: another attempt, after which pause, or the end.

Called by `core.facts` when a rank, a launcher or a node fails. The rules are those of docs/decisions/3-foundation.md,
"Retries"; their source is reference/reliability.md section 1 (job reaction by role; an end after fruitless attempts).
What the job's own `retry.rules` say goes before them (docs/decisions/4-every-framework.md, "Rules for failures").
"""

from dataclasses import dataclass
from typing import Final

from ganger.core.gang import Gang
from ganger.model.decision import Cause
from ganger.model.event import Failed, RuleMatch

NOT_ITS_FAULT: Final = (Cause.PORT_BUSY, Cause.LAUNCHER_LOST, Cause.NODE_LOST, Cause.PREEMPTED)
"""Causes that never spend an attempt."""
DEFAULT_RETRIES: Final = 3
FAIL: Final = "fail"
EXCLUDE: Final = "exclude_node"
"""What a rule may say, besides `retry`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`again`: start another generation, `pause_ms` from now; `spends`: it counts against the retry limit."""

    again: bool
    spends: bool
    pause_ms: int


def matching(gang: Gang, failed: Failed) -> RuleMatch | None:
    """The rule of the job that decides: by the pattern that a backend found in the logs, or by the cause alone."""
    retry, found = gang.job.spec.retry, failed.match
    index = retry.rule_for(failed.cause, () if found is None else (found.rule,))
    if index is None:
        return None
    by_cause = RuleMatch(rule=index, do=retry.rules[index].do, node=failed.node)
    return found if found is not None and found.rule == index else by_cause


def verdict(gang: Gang, failed: Failed) -> Verdict:
    """Judge the first failure of a generation; its `match` is the rule that decides."""
    says = failed.match.do if failed.match else None
    if says == FAIL or (says is None and _is_final(gang, failed)):
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
    by_itself = failed.signal is None and failed.exit_code is not None and failed.match is None
    return 0 if by_itself and not gang.stepped else DEFAULT_RETRIES
