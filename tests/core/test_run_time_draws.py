"""Run times that forecasts draw for jobs without a limit: of several batches, not of the newest one alone."""

from ganger.core.state.runtime_estimate import ESTIMATE_SAMPLES, MAX_SAMPLES, STEP_MS, RunTimeHistory
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.units import HOUR_MS, MINUTE_MS

JOB = Job(
    id="j",
    user="ada",
    spec=JobSpec(run="x", resources=Resources(gpu=GpuRequest(count=1))),
    origin=Origin(directory="/"),
)
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.99)


def _history(*batches: tuple[int, int]) -> RunTimeHistory:
    """Return a history of batches: how many jobs, and how long each of them ran."""
    history = RunTimeHistory()
    for jobs, run_ms in batches:
        for _ in range(jobs):
            history.learn(JOB, JOB.spec.shape, run_ms)
    history.validate(RunTimeHistory(history.image()))
    return history


def _drawn(history: RunTimeHistory, ran_ms: int = 0) -> list[int | None]:
    return [history.draw_ms(JOB, JOB.spec.shape, ran_ms, fraction) for fraction in FRACTIONS]


def test_draws_know_earlier_batches_that_an_estimate_has_forgotten() -> None:
    history = _history((ESTIMATE_SAMPLES, HOUR_MS), (ESTIMATE_SAMPLES, MINUTE_MS))
    assert _drawn(history) == [MINUTE_MS, MINUTE_MS, HOUR_MS, HOUR_MS, HOUR_MS]
    estimate = history.estimate(JOB, JOB.spec.shape, 0)
    assert estimate is not None
    assert (estimate.run_ms, estimate.of) == (MINUTE_MS, ESTIMATE_SAMPLES)


def test_a_job_that_has_run_draws_from_longer_ones() -> None:
    history = _history((ESTIMATE_SAMPLES, HOUR_MS), (ESTIMATE_SAMPLES, MINUTE_MS))
    assert _drawn(history, MINUTE_MS) == [HOUR_MS] * len(FRACTIONS)
    assert _drawn(history, HOUR_MS) == [HOUR_MS + max(STEP_MS, HOUR_MS // 2)] * len(FRACTIONS)


def test_draws_follow_new_run_times_and_forget_the_oldest() -> None:
    history = _history((MAX_SAMPLES, HOUR_MS))
    assert _drawn(history) == [HOUR_MS] * len(FRACTIONS)
    for _ in range(MAX_SAMPLES):
        history.learn(JOB, JOB.spec.shape, MINUTE_MS)
    assert _drawn(history) == [MINUTE_MS] * len(FRACTIONS)
    history.validate(RunTimeHistory(history.image()))
