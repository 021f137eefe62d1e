"""Time series of runs, compared with sums over every tick of small drawn runs."""

from collections.abc import Sequence
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ganger.model import event as e
from ganger.simulation.metrics.occupancy import Occupancy
from ganger.simulation.metrics.run_history import JobHistory, waiting_intervals
from ganger.simulation.metrics.time_series import INTERVALS, longest_waiting, series
from ganger.simulation.trace_replay import simulate_trace
from tests.simulator.test_trace_replay import QUEUE, cluster, recorded, run


@st.composite
def histories(draw: st.DrawFn) -> list[JobHistory]:
    """Draw jobs in order of submission that ran in up to three intervals, some of which ended."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        marks = sorted(draw(st.lists(st.integers(0, 300), min_size=1, max_size=7, unique=True)))
        running = tuple(zip(marks[1::2], marks[2::2], strict=False))
        has_ended = bool(running) and draw(st.booleans())
        gpu_milli = 1000 * draw(st.integers(1, 40))
        found.append(
            JobHistory(
                tenant=draw(st.sampled_from("ab")),
                gpu_milli=gpu_milli,
                submitted_ms=marks[0],
                duration_ms=10,
                running=running,
                ended_ms=running[-1][1] if has_ended else None,
            )
        )
    return sorted(found, key=lambda job: job.submitted_ms)


def runs_at(job: JobHistory, ms: int) -> bool:
    return any(begin <= ms < end for begin, end in job.running)


def waits_at(job: JobHistory, ms: int) -> bool:
    until = 1 << 62 if job.ended_ms is None else job.ended_ms
    return job.submitted_ms <= ms < until and not runs_at(job, ms)


@given(histories())
def test_intervals_add_up_to_the_sum_over_ticks(jobs: list[JobHistory]) -> None:
    found = series(jobs)
    first = jobs[0].submitted_ms
    last = max((end for job in jobs for _, end in job.running), default=first)
    ticks = range(first, first + max(last - first, INTERVALS))

    def total(values: Sequence[float]) -> float:
        return sum(values) * found.step_ms

    near = pytest.approx
    gpus = {job: job.gpu_milli // 1000 for job in jobs}
    ran = sum(gpus[job] for ms in ticks for job in jobs if runs_at(job, ms))
    assert total(found.allocated) == near(ran, rel=1e-3, abs=0.1)
    waited_for = sum(gpus[job] for ms in ticks for job in jobs if waits_at(job, ms))
    assert total(found.waiting_gpus) == near(waited_for, rel=1e-3, abs=0.1)
    many = sum(waits_at(job, ms) for ms in ticks for job in jobs)
    assert total(found.waiting_jobs) == near(many, rel=1e-3, abs=0.1)
    assert sum(map(total, found.waiting.values())) == near(many, rel=1e-3, abs=0.1)
    if found.tenants:
        assert sum(map(total, found.tenants.values())) == near(ran, rel=1e-3, abs=0.1)


@given(histories())
def test_the_longest_waiting_job_has_the_earliest_submission(jobs: list[JobHistory]) -> None:
    moments = range(0, 310, 3)
    want = [next((at for at, job in enumerate(jobs) if waits_at(job, ms)), None) for ms in moments]
    assert list(longest_waiting(jobs, moments)) == want


def test_a_job_waits_again_after_a_preemption_and_no_more_after_its_end() -> None:
    job = JobHistory(tenant="a", gpu_milli=1, submitted_ms=5, duration_ms=1, running=((7, 9), (12, 20)), ended_ms=20)
    assert list(waiting_intervals(job)) == [(5, 7), (9, 12)]


@pytest.mark.parametrize("order", ["strict_fifo", "srtf"])
def test_bars_are_allocations_and_never_overlap_on_a_gpu(order: str) -> None:
    nodes = cluster(2, 4)
    occupancy = Occupancy(nodes, 1)
    rows: list[e.Stamped] = []
    outcome = simulate_trace(run(QUEUE, nodes, order), occupancy.fold, rows.append)
    assert occupancy.bars
    for at, job in enumerate(outcome.histories):
        had = sum(len(bar.devices) * (bar.to_ms - bar.from_ms) for bar in occupancy.bars if bar.job == at)
        assert had * 1000 == job.gpu_milli * sum(end - begin for begin, end in job.running)
    spans = [(bar.node, device, bar.from_ms, bar.to_ms) for bar in occupancy.bars for device in bar.devices]
    spans.sort()
    assert all(a[:2] != b[:2] or a[3] <= b[2] for a, b in pairwise(spans))


def test_idle_gpus_on_nodes_without_room_for_the_first_are_of_no_use() -> None:
    """Of two nodes of 8 GPUs, 6 and 4 are allocated; then a job waits that needs 8 of a node, and 2 + 4 are idle."""
    nodes = cluster(2, 8)
    occupancy = Occupancy(nodes, 60_000)
    outcome = simulate_trace(run(recorded((0, 10, 6), (0, 20, 4), (1, 5, 8)), nodes), occupancy.fold)
    shares = [share for _, share in occupancy.idle_of_no_use(outcome.histories)]
    assert shares[0] is None
    assert set(shares[2:9]) == {1.0}
