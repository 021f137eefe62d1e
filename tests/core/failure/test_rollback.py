"""Rollbacks: which checkpoint, how a job comes to go back, and what findings of the loss watch lead to."""

from dataclasses import replace

import pytest

from ganger.core.fold.fold import refusal
from ganger.core.state.gang import Gang
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.job import GangState
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.watch.rollback import Rollback
from ganger.model.watch.watch_event import Anomaly, RollbackRequested
from ganger.model.watch.watch_rules import Finding, Watch
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

SECTION = Checkpoint(grace_ms=30_000)


def film(*steps: int, checkpoint: Checkpoint | None = SECTION, watch: Watch | None = None) -> Film:
    """Return a scenario in which C runs and has saved checkpoints of these steps."""
    scenario = Film(POLICIES["priority"], "n1:.. n2:..", "")
    scenario.play("C:1x2 -> CC ..")
    gang(scenario).job = replace(
        gang(scenario).job, spec=replace(gang(scenario).job.spec, checkpoint=checkpoint, watch=watch)
    )
    scenario.do("up C")
    for step in steps:
        scenario.apply(e.Checkpointed(gang="C", generation=gang(scenario).attempt.generation, step=step))
    return scenario


def gang(scenario: Film) -> Gang:
    return scenario.state.gangs["C"]


def finds(scenario: Film, finding: Finding, step: int) -> None:
    scenario.apply(Anomaly(gang="C", generation=gang(scenario).attempt.generation, finding=finding, step=step))


def begins_again(scenario: Film) -> Rollback | None:
    """Stop the attempt, start the next one, and return to what that rolls back."""
    scenario.run_cycles()
    assert gang(scenario).attempt.stop_sent is Cause.ROLLED_BACK
    assert gang(scenario).attempt.notice_until_ms == scenario.now_ms, "nothing is to be saved"
    scenario.do("gone C")
    scenario.run_cycles()
    scenario.do("up C")
    start = gang(scenario).attempt.start
    assert start is not None
    assert (start.generation, gang(scenario).retries.used) == (gang(scenario).attempt.generation, 0)
    return start.rollback


def test_a_job_goes_back_on_request() -> None:
    scenario = film(10, 20, 30)
    scenario.apply(RollbackRequested(gang="C", step=25))
    assert begins_again(scenario) == Rollback(step=25, generation=2)
    assert gang(scenario).checkpoints.newest_step is None, "the launcher reports to which one it returns"
    scenario.do("resumes C 20 10")
    checkpoints = gang(scenario).checkpoints
    assert (checkpoints.newest_step, checkpoints.resumed_step, checkpoints.steps) == (20, 20, (10, 20))
    scenario.apply(e.Checkpointed(gang="C", generation=2, step=24))
    assert gang(scenario).checkpoints.rollback is None, "what is saved after it stays"
    assert gang(scenario).checkpoints.has_progressed, "though step 30 was saved before"


def test_the_next_attempt_goes_back_too_until_one_has_saved() -> None:
    scenario = film(10, 20)
    scenario.apply(RollbackRequested(gang="C", step=10))
    assert begins_again(scenario) == Rollback(step=10, generation=2)
    scenario.apply(e.NodeLost(node=gang(scenario).nodes[0]))
    scenario.do("+10m")
    scenario.run_cycles()
    start = gang(scenario).attempt.start
    assert start is not None
    assert (start.generation, start.rollback) == (3, Rollback(step=10, generation=2))


@pytest.mark.parametrize(
    ("checkpoint", "step", "reason"),
    [
        (SECTION, 9, "C has no checkpoint of step 9 or before: its oldest checkpoint is of step 10"),
        (replace(SECTION, keep=2), 15, "C has no checkpoint of step 15 or before: its oldest checkpoint is of step 20"),
        (replace(SECTION, pattern="m.pt"), 20, "C has no checkpoints by step"),
        (None, 20, "C has no checkpoints by step"),
    ],
)
def test_a_step_without_a_checkpoint_is_refused(checkpoint: Checkpoint | None, step: int, reason: str) -> None:
    scenario = film(10, 20, 30, checkpoint=checkpoint)
    text = refusal(scenario.state, RollbackRequested(gang="C", step=step))
    assert text is not None
    assert text.startswith(reason)


def test_a_job_that_ends_does_not_go_back() -> None:
    scenario = film(10)
    scenario.apply(e.StopRequested(gang="C"))
    assert refusal(scenario.state, RollbackRequested(gang="C", step=10)) == "C is running already"
    finds(scenario, Finding.NAN, 12)
    assert gang(scenario).end_cause is Cause.USER
    assert refusal(scenario.state, RollbackRequested(gang="D", step=10)) == "D is not pending or running"


def test_kept_by_multiples_of_a_step() -> None:
    checkpoint = replace(SECTION, keep=1, keep_every=20)
    scenario = film(10, 20, 30, 40, 50, checkpoint=checkpoint)
    assert refusal(scenario.state, RollbackRequested(gang="C", step=35)) is None
    scenario.apply(RollbackRequested(gang="C", step=35))
    begins_again(scenario)
    assert gang(scenario).checkpoints.steps == (20,)


@pytest.mark.parametrize(
    ("finding", "watch", "cause"),
    [
        (Finding.NAN, None, None),
        (Finding.STALL, None, None),
        (Finding.NAN, Watch(nan="stop"), Cause.DIVERGED),
        (Finding.SPIKE, Watch(spike="stop", nan="ignore"), Cause.DIVERGED),
        (Finding.SLOW, Watch(slow="stop"), Cause.STALLED),
        (Finding.STALL, Watch(nan="stop"), None),
    ],
)
def test_a_finding_ends_a_job_whose_rules_say_so(finding: Finding, watch: Watch | None, cause: Cause | None) -> None:
    scenario = film(10, watch=watch)
    finds(scenario, finding, 12)
    scenario.run_cycles()
    assert (gang(scenario).end_cause, gang(scenario).attempt.stop_sent) == (cause, cause)
    assert gang(scenario).state is (GangState.STOPPING if cause else GangState.RUNNING)


def test_a_job_goes_back_as_often_as_its_rules_say() -> None:
    scenario = film(10, 20, watch=Watch(spike="rollback", max_rollbacks=1))
    finds(scenario, Finding.SPIKE, 20)
    assert begins_again(scenario) == Rollback(step=19, generation=2), "that of step 20 has the bad step"
    finds(scenario, Finding.SPIKE, 15)
    scenario.run_cycles()
    assert gang(scenario).end_cause is Cause.DIVERGED


def test_a_job_without_an_older_checkpoint_ends() -> None:
    scenario = film(20, watch=Watch(nan="rollback"))
    finds(scenario, Finding.NAN, 15)
    assert gang(scenario).end_cause is Cause.DIVERGED


def test_a_job_that_waits_begins_from_there() -> None:
    scenario = film(10, 20)
    scenario.apply(e.SuspendRequested(gang="C"))
    scenario.run_cycles()
    scenario.do("gone C")
    scenario.apply(RollbackRequested(gang="C", step=12))
    scenario.apply(e.ResumeRequested(gang="C"))
    scenario.run_cycles()
    start = gang(scenario).attempt.start
    assert start is not None
    assert (start.rollback, gang(scenario).checkpoints.steps) == (Rollback(step=12, generation=2), (10,))
