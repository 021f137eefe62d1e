"""The retry decision: what a failure leads to, another attempt after some pause, or the end.

The reaction is a row of the table in `reactions`; here are the numbers: retry limit, pause, progress, and
attribution. The job's own `retry.rules` go before the table (docs/explanation/decisions/frameworks.md, "Rules for
failures")."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ganger.core.failure.attribution import Blame, attribute, may_pass
from ganger.core.failure.checkpoint_fallback import falls_back
from ganger.core.failure.reactions import Action, Ending, Member, reaction
from ganger.core.state.gang import FAILURES_BEFORE_AVOIDING, Gang
from ganger.core.state.gang_attempts import Retries
from ganger.model.decision import UNADMITTED, Cause
from ganger.model.event import Failed
from ganger.model.evidence import RuleMatch
from ganger.model.job import GangState

DEFAULT_RETRIES: Final = 3
FAIL: Final = "fail"
UNADMITTED_FIRST_MS: Final = 10_000
UNADMITTED_MAX_MS: Final = 160_000
"""Pauses before a cluster that did not admit a job's pods is asked again: it does not announce when it would."""
EXCLUDE: Final = "exclude_node"
"""Besides `retry`, what a rule may say."""

ENDINGS: Final = {
    Cause.OUT_OF_MEMORY: Ending.OUT_OF_MEMORY,
    Cause.HUNG: Ending.HUNG,
    Cause.START_FAILED: Ending.START_FAILED,
    Cause.PORT_BUSY: Ending.PORT_BUSY,
    Cause.PREFLIGHT_FAILED: Ending.BAD_NODE,
    Cause.ADMISSION_DENIED: Ending.DENIED,
    **dict.fromkeys(UNADMITTED, Ending.UNADMITTED),
    Cause.LAUNCHER_LOST: Ending.LAUNCHER_LOST,
    Cause.NODE_LOST: Ending.NODE_LOST,
    Cause.USER: Ending.STOP_REQUESTED,
    Cause.TIME_LIMIT: Ending.TIME_LIMIT,
    Cause.QUEUE_TIME: Ending.QUEUE_TIME,
    Cause.PREEMPTED: Ending.PREEMPTED,
    Cause.SUSPENDED: Ending.SUSPENDED,
    Cause.DRAINED: Ending.DRAINED,
    Cause.NODE_PREEMPTED: Ending.PREEMPTED,
    Cause.EVICTED: Ending.DRAINED,
    Cause.DONE: Ending.DONE,
    Cause.RESIZED: Ending.RESIZED,
    Cause.MOVED: Ending.RESIZED,
    Cause.DEPENDENCY: Ending.DEPENDENCY,
    Cause.ROLLED_BACK: Ending.ROLLED_BACK,
    Cause.IDLE_SUSPEND: Ending.SUSPENDED,
    Cause.IDLE_STOP: Ending.STOP_REQUESTED,
    Cause.DIVERGED: Ending.ANOMALOUS,
    Cause.STALLED: Ending.ANOMALOUS,
}
"""The ending for causes that determine it; that of a failed rank depends on how it failed."""


class GivenUp(StrEnum):
    """The reason why there is no other attempt, where neither a rule nor the cause says it."""

    RECURS = "recurs"
    MAY_RECUR = "may_recur"
    RECURRED = "recurred"
    LIMIT = "limit"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The decision about a failure.

    action: nothing, another attempt (retry, retry elsewhere) after `pause_ms`, or none (fail).
    counts: it counts against the retry limit.
    given_up: why there is no other attempt; empty if there is, or if the failure says it.
    """

    action: Action
    counts: bool = False
    pause_ms: int = 0
    given_up: str = ""

    @property
    def retries(self) -> bool:
        """True if another generation follows."""
        return self.action in (Action.RETRY, Action.RETRY_ELSEWHERE)


NO_RETRY: Final = RetryDecision(Action.FAIL, counts=True)


def matching_rule(gang: Gang, failed: Failed) -> RuleMatch | None:
    """Return the job's rule that decides: by the pattern that a backend found in the logs, or by the cause alone."""
    retry, match = gang.job.spec.retry, failed.match
    index = retry.rule_for(failed.cause, () if match is None else (match.rule,))
    if index is None:
        return None
    by_cause = RuleMatch(rule=index, do=retry.rules[index].do, node=failed.node)
    return match if match is not None and match.rule == index else by_cause


def decide_retry(gang: Gang, failed: Failed, at_ms: int) -> RetryDecision:
    """Decide on the first failure of a generation; `failed.match` is the rule that applies."""
    retries, row = gang.retries, reaction(failed_member(gang, failed), ending(failed), gang.phase)
    rule_action = failed.match.do if failed.match else None
    if row.action is Action.NOTHING:
        return RetryDecision(Action.NOTHING)
    if gang.attempt.vacates:
        return RetryDecision(Action.RETRY)  # a consequence of its leaving a node, from which it is not stopped yet
    if rule_action == FAIL:
        return NO_RETRY
    if row.pauses:
        return RetryDecision(
            row.action, pause_ms=min(UNADMITTED_FIRST_MS << min(retries.unadmitted, 32), UNADMITTED_MAX_MS)
        )
    retry = gang.job.spec.retry
    pause_ms = min(retry.backoff_first_ms << min(retries.attempts_without_progress, 32), retry.backoff_max_ms)
    if falls_back(gang, failed, at_ms):
        return RetryDecision(
            Action.RETRY, counts=retry.max is not None, pause_ms=pause_ms if retries.attempts_without_progress else 0
        )
    if rule_action is None and row.action is Action.FAIL:
        return replace(NO_RETRY, given_up=GivenUp.ROLE if failed.cause is not Cause.ADMISSION_DENIED else "")
    if rule_action is None and retry.max is None and (given_up := _recurrence(retries, failed)):
        return replace(NO_RETRY, given_up=given_up)
    action = Action.RETRY_ELSEWHERE if row.action is Action.RETRY_ELSEWHERE else Action.RETRY
    if gang.checkpoints.has_progressed:
        return RetryDecision(action)
    if not row.counts and row.action is not Action.FAIL:
        # The next attempt gets another port, and another node for a lost one: the first time, a pause gains nothing.
        return RetryDecision(action, pause_ms=pause_ms if retries.attempts_without_progress else 0)
    if row.needs_retry_max and rule_action is None and retry.max is None:
        return replace(NO_RETRY, given_up=GivenUp.RECURS)
    if row.may_recur and rule_action is None and retry.max is None and retries.used:
        return replace(NO_RETRY, given_up=GivenUp.MAY_RECUR)
    if retries.used >= (DEFAULT_RETRIES if retry.max is None else retry.max):
        return replace(NO_RETRY, given_up=GivenUp.LIMIT)
    return RetryDecision(action, counts=True, pause_ms=pause_ms)


