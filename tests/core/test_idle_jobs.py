"""Idle jobs: measurements every 10 s, and what follows from them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.queues.idle_jobs import (
    MAX_GAP_MS,
    Activity,
    IdleJob,
    next_idle,
    rules_of_queue,
    warning_times_ms,
)
from ganger.core.queues.quota import QueueTree
from ganger.core.undo import Undo
from ganger.model.idle.idle_event import IdleStep
from ganger.model.idle.idle_rules import IdleRules
from ganger.model.queue import ROOT, Queue
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

START_MS = 1_000_000_000
CAPACITY = (8, 64_000, 1 << 40)
SAMPLE_MS = 10 * SECOND_MS
HALF_HOUR = IdleRules(window_ms=30 * MINUTE_MS)
KINDS = {"i": Activity.IDLE, "a": Activity.ACTIVE, "?": Activity.UNKNOWN}


class Measured:
    """One job, measured again and again; `steps` are what followed, each with the minutes since the start."""

    def __init__(self, rules: IdleRules) -> None:
        self.rules, self.now_ms = rules, START_MS
        self.generation, self.progress = 1, 0
        self.job: IdleJob | None = None
        self.steps: list[tuple[float, str]] = []

    def measure(self, activity: Activity) -> None:
        measured = IdleJob(
            generation=self.generation, since_ms=self.now_ms, measured_ms=self.now_ms, progress=(self.progress,)
        )
        self.job, step = next_idle(self.job, measured, activity, self.rules)
        if step is not None:
            self.steps.append((round((self.now_ms - START_MS) / MINUTE_MS, 2), step.value))

    def minutes(self, count: float, activity: Activity = Activity.IDLE) -> "Measured":
        """Measure that for some minutes."""
        for _ in range(round(count * MINUTE_MS / SAMPLE_MS)):
            self.measure(activity)
            self.now_ms += SAMPLE_MS
        return self


@pytest.mark.parametrize(
    ("window_ms", "times_ms"),
    [
        (HOUR_MS, (15 * MINUTE_MS, 5 * MINUTE_MS)),
        (30 * MINUTE_MS, (15 * MINUTE_MS, 5 * MINUTE_MS)),
        (12 * MINUTE_MS, (6 * MINUTE_MS, 2 * MINUTE_MS)),
    ],
)
def test_a_job_is_warned_a_quarter_of_an_hour_before_or_half_of_a_short_window(
    window_ms: int, times_ms: tuple[int, int]
) -> None:
    assert warning_times_ms(window_ms) == times_ms


def test_an_idle_job_is_warned_twice_and_ends() -> None:
    job = Measured(IdleRules(window_ms=HOUR_MS)).minutes(60.5)
    assert job.steps == [(45, "warned"), (55, "warned"), (60, "ended")]


@pytest.mark.parametrize("activity", [Activity.ACTIVE, Activity.UNKNOWN])
@pytest.mark.parametrize(("before", "steps"), [(10, []), (20, [(20, "active")]), (29, [(29, "active")])])
def test_activity_or_none_that_is_measured_starts_the_window_over(
    activity: Activity, before: int, steps: list[tuple[float, str]]
) -> None:
    job = Measured(HALF_HOUR).minutes(before).minutes(1 / 6, activity).minutes(14)
    assert [step for step in job.steps if step[1] != "warned"] == steps
    after = Measured(HALF_HOUR)
    after.job, after.now_ms = job.job, job.now_ms
    assert after.minutes(16.5).steps[-1] == (before + 30.17, "ended"), "a whole window after it"


@pytest.mark.parametrize("change", ["generation", "progress"])
def test_an_attempt_or_a_checkpoint_starts_the_window_over(change: str) -> None:
    job = Measured(HALF_HOUR).minutes(26)
    setattr(job, change, 7)
    assert job.minutes(30.5).steps[-1] == (56, "ended")
    assert ((26, "active") in job.steps) is (change == "progress"), "the attempt that was warned is over"


@pytest.mark.parametrize("gap_ms", [MAX_GAP_MS + 1, 5 * HOUR_MS, -HOUR_MS])
def test_a_gap_in_the_measurements_or_a_clock_that_jumps_ends_no_job(gap_ms: int) -> None:
    job = Measured(HALF_HOUR).minutes(29)
    job.now_ms += gap_ms - SAMPLE_MS
    assert [step for _, step in job.minutes(1).steps] == ["warned", "warned", "active"]
    assert job.job is not None
    assert job.job.since_ms == START_MS + 29 * MINUTE_MS + gap_ms - SAMPLE_MS


def test_an_exemption_ends_and_a_whole_window_follows() -> None:
    job = Measured(IdleRules(window_ms=30 * MINUTE_MS, exempt_until_ms=START_MS + HOUR_MS))
    assert job.minutes(91).steps == [(75, "warned"), (85, "warned"), (90, "ended")]
    past = Measured(IdleRules(window_ms=30 * MINUTE_MS, exempt_until_ms=START_MS - DAY_MS))
    assert past.minutes(31).steps == [(15, "warned"), (25, "warned"), (30, "ended")], "one in the past changes nothing"


def test_an_exemption_takes_a_warning_back() -> None:
    job = Measured(HALF_HOUR).minutes(26)
    job.rules = IdleRules(window_ms=30 * MINUTE_MS, exempt_until_ms=START_MS + DAY_MS)
    assert job.minutes(10).steps == [(15, "warned"), (25, "warned"), (26, "active")]


def test_a_window_that_becomes_shorter_ends_no_job_without_a_warning() -> None:
    job = Measured(IdleRules(window_ms=DAY_MS)).minutes(60)
    job.rules = HALF_HOUR
    assert job.minutes(10).steps == [(60, "warned"), (60.17, "warned"), (65, "ended")]


def test_a_window_that_becomes_longer_takes_a_warning_back() -> None:
    job = Measured(HALF_HOUR).minutes(26)
    job.rules = IdleRules(window_ms=HOUR_MS)
    assert job.minutes(35).steps[2:] == [(26, "active"), (45, "warned"), (55, "warned"), (60, "ended")]


@given(
    st.lists(st.tuples(st.sampled_from("iiii?a"), st.integers(1, 400), st.integers(0, 3)), max_size=30),
    st.sampled_from([MINUTE_MS, 7 * MINUTE_MS, 30 * MINUTE_MS]),
)
def test_only_a_job_that_was_idle_in_a_whole_window_of_measurements_ends(
    spans: list[tuple[str, int, int]], window_ms: int
) -> None:
    job, measured = Measured(IdleRules(window_ms=window_ms)), list[tuple[int, str]]()
    for kind, count, missing in spans:
        for _ in range(count):
            before = len(job.steps)
            measured.append((job.now_ms, kind))
            job.measure(KINDS[kind])
            if len(job.steps) > before and job.steps[-1][1] == "ended":
                window = [item for item in measured if item[0] >= job.now_ms - window_ms]
                assert all(kind == "i" for _, kind in window)
                times_ms = [at_ms for at_ms, _ in window]
                assert all(after - earlier <= MAX_GAP_MS for earlier, after in pairwise(times_ms))
                assert times_ms[0] - (job.now_ms - window_ms) <= MAX_GAP_MS
                warned_ms = [START_MS + at * MINUTE_MS for at, step in job.steps if step == "warned"]
                assert job.now_ms - warned_ms[-1] <= window_ms, "it was warned within the window"
            job.now_ms += SAMPLE_MS
        job.now_ms += missing * MAX_GAP_MS


def test_a_queue_has_the_rules_of_the_nearest_queue_above_it() -> None:
    queues = [Queue(name=ROOT, parent=None, idle=HALF_HOUR), Queue(name="a"), Queue(name="b", parent="a")]
    own = IdleRules(window_ms=HOUR_MS)
    tree = QueueTree([*queues, Queue(name="c", parent="b", idle=own)], CAPACITY, Undo())
    assert [rules_of_queue(tree, name) for name in (ROOT, "a", "b", "c")] == [HALF_HOUR, HALF_HOUR, HALF_HOUR, own]
    plain = QueueTree([Queue(name=ROOT, parent=None)], CAPACITY, Undo())
    assert rules_of_queue(plain, ROOT) is None


def test_steps_are_codes_of_the_api() -> None:
    assert [*IdleStep] == ["warned", "active", "ended"]
