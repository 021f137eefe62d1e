"""After an attempt that fails on its checkpoint, the next one resumes from an older one, a limited number of times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import CheckpointFallback
from ganger.engine.query.event_text import failure_end_text
from ganger.model import event as e
from ganger.model.evidence import PythonError, RankEnd
from ganger.model.job import GangState
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

UNPICKLING = PythonError(type="UnpicklingError", message="bad", file="train.py", line=8)


def film(says: str = "") -> Film:
    """Return a scenario in which C runs, resumed from the checkpoint of step 10, with an older one of step 8."""
    scenario = Film(POLICIES["priority"], "n1:.. n2:..", "")
    scenario.play(f"C:1x2{says} -> CC ..")
    scenario.do("resumes C 10 8")
    scenario.do("up C")
    return scenario


def gang(scenario: Film) -> Gang:
    return scenario.state.gangs["C"]


def fails(scenario: Film, error: PythonError | None = UNPICKLING, *, signal: int | None = None) -> None:
    """Fail the first rank; then clear the attempt, and start the next one if there is one."""
    code = None if signal else 1
    (node,) = gang(scenario).attempt.left
    end = RankEnd(rank=0, node=node, at_ms=scenario.now_ms, exit_code=code, signal=signal, error=error)
    cause = e.Cause.RANK_FAILED
    failed = e.Failed(
        gang="C",
        generation=gang(scenario).attempt.generation,
        node=node,
        cause=cause,
        rank=0,
        exit_code=code,
        signal=signal,
        ends=(end,),
        ranks=1,
    )
    scenario.apply(failed)


def next_attempt(scenario: Film) -> None:
    scenario.do("gone C")
    scenario.do("+10m")
    scenario.run_cycles()
    scenario.do("up C")


def skipped(scenario: Film) -> tuple[int, ...]:
    """Return the checkpoints that the running attempt skips."""
    start = gang(scenario).attempt.start
    assert start is not None
    return start.skipped


@pytest.mark.parametrize(
    ("error", "signal"), [(UNPICKLING, None), (None, None), (None, 11)], ids=["exception", "exit code", "crash"]
)
def test_the_next_attempt_passes_over_the_checkpoint(error: PythonError | None, signal: int | None) -> None:
    scenario = film()
    fails(scenario, error, signal=signal)
    assert gang(scenario).state is GangState.REQUEUEING, (
        "though the same error would end a job that has never made a step"
    )
    assert gang(scenario).retries.used == 0
    assert "; failed on the checkpoint of step 10, trying the one of step 8" in failure_end_text(gang(scenario))
    next_attempt(scenario)
    assert (skipped(scenario), gang(scenario).checkpoints.resumed_step) == ((10,), 8)


@pytest.mark.parametrize("happens", ["fails C signal", "fails C launcher", "fails C hung", "fails C oom", "lose n1"])
def test_what_is_not_the_programs_says_nothing_of_the_checkpoint(happens: str) -> None:
    scenario = film()
    scenario.do(happens)
    assert (gang(scenario).checkpoints.fallback.skipped, gang(scenario).checkpoints.fallback.tried) == ((), ())


@pytest.mark.parametrize("progress", ["step C", "saves C 11"])
def test_an_attempt_that_got_further_says_nothing_of_the_checkpoint(progress: str) -> None:
    scenario = film()
    scenario.do(progress)
    fails(scenario)
    assert gang(scenario).checkpoints.fallback.skipped == ()


def test_a_gang_that_never_reports_a_step_is_past_its_checkpoint_after_a_while() -> None:
    scenario = film()
    scenario.do("+11m")
    fails(scenario)
    assert gang(scenario).checkpoints.fallback.skipped == ()


def test_a_gang_that_has_reported_steps_before_may_take_long_to_load() -> None:
    scenario = film()
    scenario.do("step C")
    fails(scenario, signal=9)
    next_attempt(scenario)
    scenario.do("resumes C 10 8")
    scenario.do("+11m")
    fails(scenario)
    assert gang(scenario).checkpoints.fallback.skipped == (10,)


def test_one_that_is_begun_from_since_no_other_is_whole_is_not_passed_over_again() -> None:
    scenario = film()
    fails(scenario)
    next_attempt(scenario)
    scenario.do("resumes C 10 8")
    fails(scenario, None)
    assert gang(scenario).checkpoints.fallback.skipped == (10,)
    assert gang(scenario).checkpoints.newest_step == 10
    text = failure_end_text(gang(scenario))
    assert "; failed on the checkpoint of step 10" in text
    assert "trying" not in text
    assert "no older" not in text


def test_an_attempt_that_has_not_reported_where_it_began_does_not_fall_back_on_what_may_be_gone() -> None:
    scenario = film()
    scenario.do("saves C 20")
    fails(scenario, signal=9)
    next_attempt(scenario)
    fails(scenario)
    assert gang(scenario).checkpoints.fallback.skipped == ()


def test_without_an_older_one_it_ends_and_names_the_checkpoint() -> None:
    scenario = film()
    scenario.do("resumes C 10")
    fails(scenario)
    assert gang(scenario).state is GangState.FAILING
    assert "; failed on the checkpoint of step 10, and there is no older one" in failure_end_text(gang(scenario))


def test_a_later_failure_of_another_kind_does_not_speak_of_the_checkpoint() -> None:
    scenario = film(",max=3")
    scenario.do("resumes C 10")
    fails(scenario)
    next_attempt(scenario)
    scenario.do("fails C launcher")
    assert gang(scenario).checkpoints.resumed_step == 10
    assert "failed on" not in failure_end_text(gang(scenario))


def test_a_rule_of_the_job_decides_before() -> None:
    scenario = film(",rules=rank_failed:fail")
    fails(scenario)
    assert gang(scenario).state is GangState.FAILING


def test_the_retry_limit_of_the_job_holds() -> None:
    scenario = film(",max=1")
    fails(scenario)
    next_attempt(scenario)
    assert (skipped(scenario), gang(scenario).retries.used) == ((10,), 1)
    scenario.do("resumes C 8 6")
    fails(scenario, None)
    assert gang(scenario).state is GangState.FAILING
    assert "; failed on each of the checkpoints of steps 10, 8" in failure_end_text(gang(scenario))


def test_the_same_error_on_the_older_one_is_not_the_checkpoints() -> None:
    scenario = film()
    fails(scenario)
    next_attempt(scenario)
    scenario.do("resumes C 8 6")
    fails(scenario)
    assert gang(scenario).state is GangState.FAILING
    assert gang(scenario).checkpoints.fallback.skipped == (), "the newest one is as good as any"
    assert "; failed on each of the checkpoints of steps 10, 8" in failure_end_text(gang(scenario))


def test_another_error_on_the_older_one_leads_to_the_one_before_that_until_there_is_none() -> None:
    scenario = film()
    fails(scenario)
    next_attempt(scenario)
    scenario.do("resumes C 8 6")
    fails(scenario, None)
    next_attempt(scenario)
    assert (skipped(scenario), gang(scenario).checkpoints.resumed_step) == ((10, 8), 6)
    fails(scenario, PythonError(type="EOFError", file="train.py", line=8))
    assert gang(scenario).state is GangState.FAILING
    assert gang(scenario).attempt.generation == 3


@settings(max_examples=25)
@given(st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_without_progress_there_are_no_more_attempts_than_checkpoints(lines: list[int]) -> None:
    """Fail before the first step, where an error of the program ends a job at once. Checkpoints: 10, 8, 6, 4, 2."""
    scenario = film()
    attempts = 0
    for line in lines:
        if "C" not in scenario.state.gangs or gang(scenario).state is not GangState.RUNNING:
            break
        attempts += 1
        assert set(skipped(scenario)) <= set(range(gang(scenario).checkpoints.resumed_step or 0, 11)), (
            "it never begins from one that it skips"
        )
        fails(scenario, PythonError(type="ValueError", file="train.py", line=line))
        next_attempt(scenario) if gang(scenario).state is GangState.REQUEUEING else scenario.do("gone C")
        step = gang(scenario).checkpoints.resumed_step if "C" in scenario.state.gangs else None
        if step is not None and step > 2:
            scenario.do(f"resumes C {step} {step - 2}")
    assert attempts <= 5
    assert scenario.ended == {"C": "failed"}


def test_a_failed_checkpoint_is_passed_over_until_a_newer_one_or_its_own_step_is_saved() -> None:
    scenario = film()
    fails(scenario)
    next_attempt(scenario)
    for step, left in ((9, (10,)), (10, ())):
        scenario.apply(e.Checkpointed(gang="C", generation=gang(scenario).attempt.generation, step=step))
        assert gang(scenario).checkpoints.fallback == CheckpointFallback(older_step=step - 1, skipped=left)


def test_once_a_step_is_made_the_same_error_may_be_the_checkpoints_again() -> None:
    scenario = film()
    fails(scenario)
    next_attempt(scenario)
    scenario.do("resumes C 8 6")
    scenario.do("step C")
    assert (gang(scenario).checkpoints.fallback.failure, gang(scenario).checkpoints.fallback.tried) == ("", ())
    assert gang(scenario).checkpoints.fallback.skipped == (10,)