def _recurrence(retries: Retries, failed: Failed) -> str:
    """Return why the failure would recur, whatever was saved on the way; "" if that is not known."""
    from ganger.core.failure.end_diagnosis import is_certain_user_error  # tables that take long to load

    error = program_error(failed)
    if error and error == retries.same_error:
        return GivenUp.RECURRED
    return GivenUp.RECURS if is_certain_user_error(failed) and not may_pass(failed) else ""


def failed_member(gang: Gang, failed: Failed) -> Member:
    """Return whose failure it is: that of a rank, or of everything on a node."""
    shares, spec = gang.attempt.start.shares if gang.attempt.start else (), gang.job.spec
    if failed.rank is None:
        shares_of_failure = [share for share in shares if share.node == failed.node]
    else:
        shares_of_failure = [share for share in shares if failed.rank in share.ranks]
    actions = [spec.role(spec.order[share.part]).on_failure for share in shares_of_failure]
    if shares_of_failure and all(action == "ignore" for action in actions) and gang.state is GangState.RUNNING:
        return Member.OPTIONAL
    if failed.rank is not None and "fail" in actions:
        return Member.CRITICAL
    return Member.MASTER if gang.nodes[:1] == (failed.node,) else Member.WORKER


def retries_after(gang: Gang, failed: Failed, decision: RetryDecision, at_ms: int) -> Retries:
    """Return the retries of a gang after the decision about a failure; `failed.match` is the rule that applies."""
    before, match = gang.retries, failed.match
    excluded, not_before_ms = before.excluded, at_ms + decision.pause_ms
    if match is not None and match.do == EXCLUDE and match.node not in gang.avoids:
        excluded = (*excluded, (match.node, match.rule))
    if failed.cause in UNADMITTED and decision.retries:
        waiting = replace(before, unadmitted=before.unadmitted + 1, not_before_ms=not_before_ms, excluded=excluded)
        if failed.cause is not Cause.INSTALLATION_FAULT:
            return waiting
        # An image that one node cannot pull may be on others: without an end of its tries it has to try them too.
        return replace(waiting, failed_on=_failed_on(before, failed, has_progressed=False))
    has_progressed = gang.checkpoints.has_progressed
    return Retries(
        used=before.used + (decision.counts and decision.retries),
        attempts_without_progress=0 if has_progressed else before.attempts_without_progress + 1,
        failed_on=_failed_on(before, failed, has_progressed=has_progressed),
        same_error=program_error(failed),
        not_before_ms=not_before_ms,
        excluded=excluded,
        given_up=decision.given_up,
    )


def _failed_on(before: Retries, failed: Failed, *, has_progressed: bool) -> tuple[str, int]:
    """Return the node of a failure and the number of consecutive failures there without progress.

    A node with a proved fault, one that failed the test before the start, and that of a rank for which all others
    waited, counts at once as one on which it fails repeatedly: what is wrong there may hold up the next attempt too.
    """
    from ganger.core.failure.end_diagnosis import suspected_node  # tables that take long to load

    if suspect := suspected_node(failed):
        return suspect, FAILURES_BEFORE_AVOIDING
    if failed.cause is Cause.PREFLIGHT_FAILED or (failed.cause is Cause.HUNG and failed.rank is not None):
        return failed.node, FAILURES_BEFORE_AVOIDING
    if has_progressed:
        return "", 0
    node, (node_before, count) = attribute(failed).node, before.failed_on
    return node, count + 1 if node == node_before else 1


def ending(failed: Failed) -> Ending:
    """Return how it ended, as a row of the reaction table."""
    attribution = attribute(failed)
    if failed.cause is Cause.START_FAILED and attribution.blame is Blame.USER:
        return Ending.USER_ERROR
    if failed.cause in ENDINGS:
        return ENDINGS[failed.cause]
    if failed.signal is None and may_pass(failed):  # one that a signal ended is retried more often
        return Ending.UNREACHED
    if attribution.error is None or attribution.blame is Blame.UNKNOWN:
        return Ending.KILLED if failed.signal is not None else Ending.EXITED
    return Ending.USER_ERROR if attribution.blame is Blame.USER else Ending.MACHINE_ERROR


def program_error(failed: Failed) -> str:
    """Return the program's own error with place and step, empty if there is none: equal errors would recur."""
    attribution = attribute(failed)
    if attribution.blame is not Blame.USER or attribution.error is None:
        return ""
    return f"{attribution.error.type} at {attribution.error.file}:{attribution.error.line}, step {attribution.step}"
