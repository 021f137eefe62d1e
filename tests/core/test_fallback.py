"""An attempt that fails on the checkpoint it began from is followed by one on an older one, and not for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.state.gang import CheckpointFallback, Gang
from ganger.engine.query.event_text import checkpoint_text
from ganger.model import event as e
from ganger.model.evidence import PythonError, RankEnd
from ganger.model.job import GangState
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

UNPICKLING = PythonError(type="UnpicklingError", message="bad", file="train.py", line=8)


def film(says: str = "") -> Film:
    """C runs, and has begun from the checkpoint of step 10, before which there is one of step 8."""
    at = Film(POLICIES["priority"], "n1:.. n2:..", "")
    at.play(f"C:1x2{says} -> CC ..")
    at.do("resumes C 10 8")
    at.do("up C")
    return at


def gang(at: Film) -> Gang:
    return at.state.gangs["C"]


def fails(at: Film, error: PythonError | None = UNPICKLING, *, signal: int | None = None) -> None:
    """Its first rank ends by itself; then nothing is left of the attempt, and the next one begins if there is one."""
    code = None if signal else 1
    (node,) = gang(at).left
    end = RankEnd(rank=0, node=node, at_ms=at.now_ms, exit_code=code, signal=signal, error=error)
    cause = e.Cause.RANK_FAILED
    failed = e.Failed(
        gang="C",
        generation=gang(at).generation,
        node=node,
        cause=cause,
        rank=0,
        exit_code=code,
        signal=signal,
        ends=(end,),
        ranks=1,
    )
    at.apply(failed)


def next_attempt(at: Film) -> None:
    at.do("gone C")
    at.do("+10m")
    at.round()
    at.do("up C")


def skipped(at: Film) -> tuple[int, ...]:
    """What the attempt that runs passes over."""
    start = gang(at).start
    assert start is not None
    return start.skipped


@pytest.mark.parametrize(
    ("error", "signal"), [(UNPICKLING, None), (None, None), (None, 11)], ids=["exception", "exit code", "crash"]
)
def test_the_next_attempt_passes_over_the_checkpoint(error: PythonError | None, signal: int | None) -> None:
    at = film()
    fails(at, error, signal=signal)
    assert gang(at).state is GangState.REQUEUEING, "though the same error would end a job that has never made a step"
    assert gang(at).spent == 0
    assert checkpoint_text(gang(at)) == "; failed on the checkpoint of step 10, trying the one of step 8"
    next_attempt(at)
    assert (skipped(at), gang(at).resumed_step) == ((10,), 8)


@pytest.mark.parametrize("happens", ["fails C signal", "fails C launcher", "fails C hung", "fails C oom", "lose n1"])
def test_what_is_not_the_programs_says_nothing_of_the_checkpoint(happens: str) -> None:
    at = film()
    at.do(happens)
    assert (gang(at).fallback.skipped, gang(at).fallback.tried) == ((), ())


@pytest.mark.parametrize("progress", ["step C", "saves C 11"])
def test_an_attempt_that_got_further_says_nothing_of_the_checkpoint(progress: str) -> None:
    at = film()
    at.do(progress)
    fails(at)
    assert gang(at).fallback.skipped == ()


def test_a_gang_that_never_reports_a_step_is_past_its_checkpoint_after_a_while() -> None:
    at = film()
    at.do("+11m")
    fails(at)
    assert gang(at).fallback.skipped == ()


def test_a_gang_that_has_reported_steps_before_may_take_long_to_load() -> None:
    at = film()
    at.do("step C")
    fails(at, signal=9)
    next_attempt(at)
    at.do("resumes C 10 8")
    at.do("+11m")
    fails(at)
    assert gang(at).fallback.skipped == (10,)


def test_one_that_is_begun_from_since_no_other_is_whole_is_not_passed_over_again() -> None:
    at = film()
    fails(at)
    next_attempt(at)
    at.do("resumes C 10 8")
    fails(at, None)
    assert gang(at).fallback.skipped == (10,)
    assert gang(at).checkpoint_step == 10
    assert checkpoint_text(gang(at)) == "; failed on the checkpoint of step 10"


def test_an_attempt_that_has_not_told_where_it_began_does_not_fall_back_on_what_may_be_gone() -> None:
    at = film()
    at.do("saves C 20")
    fails(at, signal=9)
    next_attempt(at)
    fails(at)
    assert gang(at).fallback.skipped == ()


def test_without_an_older_one_it_ends_and_names_the_checkpoint() -> None:
    at = film()
    at.do("resumes C 10")
    fails(at)
    assert gang(at).state is GangState.FAILING
    assert checkpoint_text(gang(at)) == "; failed on the checkpoint of step 10, and there is no older one"


def test_a_later_failure_of_another_kind_does_not_speak_of_the_checkpoint() -> None:
    at = film(",max=3")
    at.do("resumes C 10")
    fails(at)
    next_attempt(at)
    at.do("fails C launcher")
    assert gang(at).resumed_step == 10
    assert checkpoint_text(gang(at)) == ""


def test_a_rule_of_the_job_decides_before() -> None:
    at = film(",rules=rank_failed:fail")
    fails(at)
    assert gang(at).state is GangState.FAILING


def test_the_retry_limit_of_the_job_holds() -> None:
    at = film(",max=1")
    fails(at)
    next_attempt(at)
    assert (skipped(at), gang(at).spent) == ((10,), 1)
    at.do("resumes C 8 6")
    fails(at, None)
    assert gang(at).state is GangState.FAILING
    assert checkpoint_text(gang(at)) == "; failed on each of the checkpoints of steps 10, 8"


def test_the_same_error_on_the_older_one_is_not_the_checkpoints() -> None:
    at = film()
    fails(at)
    next_attempt(at)
    at.do("resumes C 8 6")
    fails(at)
    assert gang(at).state is GangState.FAILING
    assert gang(at).fallback.skipped == (), "the newest one is as good as any"
    assert checkpoint_text(gang(at)) == "; failed on each of the checkpoints of steps 10, 8"


def test_another_error_on_the_older_one_leads_to_the_one_before_that_until_there_is_none() -> None:
    at = film()
    fails(at)
    next_attempt(at)
    at.do("resumes C 8 6")
    fails(at, None)
    next_attempt(at)
    assert (skipped(at), gang(at).resumed_step) == ((10, 8), 6)
    fails(at, PythonError(type="EOFError", file="train.py", line=8))
    assert gang(at).state is GangState.FAILING
    assert gang(at).generation == 3


@settings(max_examples=25)
@given(st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_without_progress_there_are_no_more_attempts_than_checkpoints(lines: list[int]) -> None:
    """Before the first step, where an error of the program ends a job at once. Checkpoints: 10, 8, 6, 4, 2."""
    at = film()
    attempts = 0
    for line in lines:
        if "C" not in at.state.gangs or gang(at).state is not GangState.RUNNING:
            break
        attempts += 1
        assert set(skipped(at)) <= set(range(gang(at).resumed_step or 0, 11)), "it never begins from one that it skips"
        fails(at, PythonError(type="ValueError", file="train.py", line=line))
        next_attempt(at) if gang(at).state is GangState.REQUEUEING else at.do("gone C")
        step = gang(at).resumed_step if "C" in at.state.gangs else None
        if step is not None and step > 2:
            at.do(f"resumes C {step} {step - 2}")
    assert attempts <= 5
    assert at.ended == {"C": "failed"}


def test_a_failed_checkpoint_is_passed_over_until_a_newer_one_or_its_own_step_is_saved() -> None:
    at = film()
    fails(at)
    next_attempt(at)
    for step, left in ((9, (10,)), (10, ())):
        at.apply(e.Checkpointed(gang="C", generation=gang(at).generation, step=step))
        assert gang(at).fallback == CheckpointFallback(older_step=step - 1, skipped=left)


def test_once_a_step_is_made_the_same_error_may_be_the_checkpoints_again() -> None:
    at = film()
    fails(at)
    next_attempt(at)
    at.do("resumes C 8 6")
    at.do("step C")
    assert (gang(at).fallback.failure, gang(at).fallback.tried) == ("", ())
    assert gang(at).fallback.skipped == (10,)
