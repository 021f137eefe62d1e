"""Run times by type of GPU: laws of whole runs, and one run that can be followed by hand."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model.cluster import Node
from ganger.simulation.node_outages import Outage
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import Faults, Overheads, simulate_trace
from ganger.simulation.traces.trace import Flaw, RecordedJob, Trace
from ganger.simulation.workload.gpu_speeds import GpuSpeeds
from tests.examples import examples
from tests.simulator.test_metamorphic_laws import JOBS, ORDERS, figures
from tests.simulator.test_trace_replay import M, recorded, run

MIXED = tuple(
    Node(name=f"n{at}", gpus=gpus, gpu_type=gpu_type, cpu_milli=1_000)
    for at, (gpus, gpu_type) in enumerate(((8, "v100"), (8, "k80"), (4, "k80")))
)
OF_K80 = tuple(replace(node, gpu_type="k80") for node in MIXED)


def speeds(**steps_per_s: int | Fraction) -> GpuSpeeds:
    """Return the throughputs of the one model, relative to V100."""
    by_gpu_type = {gpu_type: Fraction(value) for gpu_type, value in steps_per_s.items()}
    return GpuSpeeds(throughputs={("bert", None, None): by_gpu_type}, reference="v100")


def of_model(trace: Trace[RecordedJob]) -> Trace[RecordedJob]:
    return replace(trace, records=tuple(replace(job, model_name="bert") for job in trace.records))


def plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures without those that are in ms of work, on the type of the recorded durations."""
    of_work = dict.fromkeys(("time_ratio", "first_ms", "kept_ms"))
    jobs = [
        {**job, "work_ms": None, "attempts": [{**attempt, **of_work} for attempt in job["attempts"]]}
        for job in found["jobs"]
    ]
    return {**found, "jobs": jobs}


@pytest.mark.parametrize("order", ORDERS)
@examples(gate=3, otherwise=10)
@given(jobs=JOBS)
def test_equal_throughputs_change_no_figure(order: str, jobs: list[tuple[int, int, int]]) -> None:
    asked = run(of_model(recorded(*sorted(jobs))), MIXED, order)
    assert figures(replace(asked, speeds=speeds(v100=7, k80=7))) == figures(asked)


@pytest.mark.parametrize("order", ORDERS)
@examples(gate=3, otherwise=10)
@given(jobs=JOBS, faster=st.sampled_from((Fraction(2), Fraction(1, 3), Fraction(3, 2))))
def test_a_faster_type_alone_shortens_each_run_as_shorter_durations_do(
    order: str, jobs: list[tuple[int, int, int]], faster: Fraction
) -> None:
    """On the only type of a cluster, twice the speed halves the run time of each job."""
    trace = of_model(recorded(*sorted(jobs)))
    shorter = tuple(replace(job, duration_ms=int(job.duration_ms / faster)) for job in trace.records)
    fast = run(trace, OF_K80, order, speeds=speeds(v100=1, k80=faster))
    assert plain(figures(fast)) == plain(figures(run(replace(trace, records=shorter), OF_K80, order)))


def kept_ms(outcome: Outcome) -> list[int]:
    """Return the work of each job that ended, summed over its attempts."""
    return [
        sum((job.work_ms if each.kept_ms is None else each.kept_ms) - each.first_ms for each in job.attempts)
        for job in outcome.histories
        if job.ended_ms is not None
    ]


