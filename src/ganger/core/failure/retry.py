"""What a failure leads to: another attempt, after which pause, or the end.

Called by `core.fold.fold_attempt` when a rank, a launcher or a node fails. What happens is a row of the table in
`core.state.lifecycle`; here are the numbers: retry limit, pause, progress, and whose failure it was. What the job's own
`retry.rules` say goes before the table (docs/explanation/decisions/frameworks.md, "Rules for failures")."""

from dataclasses import dataclass
from typing import Final

from ganger.core.failure.attribution import Blame, attribute
from ganger.core.failure.checkpoint_fallback import falls_back
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import Act, Ending, Member, reaction
from ganger.model.decision import UNADMITTED, Cause
from ganger.model.event import Failed, RuleMatch
from ganger.model.job import GangState

DEFAULT_RETRIES: Final = 3
FAIL: Final = "fail"
UNADMITTED_FIRST_MS: Final = 10_000
UNADMITTED_MOST_MS: Final = 160_000
"""Pauses before a cluster is asked again to take the pods of a job: nobody tells when it would."""
EXCLUDE: Final = "exclude_node"
"""What a rule may say, besides `retry`."""

ENDINGS: Final = {
    Cause.OUT_OF_MEMORY: Ending.OUT_OF_MEMORY,
    Cause.HUNG: Ending.HUNG,
    Cause.START_FAILED: Ending.START_FAILED,
    Cause.PORT_BUSY: Ending.PORT_BUSY,
    Cause.ADMISSION_DENIED: Ending.DENIED,
    **dict.fromkeys(UNADMITTED, Ending.UNADMITTED),
    Cause.LAUNCHER_LOST: Ending.LAUNCHER_LOST,
    Cause.NODE_LOST: Ending.NODE_LOST,
    Cause.USER: Ending.ASKED,
    Cause.TIME_LIMIT: Ending.TIME_LIMIT,
    Cause.QUEUE_TIME: Ending.QUEUE_TIME,
    Cause.PREEMPTED: Ending.PREEMPTED,
    Cause.SUSPENDED: Ending.SUSPENDED,
    Cause.DRAINED: Ending.DRAINED,
    Cause.NODE_PREEMPTED: Ending.PREEMPTED,
    Cause.DONE: Ending.DONE,
    Cause.DEPENDENCY: Ending.DEPENDENCY,
}
"""Of causes that say all; for a rank that failed it depends on how."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """`act`: nothing, another generation (again, elsewhere) `pause_ms` from now, or the end; `spends`: it counts
    against the retry limit."""

    act: Act
    spends: bool = False
    pause_ms: int = 0

    @property
    def again(self) -> bool:
        """Whether another generation follows."""
        return self.act in (Act.AGAIN, Act.ELSEWHERE)


GIVE_UP: Final = RetryDecision(Act.GIVE_UP, spends=True)


def matching(gang: Gang, failed: Failed) -> RuleMatch | None:
    """The rule of the job that decides: by the pattern that a backend found in the logs, or by the cause alone."""
    retry, found = gang.job.spec.retry, failed.match
    index = retry.rule_for(failed.cause, () if found is None else (found.rule,))
    if index is None:
        return None
    by_cause = RuleMatch(rule=index, do=retry.rules[index].do, node=failed.node)
    return found if found is not None and found.rule == index else by_cause


def verdict(gang: Gang, failed: Failed, at_ms: int) -> RetryDecision:
    """Judge the first failure of a generation; its `match` is the rule that decides."""
    row = reaction(member(gang, failed), ending(failed), gang.phase)
    says = failed.match.do if failed.match else None
    if row.act is Act.NOTHING:
        return RetryDecision(Act.NOTHING)
    if says == FAIL:
        return GIVE_UP
    if row.waits:
        return RetryDecision(row.act, pause_ms=min(UNADMITTED_FIRST_MS << min(gang.unadmitted, 32), UNADMITTED_MOST_MS))
    retry = gang.job.spec.retry
    pause_ms = min(retry.backoff_first_ms << min(gang.fruitless, 32), retry.backoff_max_ms)
    if falls_back(gang, failed, at_ms):
        return RetryDecision(Act.AGAIN, spends=retry.max is not None, pause_ms=pause_ms if gang.fruitless else 0)
    if says is None and row.act is Act.GIVE_UP:
        return GIVE_UP
    if says is None and retry.max is None and error_of(failed) and error_of(failed) == gang.same_error:
        return GIVE_UP  # whatever it saved on the way there
    act = Act.ELSEWHERE if row.act is Act.ELSEWHERE else Act.AGAIN
    if gang.progressed:
        return RetryDecision(act)
    if not row.spends and row.act is not Act.GIVE_UP:
        # The next port is another one, and another node is chosen for a lost one: at first, waiting gains nothing.
        return RetryDecision(act, pause_ms=pause_ms if gang.fruitless else 0)
    most = retry.max if retry.max is not None else 0 if row.once and says is None else DEFAULT_RETRIES
    return RetryDecision(act, spends=True, pause_ms=pause_ms) if gang.spent < most else GIVE_UP


def member(gang: Gang, failed: Failed) -> Member:
    """Whose failure it is: that of a rank, or of all that is on a node."""
    shares, spec = gang.start.shares if gang.start else (), gang.job.spec
    if failed.rank is None:
        mine = [share for share in shares if share.node == failed.node]
    else:
        mine = [share for share in shares if failed.rank in share.ranks]
    says = [spec.role(spec.order[share.part]).on_failure for share in mine]
    if mine and all(each == "ignore" for each in says) and gang.state is GangState.RUNNING:
        return Member.EXTRA
    if failed.rank is not None and "fail" in says:
        return Member.VITAL
    return Member.MASTER if gang.nodes[:1] == (failed.node,) else Member.WORKER


def failed_on(gang: Gang, failed: Failed) -> tuple[str, int]:
    """The node it failed on, and how many times in a row without progress by now."""
    (before, times), node = gang.failed_on, attribute(failed).node
    if gang.progressed:
        return "", 0
    return node, times + 1 if node == before else 1


def ending(failed: Failed) -> Ending:
    """How it ended, as the table has it."""
    found = attribute(failed)
    if failed.cause is Cause.START_FAILED and found.blame is Blame.USER:
        return Ending.USER_ERROR
    if failed.cause in ENDINGS:
        return ENDINGS[failed.cause]
    if found.error is None or found.blame is Blame.UNKNOWN:
        return Ending.KILLED if failed.signal is not None else Ending.EXITED
    return Ending.USER_ERROR if found.blame is Blame.USER else Ending.MACHINE_ERROR


def error_of(failed: Failed) -> str:
    """The program's own error, where it was and at which step: the same again would come of the same again. Empty where
    there is none."""
    found = attribute(failed)
    if found.blame is not Blame.USER or found.error is None:
        return ""
    return f"{found.error.type} at {found.error.file}:{found.error.line}, step {found.step}"
