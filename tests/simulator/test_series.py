"""Series of runs over time, held to sums over every tick of small drawn runs."""

from collections.abc import Sequence
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ganger.model import event as e
from ganger.simulation.metrics.occupancy import Occupancy
from ganger.simulation.metrics.run_history import History, waited
from ganger.simulation.metrics.time_series import STRETCHES, heads, series
from ganger.simulation.run import simulate
from tests.simulator.test_simulated import QUEUE, cluster, recorded, run


@st.composite
def histories(draw: st.DrawFn) -> list[History]:
    """Jobs in order of submission that ran in up to three stretches, some of which ended."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        marks = sorted(draw(st.lists(st.integers(0, 300), min_size=1, max_size=7, unique=True)))
        running = tuple(zip(marks[1::2], marks[2::2], strict=False))
        has_ended = bool(running) and draw(st.booleans())
        gpu_milli = 1000 * draw(st.integers(1, 40))
        found.append(
            History(
                tenant=draw(st.sampled_from("ab")),
                gpu_milli=gpu_milli,
                submitted_ms=marks[0],
                duration_ms=10,
                running=running,
                ended_ms=running[-1][1] if has_ended else None,
            )
        )
    return sorted(found, key=lambda job: job.submitted_ms)


def runs_at(job: History, ms: int) -> bool:
    return any(begin <= ms < end for begin, end in job.running)


def waits_at(job: History, ms: int) -> bool:
    until = 1 << 62 if job.ended_ms is None else job.ended_ms
    return job.submitted_ms <= ms < until and not runs_at(job, ms)


@given(histories())
def test_stretches_add_up_to_what_each_tick_has(jobs: list[History]) -> None:
    found = series(jobs)
    first = jobs[0].submitted_ms
    last = max((end for job in jobs for _, end in job.running), default=first)
    ticks = range(first, first + max(last - first, STRETCHES))

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
def test_the_head_is_the_first_of_those_who_wait(jobs: list[History]) -> None:
    moments = range(0, 310, 3)
    want = [next((at for at, job in enumerate(jobs) if waits_at(job, ms)), None) for ms in moments]
    assert list(heads(jobs, moments)) == want


def test_a_job_waits_again_after_a_preemption_and_no_more_after_its_end() -> None:
    job = History(tenant="a", gpu_milli=1, submitted_ms=5, duration_ms=1, running=((7, 9), (12, 20)), ended_ms=20)
    assert list(waited(job)) == [(5, 7), (9, 12)]


@pytest.mark.parametrize("order", ["strict_fifo", "srtf"])
def test_bars_are_what_jobs_had_and_never_two_on_one_gpu(order: str) -> None:
    nodes = cluster(2, 4)
    occupancy = Occupancy(nodes, 1)
    rows: list[e.Stamped] = []
    outcome = simulate(run(QUEUE, nodes, order), occupancy.take, rows.append)
    assert occupancy.bars
    for at, job in enumerate(outcome.histories):
        had = sum(len(bar.devices) * (bar.to_ms - bar.from_ms) for bar in occupancy.bars if bar.job == at)
        assert had * 1000 == job.gpu_milli * sum(end - begin for begin, end in job.running)
    spans = [(bar.node, device, bar.from_ms, bar.to_ms) for bar in occupancy.bars for device in bar.devices]
    spans.sort()
    assert all(a[:2] != b[:2] or a[3] <= b[2] for a, b in pairwise(spans))


def test_idle_gpus_on_nodes_without_room_for_the_first_are_of_no_use() -> None:
    """Two nodes of 8: 6 on the one, 4 on the other; then one waits that wants 8 of a node, and 2 + 4 are idle."""
    nodes = cluster(2, 8)
    occupancy = Occupancy(nodes, 60_000)
    outcome = simulate(run(recorded((0, 10, 6), (0, 20, 4), (1, 5, 8)), nodes), occupancy.take)
    shares = [share for _, share in occupancy.idle_of_no_use(outcome.histories)]
    assert shares[0] is None
    assert set(shares[2:9]) == {1.0}
