"""Metrics of a gang in the core: over its attempts, until its end, and after the loss of a node."""

import pytest

from ganger.core.fold.fold import refusal
from ganger.core.state.gang import Gang
from ganger.engine.eventlog import job_checkpoint
from ganger.engine.eventlog.projection import project
from ganger.model import event as e
from ganger.model.job_metrics import MAX_METRICS, MAX_POINTS, Curve, JobMetric, JobMetrics
from tests.laws.policies import POLICIES
from tests.pictures.film import Film


def loss(step: int, last: float | None, least: float | None = None, most: float | None = None) -> JobMetric:
    """Return a metric whose lowest and highest value are of the same step as the last."""
    steps = {"min_step": None if least is None else step, "max_step": None if most is None else step}
    return JobMetric(name="loss", last_step=step, last=last, min=least, max=most, **steps)


def kept(generation: int, *values: JobMetric, left_out: int = 0) -> e.MetricsKept:
    return e.MetricsKept(gang="C", generation=generation, metrics=JobMetrics(values=values, left_out=left_out))


def test_metrics_of_all_attempts_are_in_the_row_of_the_job() -> None:
    scenario = Film(POLICIES["priority"], "n1:.. n2:..", "")
    scenario.play("C:1x2 -> CC ..")
    gang: Gang = scenario.state.gangs["C"]
    scenario.do("up C")
    scenario.apply(kept(1, loss(40, 2.0, 1.0, 9.0)))
    assert refusal(scenario.state, kept(2, loss(1, 1.0))) is not None, "no such attempt"
    for action in ("suspend C", "gone C", "resume C"):
        scenario.do(action)
        scenario.run_cycles()
    assert gang.attempt.generation == 2
    scenario.apply(kept(1, loss(50, 2.0, 1.5, 9.5)))
    scenario.apply(kept(2, loss(45, 0.5, 0.5, 3.0), JobMetric(name="acc", last_step=45, last=None)))
    expected = JobMetric(name="loss", last_step=45, last=0.5, min_step=45, min=0.5, max_step=50, max=9.5)
    checkpoint = job_checkpoint.encode(job_checkpoint.JobCheckpoint(gangs=(gang,)))
    assert job_checkpoint.decode(checkpoint, "C").gangs[0].metrics == gang.metrics, "for the next controller"
    row = project(gang, scenario.now_ms).row
    assert row.metrics.values == (expected, JobMetric(name="acc", last_step=45, last=None))


@pytest.mark.parametrize("more", [0, 5])
def test_a_job_has_a_limited_number_of_metrics(more: int) -> None:
    first = JobMetrics(values=tuple(JobMetric(name=f"a{i}", last_step=1, last=0.0) for i in range(30)), left_out=more)
    second = JobMetrics(values=tuple(JobMetric(name=f"b{i}", last_step=1, last=0.0) for i in range(4)))
    both = first.followed_by(second)
    assert [metric.name for metric in both.values[-3:]] == ["a29", "b0", "b1"]
    assert (len(both.values), both.left_out) == (MAX_METRICS, max(2, more))


def test_a_later_attempt_replaces_the_steps_that_it_repeats() -> None:
    first = Curve(name="loss", points=((0, 1, 9.0), (10, 2, 8.0), (20, 3, None)))
    second = Curve(name="loss", points=((10, 7, 4.0), (30, 9, 3.0)))
    assert first.followed_by(second).points == ((0, 1, 9.0), (10, 7, 4.0), (30, 9, 3.0))
    assert first.followed_by(Curve(name="loss")).points == first.points


def test_a_curve_over_attempts_is_thinned() -> None:
    first = Curve(name="loss", points=tuple((step, step, 1.0) for step in range(900)))
    second = Curve(name="loss", points=tuple((step, step, 2.0) for step in range(800, 1_700)))
    points = first.followed_by(second).points
    assert MAX_POINTS // 2 <= len(points) <= MAX_POINTS
    assert (points[0], points[-1]) == ((0, 0, 1.0), (1_699, 1_699, 2.0))
