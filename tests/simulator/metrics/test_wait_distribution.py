"""Waits of jobs by quantile and by how long jobs run, recounted from the jobs themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.metrics.wait_distribution import QUANTILES, duration_class, wait_by_duration, wait_quantiles_ms


def job(wait_ms: int, duration_ms: int, *, has_ended: bool = True) -> JobHistory:
    """Return a job that waits, runs for half of its time, is preempted for 7 ms, and runs to its end."""
    half_ms = duration_ms // 2
    running = ((wait_ms, wait_ms + half_ms), (wait_ms + half_ms + 7, wait_ms + duration_ms + 7))
    ended_ms = wait_ms + duration_ms + 7 if has_ended else None
    return JobHistory(
        tenant="t", gpu_milli=1000, submitted_ms=0, duration_ms=duration_ms, running=running, ended_ms=ended_ms
    )


JOBS = st.lists(
    st.builds(job, st.integers(0, DAY_MS), st.integers(2, 2 * DAY_MS), has_ended=st.booleans()), max_size=40
)


@given(JOBS)
def test_classes_and_quantiles_have_every_job_that_ended_once(jobs: list[JobHistory]) -> None:
    waits_ms = sorted(of.running[0][0] + 7 for of in jobs if of.ended_ms is not None)
    by_class, quantiles_ms = wait_by_duration(jobs), wait_quantiles_ms(jobs)
    assert sum(waits.n for waits in by_class.values()) == len(waits_ms)
    assert sum(waits.n * (waits.mean or 0) for waits in by_class.values()) == (
        0 if not waits_ms else pytest.approx(sum(waits_ms))
    )
    if not waits_ms:
        assert quantiles_ms == []
        return
    assert len(quantiles_ms) == QUANTILES + 1
    assert (quantiles_ms[0], quantiles_ms[-1]) == (waits_ms[0], waits_ms[-1])
    assert quantiles_ms == sorted(quantiles_ms)
    assert {*quantiles_ms} <= {*waits_ms}


def test_a_class_ends_before_the_next_begins() -> None:
    edges_ms = (0, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS)
    names = ["<1m", "1m-10m", "10m-1h", "1h-6h", "6h-1d", ">=1d"]
    assert [duration_class(edge_ms) for edge_ms in edges_ms] == names
    assert [duration_class(edge_ms - 1) for edge_ms in edges_ms[1:]] == names[:-1]