@pytest.mark.parametrize("order", ["dynamic", "srtf"])
@examples(gate=8, otherwise=25)
@given(
    jobs=JOBS,
    k80=st.fractions(Fraction(1, 9), Fraction(9), max_denominator=11).filter(lambda ratio: ratio != 1),
    checkpoint_ms=st.sampled_from((0, 7 * M, 60_001)),
    lost=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=3),
)
def test_work_is_done_once_and_all_gpu_time_is_useful_or_lost(
    order: str,
    jobs: list[tuple[int, int, int]],
    k80: Fraction,
    checkpoint_ms: int,
    lost: list[tuple[int, int]],
) -> None:
    """Jobs that are preempted or lose a node go on with their work on another type, at its speed."""
    costs = Overheads(
        start_ms=1_000, checkpoint_ms=checkpoint_ms, write_ms=333 if checkpoint_ms else 0, limit_margin_ms=900 * M
    )
    outages = tuple(
        Outage(node=f"n{node}", from_ms=minute * M, known_ms=minute * M, until_ms=(minute + 9) * M)
        for node, minute in dict(lost).items()
    )
    asked = run(
        of_model(recorded(*sorted(jobs))), MIXED, order, overheads=costs, faults=Faults(outages=outages),
        speeds=speeds(v100=1, k80=k80),
    )  # fmt: skip
    outcome = simulate_trace(asked)
    good = outcome.goodput
    assert good.allocated_gpu_us == good.useful_gpu_us + sum(good.lost_gpu_us.values())
    assert min(good.lost_gpu_us.values()) >= 0
    ended = [job.work_ms for job in outcome.histories if job.ended_ms is not None]
    assert kept_ms(outcome) == ended
    for job in outcome.histories:
        ratios = [max(1 if gpu_type == "v100" else 1 / k80 for gpu_type in each.gpu_types) for each in job.attempts]
        assert [each.time_ratio for each in job.attempts] == ratios
        if job.ended_ms is not None and not checkpoint_ms and len(job.attempts) == 1:
            assert job.attempts[0].ended_ms - job.attempts[0].began_ms == 1_000 + ceil(job.work_ms * ratios[0])


def test_a_gang_is_as_slow_as_its_slowest_node_and_its_limit_does_not_end_it() -> None:
    jobs = of_model(recorded((0, 10, 8), (0, 10, 8), (30, 10, 16)))
    asked = run(jobs, MIXED[:2], speeds=speeds(v100=30, k80=10))
    minutes = [job.ran_ms // M for job in simulate_trace(asked).histories]
    assert sorted(minutes[:2]) == [10, 30]
    assert minutes[2] == 30


def test_jobs_that_the_throughputs_lack_keep_their_duration_and_are_counted() -> None:
    trace = of_model(recorded((0, 10, 8), (60, 10, 8)))
    records = (trace.records[0], replace(trace.records[1], model_name="unknown"))
    outcome = simulate_trace(run(replace(trace, records=records), OF_K80[:1], speeds=speeds(v100=2, k80=1)))
    assert [job.ran_ms // M for job in outcome.histories] == [20, 10]
    (finding,) = outcome.findings
    assert (finding.flaw, finding.count, finding.is_kept) == (Flaw.NO_THROUGHPUT, 1, True)
    assert finding.examples == ((3, "j1: model unknown on 8 GPUs"),)


def test_the_most_specific_throughput_that_both_types_have_counts() -> None:
    throughputs = {
        ("bert", 32, 4): {"v100": Fraction(8)},
        ("bert", 32, None): {"v100": Fraction(6), "k80": Fraction(2)},
        ("bert", None, None): {"v100": Fraction(5), "k80": Fraction(1), "t4": Fraction(5, 4)},
    }
    job = RecordedJob(
        name="a", submitted_ms=0, duration_ms=None, gpus=4, model_name="bert", batch_size=32, iterations=80
    )
    found = GpuSpeeds(throughputs=throughputs, reference="v100")
    assert found.time_ratios(job, ("v100", "k80", "t4", "h100")) == {"v100": 1, "k80": 3, "t4": 4}
    trace = Trace(path="here", format="gavel", rows=2, records=(job, replace(job, name="b", model_name="other")))
    known = found.with_durations(trace)
    assert [each.duration_ms for each in known.records] == [10_000, None]
    assert [(finding.flaw, finding.count) for finding in known.findings] == [(Flaw.NO_DURATION, 1)]
