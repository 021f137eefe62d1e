"""Retry decisions: the whole table of reactions."""

from dataclasses import replace

import pytest

from ganger.core.failure.reactions import Action
from ganger.core.failure.retry import RetryDecision, decide_retry, matching_rule
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import Attempt, Checkpoints, Retries
from ganger.core.state.time_accounting import Account
from ganger.model.decision import Cause, NodeShare, Start
from ganger.model.event import Failed
from ganger.model.evidence import PythonError, RankEnd, RuleMatch
from ganger.model.job import GangState, Job, JobSpec, Origin, Role
from ganger.model.job_sections.retry_spec import Retry, Rule

EXIT, SIGNAL, SETUP = {"exit_code": 1}, {"signal": 9}, {}
SHARES = (NodeShare("n1", (0,)), NodeShare("n2", (1,)))
RUNNING = Attempt(start=Start(gang="j", generation=1, shares=SHARES, host="h", port=1))
STEPPED = replace(RUNNING, stepped=True)


def gang(max_attempts: int | None, **so_far: object) -> Gang:
    retry = Retry(max=max_attempts, backoff_first_ms=1_000, backoff_max_ms=60_000)
    job = Job(id="j", user="ann", spec=JobSpec(run="x", retry=retry), origin=Origin(directory="/"))
    account = Account(opened_ms=0, since_ms=0)
    parts = {"state": GangState.RUNNING, "attempt": RUNNING} | so_far
    return Gang(job=job, shape=job.spec.shape, number=1, submitted_ms=0, since_ms=0, account=account, **parts)


def retry_decision(pause_ms: int, *, counts: bool) -> RetryDecision:
    return RetryDecision(Action.RETRY, counts=counts, pause_ms=pause_ms)


def elsewhere_decision(pause_ms: int) -> RetryDecision:
    return RetryDecision(Action.RETRY_ELSEWHERE, counts=False, pause_ms=pause_ms)


@pytest.mark.parametrize(
    ("max_attempts", "so_far", "cause", "exit_fields", "expected"),
    [
        (None, {}, Cause.RANK_FAILED, SIGNAL, retry_decision(1_000, counts=True)),
        (None, {"retries": Retries(used=2)}, Cause.RANK_FAILED, SIGNAL, retry_decision(1_000, counts=True)),
        (None, {"retries": Retries(used=3)}, Cause.RANK_FAILED, SIGNAL, None),
        (None, {}, Cause.RANK_FAILED, EXIT, None),
        (None, {"attempt": STEPPED}, Cause.RANK_FAILED, EXIT, retry_decision(1_000, counts=True)),
        (None, {}, Cause.START_FAILED, SETUP, retry_decision(1_000, counts=True)),
        (1, {}, Cause.RANK_FAILED, EXIT, retry_decision(1_000, counts=True)),
        (1, {"retries": Retries(used=1)}, Cause.RANK_FAILED, EXIT, None),
        (0, {}, Cause.RANK_FAILED, SIGNAL, None),
        (0, {}, Cause.NODE_LOST, SETUP, elsewhere_decision(0)),
        (0, {"attempt": replace(RUNNING, vacates="n1")}, Cause.RANK_FAILED, SIGNAL, retry_decision(0, counts=False)),
        (0, {}, Cause.LAUNCHER_LOST, SETUP, retry_decision(0, counts=False)),
        (0, {}, Cause.PORT_BUSY, EXIT, retry_decision(0, counts=False)),
        (0, {"retries": Retries(attempts_without_progress=1)}, Cause.NODE_LOST, SETUP, elsewhere_decision(2_000)),
        (
            9,
            {"retries": Retries(attempts_without_progress=3)},
            Cause.RANK_FAILED,
            SIGNAL,
            retry_decision(8_000, counts=True),
        ),
        (
            9,
            {"retries": Retries(attempts_without_progress=6)},
            Cause.RANK_FAILED,
            SIGNAL,
            retry_decision(60_000, counts=True),
        ),
        (
            9,
            {"retries": Retries(attempts_without_progress=900)},
            Cause.RANK_FAILED,
            SIGNAL,
            retry_decision(60_000, counts=True),
        ),
        (
            0,
            {"retries": Retries(attempts_without_progress=9)},
            Cause.NAMESPACE_QUOTA,
            SETUP,
            retry_decision(10_000, counts=False),
        ),
        (0, {"retries": Retries(unadmitted=2)}, Cause.WEBHOOK_UNREACHABLE, SETUP, retry_decision(40_000, counts=False)),
        (0, {"retries": Retries(unadmitted=900)}, Cause.NAMESPACE_QUOTA, SETUP, retry_decision(160_000, counts=False)),
        (9, {}, Cause.ADMISSION_DENIED, SETUP, None),
        (0, {"checkpoints": Checkpoints(newest_step=5)}, Cause.RANK_FAILED, EXIT, retry_decision(0, counts=False)),
        (
            0,
            {"checkpoints": Checkpoints(newest_step=5, best_step=4)},
            Cause.RANK_FAILED,
            EXIT,
            retry_decision(0, counts=False),
        ),
        (0, {"checkpoints": Checkpoints(newest_step=5, best_step=5)}, Cause.RANK_FAILED, EXIT, None),
    ],
)
def test_retry_decision(
    max_attempts: int | None,
    so_far: dict[str, object],
    cause: Cause,
    exit_fields: dict[str, int],
    expected: RetryDecision | None,
) -> None:
    decision = decide_retry(
        gang(max_attempts, **so_far), Failed(gang="j", generation=1, node="n1", cause=cause, **exit_fields), 0
    )
    assert decision == expected or (expected is None and not decision.retries)


