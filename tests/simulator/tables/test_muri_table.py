"""The table of Muri in a reduced form: its small trace under every policy, to the sixth digit.

The peer's rules are tested on small jobs.
"""

import pytest

from bench.tables.muri import (
    BARS,
    HELD,
    JCT,
    MAKESPAN,
    SECOND_US,
    Job,
    Row,
    advance,
    by_their_rules,
    limit_us,
    published,
    shortest,
    tiresias,
)
from tests.examples import one_in_gate
from tests.simulator.trace_samples import TRACES

SMALL = ("trace3", "trace3_pr")


@pytest.mark.parametrize("row", one_in_gate(sorted(HELD) if (TRACES / "expected").exists() else ()))
def test_as_published(row: tuple[str, str]) -> None:
    if row[0] in SMALL:
        theirs, ours = published()[Row(*row)], by_their_rules(Row(*row))
        assert {metric: pytest.approx(value, rel=1e-6) for metric, value in theirs.items()} == ours


def job(number: int, gpus: int, work_s: int, submitted_s: int = 0, start_s: int = 0) -> Job:
    return Job(number, submitted_s * SECOND_US, gpus, work_s * SECOND_US, start_s * SECOND_US)


def ended_s(jobs: list[Job]) -> list[float]:
    return [(each.ended_us or 0) / SECOND_US for each in jobs]


def test_a_start_costs_at_every_event() -> None:
    """The end of the short job is an event of the long one too, whose own end comes when it was predicted then."""
    jobs = [job(0, 1, 100, start_s=10), job(1, 1, 30, start_s=10)]
    advance(jobs, lambda live: shortest(live, lambda _: 1), lambda _: None)
    assert ended_s(jobs) == [110, 30]


def test_what_does_not_fit_is_stopped() -> None:
    """The short job takes a whole node, so that no 64 GPUs are left."""
    jobs = [job(0, 64, 100), job(1, 8, 20, submitted_s=10)]
    advance(jobs, lambda live: shortest(live, lambda _: 1), lambda _: None)
    assert ended_s(jobs) == [120, 30]


def test_service_is_what_is_compared_and_not_time() -> None:
    jobs = [job(0, 64, 100), job(1, 1, 6_000)]
    advance(jobs, lambda live: shortest(live, lambda each: each.gpus), lambda _: None)
    assert ended_s(jobs) == [6_100, 6_000]


def test_a_job_over_its_threshold_goes_behind_others() -> None:
    """A job on 64 GPUs reaches 3,250 GPU-seconds after 51 whole seconds."""
    jobs = [job(0, 64, 100), job(1, 64, 10)]
    advance(jobs, tiresias, limit_us)
    assert ended_s(jobs) == [110, 61]
    assert [each.queue for each in jobs] == [1, 0]


def test_bars_of_the_table() -> None:
    assert BARS == {JCT: 0.001, MAKESPAN: 0.005}
    assert len(HELD) == 16
