"""Jobs of CPUs alone: spread over nodes, and waiting for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model.cluster import Node
from ganger.simulation.cpu_layout import CpuLayouts
from ganger.simulation.trace_replay import simulate_trace
from ganger.simulation.traces.trace import RecordedJob, Trace
from tests.simulator.test_trace_replay import M, run, spans


def cpu_nodes(*sizes: int, memory_bytes: int = 1 << 40) -> tuple[Node, ...]:
    return tuple(
        Node(name=f"n{at}", cpu_milli=1_000 * cpus, memory_bytes=memory_bytes) for at, cpus in enumerate(sizes)
    )


def cpu_trace(*jobs: tuple[int, int, int], memory_bytes: int | None = None) -> Trace[RecordedJob]:
    """Return a trace of jobs given as (minute of submission, minutes, CPUs)."""
    records = tuple(
        RecordedJob(name=f"j{at}", submitted_ms=submitted * M, duration_ms=minutes * M, cpu_milli=1_000 * cpus,
                    memory_bytes=memory_bytes)
        for at, (submitted, minutes, cpus) in enumerate(jobs)
    )  # fmt: skip
    return Trace(path="here", format="swf", rows=len(records), records=records)


@pytest.mark.parametrize(
    ("sizes", "cpus", "layout"),
    [
        ((16, 16), 16, (1, 16_000, 0)),
        ((16, 16), 20, (1, 16_000, 4_000)),
        ((16, 16, 16), 32, (2, 16_000, 0)),
        ((64, 16, 16, 16, 16), 60, (1, 60_000, 0)),
        ((64, 16, 16, 16, 16), 128, None),  # as many in all, but neither in parts of 64 nor of 16
        ((64, 16, 16), 80, (1, 64_000, 16_000)),
        ((16, 16), 33, None),
    ],
)
def test_a_job_is_on_full_nodes_and_with_the_rest_on_one_more(
    sizes: tuple[int, ...], cpus: int, layout: tuple[int, int, int] | None
) -> None:
    assert CpuLayouts(cpu_nodes(*sizes)).layout(1_000 * cpus, 0) == layout


def test_memory_limits_the_part_of_a_node() -> None:
    """Of 16 CPUs with 2 GiB each a node with 16 GiB can hold 8."""
    assert CpuLayouts(cpu_nodes(16, 16, memory_bytes=16 << 30)).layout(16_000, 32 << 30) == (2, 8_000, 0)


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    cpus=st.integers(1, 60),
    memory_bytes=st.sampled_from((None, 1 << 39, 3 << 39, 1 << 42)),
)
def test_a_job_that_is_not_left_out_starts_on_the_idle_cluster(
    sizes: list[int], cpus: int, memory_bytes: int | None
) -> None:
    """Jobs wider than a node were kept and asked one node for all their CPUs, so that they waited for ever."""
    outcome = simulate_trace(run(cpu_trace((0, 5, cpus), memory_bytes=memory_bytes), cpu_nodes(*sizes)))
    assert outcome.unended == {}
    assert outcome.card.jobs + outcome.left_out == 1
    if cpus <= max(sizes) and (memory_bytes or 0) <= 1 << 40:
        assert outcome.card.jobs == 1


def test_jobs_wait_for_cpus() -> None:
    jobs = cpu_trace((0, 10, 32), (1, 5, 16), (2, 5, 16))
    assert spans(run(jobs, cpu_nodes(16, 16))) == [[(0, 10)], [(10, 15)], [(10, 15)]]