def test_a_role_may_take_the_job_with_it() -> None:
    roles = {"ps": Role(on_failure="fail"), "eval": Role()}
    shares = (NodeShare("n1", (0,), part=0), NodeShare("n1", (1,), part=1), NodeShare("n1", (2,), part=2))
    start = Start(gang="j", generation=1, shares=shares, host="h", port=1)
    owner = gang(9, checkpoints=Checkpoints(newest_step=5), attempt=Attempt(start=start))
    owner.job = replace(owner.job, spec=replace(owner.job.spec, roles=roles))
    retry_decision = [
        decide_retry(owner, Failed(gang="j", generation=1, node="n1", cause=cause, rank=rank, signal=9), 0).retries
        for cause, rank in (
            (Cause.RANK_FAILED, 0),
            (Cause.RANK_FAILED, 1),
            (Cause.RANK_FAILED, 2),
            (Cause.NODE_LOST, None),
        )
    ]
    assert retry_decision == [True, False, True, True]


RULES = (
    Rule(log="ECC", cause="rank_failed", do="exclude_node"),
    Rule(cause="start_failed", do="fail"),
    Rule(log="timed out", do="retry"),
)


@pytest.mark.parametrize(
    ("cause", "pattern_match", "expected"),
    [
        (Cause.RANK_FAILED, RuleMatch(rule=0, do="exclude_node", node="n2", rank=3, line="ECC"), (0, "n2")),
        (Cause.RANK_FAILED, RuleMatch(rule=2, do="retry", node="n2", rank=3, line="timed out"), (2, "n2")),
        (Cause.RANK_FAILED, None, None),
        (Cause.START_FAILED, None, (1, "n1")),
        (Cause.START_FAILED, RuleMatch(rule=2, do="retry", node="n2", rank=3, line="timed out"), (1, "n1")),
        (Cause.NODE_LOST, RuleMatch(rule=0, do="exclude_node", node="n2", rank=3, line="ECC"), None),
    ],
)
def test_the_first_rule_that_fits_decides(
    cause: Cause, pattern_match: RuleMatch | None, expected: tuple[int, str] | None
) -> None:
    owner = gang(None)
    owner.job = replace(owner.job, spec=replace(owner.job.spec, retry=Retry(rules=RULES)))
    match = matching_rule(owner, Failed(gang="j", generation=1, node="n1", cause=cause, match=pattern_match))
    assert (match and (match.rule, match.node)) == expected


