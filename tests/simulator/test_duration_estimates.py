"""Estimates of durations: what policies plan with, and what errors cost."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.estimate_arguments import estimates_from
from ganger.simulation.duration_estimates import EXACT, RECORDED
from ganger.simulation.estimate_regret import regret_json
from ganger.simulation.trace_replay import TraceRun, simulate_trace
from tests.simulator.test_metamorphic_laws import figures
from tests.simulator.test_trace_replay import QUEUE, M, cluster, recorded, run, spans

LIMITED = replace(QUEUE, records=tuple(replace(job, limit_ms=60 * M) for job in QUEUE.records))
"""Each job asks for an hour, so that none is expected to end before the first."""


def planned(order: str, estimates: str, **more: Any) -> TraceRun:
    return run(more.pop("trace", LIMITED), cluster(1, 8), order, estimates=estimates_from(estimates), **more)


@pytest.mark.parametrize("order", ["dynamic", "easy", "conservative"])
def test_policies_plan_with_the_limits_of_the_trace(order: str) -> None:
    """Limits were read and never used, so that these orders always ran with the true durations."""
    jobs = recorded((0, 10, 6), (1, 20, 8), (2, 5, 2))
    limited = replace(jobs, records=tuple(replace(job, limit_ms=60 * M) for job in jobs.records))
    longer = replace(limited, records=(replace(limited.records[0], limit_ms=10 * M), *limited.records[1:]))
    assert spans(run(limited, cluster(1, 8), order, estimates=EXACT))[2] == [(2, 7)]
    assert spans(run(longer, cluster(1, 8), order))[2] == [(30, 35)]
    assert spans(run(longer, cluster(1, 8), order)) == spans(run(longer, cluster(1, 8), order, estimates=RECORDED))


def test_a_limit_that_the_recorded_job_outran_does_not_end_it() -> None:
    short = replace(QUEUE, records=tuple(replace(job, limit_ms=1) for job in QUEUE.records))
    assert figures(planned("easy", "recorded", trace=short)) == figures(planned("easy", "exact", trace=short))


@pytest.mark.parametrize("order", ["dynamic", "easy", "sjf"])
@pytest.mark.parametrize("estimates", ["factor=1", "noisy=1"])
def test_a_factor_of_one_is_exact(order: str, estimates: str) -> None:
    assert figures(planned(order, estimates)) == figures(planned(order, "exact"))


@pytest.mark.parametrize("estimates", ["recorded", "factor=3", "noisy=9"])
def test_an_order_that_plans_nothing_has_no_regret(estimates: str) -> None:
    assert figures(planned("strict_fifo", estimates)) == figures(planned("strict_fifo", "exact"))


@given(st.integers(1, 20), st.integers(0, 5))
def test_noise_is_drawn_by_seed_between_one_and_the_factor(factor: int, seed: int) -> None:
    estimates = estimates_from(f"noisy={factor}", seed)
    drawn = [estimates.of(job) for job in QUEUE.records]
    assert drawn == [estimates.of(job) for job in QUEUE.records[::-1]][::-1]
    assert all(job.duration_ms <= ms <= factor * job.duration_ms for job, ms in zip(QUEUE.records, drawn, strict=True))
    assert factor == 1 or drawn != [estimates_from(f"noisy={factor}", seed + 1).of(job) for job in QUEUE.records]


def test_regret_is_the_wait_with_estimates_by_the_wait_without() -> None:
    jobs = recorded((0, 10, 6), (1, 20, 8), (2, 5, 2))
    limits = (10, 20, 60)
    records = tuple(replace(job, limit_ms=limit * M) for job, limit in zip(jobs.records, limits, strict=True))
    asked = run(replace(jobs, records=records), cluster(1, 8), "easy")
    assert regret_json(asked, simulate_trace(asked)) == {
        "estimates": "recorded",
        "wait_ms": (0 + 9 + 28) * M / 3,
        "exact_wait_ms": (0 + 9 + 0) * M / 3,
        "regret": pytest.approx(37 / 9),
    }
    exact = replace(asked, estimates=EXACT)
    assert regret_json(exact, simulate_trace(exact)) is None


@pytest.mark.parametrize("text", ["", "true", "factor", "factor=0.5", "noisy=0", "noisy=-2", "factor=1e3", "exact=2"])
def test_what_is_no_estimate_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        estimates_from(text)
    assert "--estimates" in refused.value.next
