"""Elastic jobs of a trace: throughput by number of GPUs, which jobs are elastic, and whole runs of them."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.simulation.node_outages import Outage
from ganger.simulation.trace_job_spec import job_builder_for
from ganger.simulation.trace_replay import Faults, Overheads, simulate_trace
from ganger.simulation.traces.trace import RecordedJob, Trace
from ganger.simulation.workload.gpu_speeds import GpuSpeeds
from ganger.simulation.workload.scaling import ElasticJobs, ScalingCurves, scaling_curves
from tests.simulator.test_metamorphic_laws import JOBS
from tests.simulator.test_trace_replay import M, cluster, recorded, run

CURVE = {1: 10, 2: 18, 4: 30, 8: 26}
SPEEDS = GpuSpeeds(
    throughputs={("bert", 32, gpus): {"v100": Fraction(steps), "k80": Fraction(1)} for gpus, steps in CURVE.items()},
    reference="v100",
)


def job(gpus: int, model: str = "bert", max_gpus: int | None = None) -> RecordedJob:
    return RecordedJob(
        name="a", submitted_ms=0, duration_ms=1, gpus=gpus, max_gpus=max_gpus, model_name=model, batch_size=32
    )


@pytest.mark.parametrize(
    ("asked", "nodes", "speedups"),
    [
        (job(1), range(1, 9), [1, "9/5", "12/5", 3, "29/10", "14/5", "27/10", "13/5"]),
        (job(2), range(1, 4), [1, "5/3", "14/9"]),
        (job(4), range(2, 5), [1, "14/15", "13/15"]),
        (job(8), range(1, 3), [1, 1]),
        (job(16), range(2, 5), [1, "10/7", "20/11"]),
        (job(2, model="unknown"), range(1, 3), [1, "20/11"]),
    ],
    ids=["between", "unit of two", "slower", "beyond", "above the curve", "no curve"],
)
def test_throughput_by_number_of_nodes(asked: RecordedJob, nodes: range, speedups: list[str | int]) -> None:
    found = scaling_curves(SPEEDS).speedup_by_nodes(asked, nodes)
    assert found == dict(zip(nodes, map(Fraction, speedups), strict=True))


def test_jobs_are_drawn_by_name_and_only_up_to_where_they_are_fastest() -> None:
    trace = recorded(*((at, 10, 1 << at % 4) for at in range(400)))
    trace = replace(trace, records=tuple(replace(each, model_name="bert", batch_size=32) for each in trace.records))
    curves = scaling_curves(SPEEDS)
    drawn = ElasticJobs(Fraction(1, 2), Fraction(2)).drawn_from(trace, curves, seed=3).records
    most = {each.gpus: {other.max_gpus for other in drawn if other.gpus == each.gpus} for each in drawn}
    assert most == {1: {None, 2}, 2: {None, 4}, 4: {None}, 8: {None}}
    of_one = [each for each in drawn if each.gpus == 1]
    assert 35 <= sum(each.max_gpus is not None for each in of_one) <= 65
    part = replace(trace, records=trace.records[100:])
    assert ElasticJobs(Fraction(1, 2), Fraction(2)).drawn_from(part, curves, seed=3).records == drawn[100:]
    assert ElasticJobs(Fraction(1, 2), Fraction(2)).drawn_from(trace, curves, seed=4).records != drawn
    assert curves.fastest(job(1), 64) == 4


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        (job(4), [1]),
        (job(4, max_gpus=8), [1, 2]),
        (job(4, max_gpus=11), [1, 2]),
        (job(16, max_gpus=32), [2, 3, 4]),
        (job(12, max_gpus=24), [1]),
    ],
    ids=["rigid", "twice", "not a whole unit", "whole nodes", "a remainder"],
)
def test_sizes_of_an_elastic_job(asked: RecordedJob, sizes: list[int]) -> None:
    builder = job_builder_for(cluster(4, 8), notice_ms=30_000)
    assert list(builder.sizes(asked)) == sizes
    spec = builder.job(asked, None).spec
    assert (spec.nodes, spec.max_nodes) == (sizes[0], sizes[-1] if sizes[1:] else None)
    assert spec.checkpoint is not None
    assert spec.checkpoint.grace_ms == 30_000


def test_without_throughputs_every_job_scales_alike() -> None:
    assert scaling_curves(None) == ScalingCurves()


def elastic(trace: Trace[RecordedJob], every: int = 1) -> Trace[RecordedJob]:
    """Return the trace with each `every`-th job able to use up to three times its GPUs."""
    jobs = (replace(each, max_gpus=3 * each.gpus) if not at % every else each for at, each in enumerate(trace.records))
    return replace(trace, records=tuple(jobs))


def test_a_job_uses_idle_nodes_and_is_faster_by_its_curve() -> None:
    """Alone it starts on both nodes; beside the rigid one it has one node, and gets the other when that ends."""
    alone, rigid, beside = (
        simulate_trace(run(trace, cluster(2, 4), "dynamic")).histories
        for trace in (
            elastic(recorded((0, 22, 4))),
            recorded((0, 22, 4), (0, 11, 4)),
            elastic(recorded((0, 22, 4), (0, 11, 4)), every=2),
        )
    )
    assert [job.ran_ms for job in (*alone, *rigid)] == [12.1 * M, 22 * M, 11 * M]
    assert [(each.nodes, each.size, each.time_ratio) for each in alone[0].attempts] == [(2, 2, Fraction(11, 20))]
    assert [each.nodes for each in beside[0].attempts] == [1, 2]
    assert beside[0].ended_ms - beside[0].submitted_ms == 17.05 * M  # 11 min, then half of the work on both nodes
    assert sum(milli for _, _, milli in alone[0].allocated) == 8_000


@pytest.mark.parametrize("order", ["dynamic", "srtf"])
@settings(max_examples=15)
@given(
    jobs=JOBS,
    checkpoint_ms=st.sampled_from((0, 7 * M, 60_001)),
    save_ms=st.sampled_from((0, 20_000, 40_000)),
    lost=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=3),
)
def test_work_is_done_once_at_every_size(
    order: str, jobs: list[tuple[int, int, int]], checkpoint_ms: int, save_ms: int, lost: list[tuple[int, int]]
) -> None:
    """The work of a job is the sum of what its attempts did at their speed, without what was lost."""
    costs = Overheads(
        start_ms=1_000, checkpoint_ms=checkpoint_ms, notice_ms=30_000, save_ms=save_ms, limit_margin_ms=900 * M
    )
    outages = tuple(
        Outage(node=f"n{node}", from_ms=minute * M, known_ms=minute * M, until_ms=(minute + 9) * M)
        for node, minute in dict(lost).items()
    )
    trace = elastic(recorded(*sorted(jobs)), every=2)
    asked = run(trace, cluster(4, 8), order, overheads=costs, faults=Faults(outages=outages))
    outcome = simulate_trace(asked)
    good = outcome.goodput
    assert good.allocated_gpu_us == good.useful_gpu_us + sum(good.lost_gpu_us.values())
    assert min(good.lost_gpu_us.values()) >= 0
    builder = job_builder_for(cluster(4, 8))
    for each, history in zip(trace.records, outcome.histories, strict=True):
        sizes = builder.sizes(each)
        kept_ms = sum(
            (each.duration_ms if attempt.kept_ms is None else attempt.kept_ms) - attempt.first_ms
            for attempt in history.attempts
        )
        assert history.ended_ms is None or kept_ms == each.duration_ms
        if len(sizes) > 1:
            speedups = ScalingCurves().speedup_by_nodes(each, sizes)
            facts = [(attempt.size, attempt.time_ratio) for attempt in history.attempts]
            by_nodes = [
                (Fraction(attempt.nodes, sizes[0]), 1 / speedups[attempt.nodes]) for attempt in history.attempts
            ]
            assert facts == by_nodes