def test_a_rule_goes_before_the_role() -> None:
    shares = (NodeShare("n1", (0,)),)
    owner = gang(9, attempt=Attempt(start=Start(gang="j", generation=1, shares=shares, host="h", port=1)))
    owner.job = replace(owner.job, spec=replace(owner.job.spec, run=(), roles={"ps": Role(run="x", on_failure="fail")}))
    failed = Failed(gang="j", generation=1, node="n1", cause=Cause.RANK_FAILED, rank=0, exit_code=1)
    assert not decide_retry(owner, failed, 0).retries
    assert decide_retry(owner, replace(failed, match=RuleMatch(rule=0, do="retry", node="n1")), 0).retries


KEY_ERROR = PythonError(type="KeyError", message="'lr'", file="train.py", line=31)


def ended(error: PythonError | None, step: int | None = None, node: str = "n2") -> Failed:
    """Return the exit record of rank 1."""
    end = RankEnd(rank=1, node=node, at_ms=5, exit_code=1, step=step, error=error)
    return Failed(gang="j", generation=1, node=node, cause=Cause.RANK_FAILED, rank=1, exit_code=1, ends=(end,))


@pytest.mark.parametrize(
    ("so_far", "failed", "expected"),
    [
        ({}, ended(KEY_ERROR), False),
        ({"attempt": replace(RUNNING, stepped_before=True)}, ended(KEY_ERROR), True),
        ({"attempt": STEPPED}, ended(KEY_ERROR, 7), True),
        (
            {"attempt": STEPPED, "retries": Retries(same_error="KeyError at train.py:31, step 7")},
            ended(KEY_ERROR, 7),
            False,
        ),
        (
            {"attempt": STEPPED, "retries": Retries(same_error="KeyError at train.py:31, step 6")},
            ended(KEY_ERROR, 7),
            True,
        ),
        (
            {
                "checkpoints": Checkpoints(newest_step=6),
                "retries": Retries(same_error="KeyError at train.py:31, step 7"),
            },
            ended(KEY_ERROR, 7),
            False,
        ),
        ({}, replace(ended(None), cause=Cause.OUT_OF_MEMORY), False),
        ({"attempt": STEPPED}, replace(ended(None), cause=Cause.OUT_OF_MEMORY), True),
        ({}, replace(ended(None), cause=Cause.HUNG), True),
    ],
)
def test_who_is_to_blame_and_when_decides(so_far: dict[str, object], failed: Failed, expected: bool) -> None:
    assert decide_retry(gang(None, **so_far), failed, 0).retries == expected
    assert decide_retry(gang(1, **so_far), failed, 0).retries, "the person's word holds"


def test_what_is_ignored_is_nothing_once_all_runs() -> None:
    shares = (NodeShare("n1", (0,), part=0), NodeShare("n2", (1,), part=1))
    owner = gang(None, attempt=Attempt(start=Start(gang="j", generation=1, shares=shares, host="h", port=1)))
    owner.job = replace(owner.job, spec=replace(owner.job.spec, roles={"eval": Role(on_failure="ignore")}))
    lost = Failed(gang="j", generation=1, node="n2", cause=Cause.NODE_LOST)
    owner.state = GangState.STARTING
    assert decide_retry(owner, lost, 0).action is Action.RETRY_ELSEWHERE
    owner.state = GangState.RUNNING
    assert decide_retry(owner, lost, 0).action is Action.NOTHING
    assert decide_retry(owner, replace(lost, node="n1"), 0).action is Action.RETRY_ELSEWHERE
