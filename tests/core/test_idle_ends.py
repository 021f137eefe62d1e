"""The end of idle jobs in the core: the notice, the state that follows, and events that come too late."""

from dataclasses import replace

import pytest

from ganger.core.fold.fold import refusal
from ganger.core.state.gang import Gang
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.idle.idle_event import Idle, IdleStep
from ganger.model.job import GangState
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from tests.laws.policies import POLICIES
from tests.pictures.film import Film


def film() -> Film:
    """Return a scenario in which C runs, and gets 30 s to save."""
    scenario = Film(POLICIES["priority"], "n1:.. n2:..", "")
    scenario.play("C:1x2 -> CC ..")
    gang = gang_of(scenario)
    gang.job = replace(gang.job, spec=replace(gang.job.spec, checkpoint=Checkpoint(grace_ms=30_000)))
    scenario.do("up C")
    return scenario


def gang_of(scenario: Film) -> Gang:
    return scenario.state.gangs["C"]


def idle(step: IdleStep, action: str = "suspend", generation: int = 1) -> Idle:
    return Idle(gang="C", generation=generation, step=step, idle_ms=1, left_ms=0, action=action)


@pytest.mark.parametrize(
    ("action", "cause", "leaving", "after"),
    [
        ("suspend", Cause.IDLE_SUSPEND, GangState.SUSPENDING, GangState.SUSPENDED),
        ("stop", Cause.IDLE_STOP, GangState.STOPPING, GangState.STOPPED),
    ],
)
def test_an_idle_job_gets_its_notice_and_then_leaves(
    action: str, cause: Cause, leaving: GangState, after: GangState
) -> None:
    scenario = film()
    gang = gang_of(scenario)
    scenario.apply(idle(IdleStep.ENDED, action))
    scenario.run_cycles()
    assert (gang.state, gang.attempt.stop_sent) == (leaving, cause)
    assert gang.attempt.notice_until_ms == scenario.now_ms + 30_000, "as a job that is preempted"
    scenario.do("gone C")
    scenario.run_cycles()
    assert (gang.state, gang.retries.used) == (after, 0)


def test_a_suspended_job_is_resumed_by_its_user() -> None:
    scenario = film()
    scenario.apply(idle(IdleStep.ENDED))
    scenario.run_cycles()
    scenario.do("gone C")
    scenario.apply(e.ResumeRequested(gang="C"))
    scenario.run_cycles()
    assert (gang_of(scenario).state, gang_of(scenario).attempt.generation) == (GangState.STARTING, 2)
    assert gang_of(scenario).suspends is None


def test_warnings_change_nothing() -> None:
    scenario = film()
    for step in (IdleStep.WARNED, IdleStep.ACTIVE):
        scenario.apply(idle(step))
        scenario.run_cycles()
    assert gang_of(scenario).state is GangState.RUNNING


@pytest.mark.parametrize("step", IdleStep)
def test_what_comes_too_late_is_stale(step: IdleStep) -> None:
    scenario = film()
    assert refusal(scenario.state, idle(step, generation=2)) == "generation 2 of C is over"
    scenario.apply(idle(IdleStep.ENDED, "stop"))
    assert refusal(scenario.state, idle(step)) == "idle of C generation 1 is known"
    scenario.run_cycles()
    assert refusal(scenario.state, idle(step)) == "idle of C generation 1 is known"
