"""Use of a cluster and completion times with half of the jobs elastic: ElasticFlow's cluster 04 on 72 nodes x 8 GPUs.

Elastic jobs can use up to twice the GPUs that they ask for, and are as fast there as ElasticFlow measured for their
models on A100; jobs that more GPUs do not speed up stay rigid. Every start takes a minute, and a job that is stopped
saves its work in 10 s of its notice. The rigid run has the same costs.

Only the first 4,000 of the 15,802 jobs are run, to stay below ten minutes on two busy cores; `GANGER_BENCH_JOBS` is
another number of them.
"""

import os
from dataclasses import replace
from fractions import Fraction
from typing import Final

from bench.measure import Figure
from bench.simulator.simulating import CLUSTER, EQUAL, TRACES
from ganger import registry
from ganger.core.state.state import State
from ganger.model.policy import Rules, document_of
from ganger.model.units import DEVICE_MILLI, HOUR_MS, SECOND_MS
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import Overheads, TraceRun, simulate_trace
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import RecordedJob, Trace
from ganger.simulation.workload.gpu_speeds import GpuSpeeds
from ganger.simulation.workload.scaling import ElasticJobs, scaling_curves
from ganger.simulation.workload.throughputs import read_throughputs

JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "4000"))
ELASTIC: Final = ElasticJobs(share=Fraction(1, 2), largest=Fraction(2))
A100: Final = "a100"
START_MS, NOTICE_MS, SAVE_MS = 60 * SECOND_MS, 30 * SECOND_MS, 10 * SECOND_MS
OVERHEADS: Final = Overheads(
    start_ms=START_MS, notice_ms=NOTICE_MS, save_ms=SAVE_MS, limit_margin_ms=20 * (START_MS + SAVE_MS)
)


def run() -> list[Figure]:
    trace = read_jobs(TRACES / CLUSTER)
    known, trace = len(trace.records), replace(trace, records=trace.records[:JOBS])
    speeds = GpuSpeeds(throughputs=read_throughputs(TRACES / "elasticflow" / "throughputs.csv"), reference=A100)
    elastic_trace = ELASTIC.drawn_from(trace, scaling_curves(speeds), seed=0)
    elastic = sum(job.max_gpus is not None for job in elastic_trace.records)
    print(f"the first {len(trace.records)} of {known} jobs, {elastic} of them elastic")
    print(f"{'':8}{'mean completion':>16}{'median':>8}{'wait':>8} h{'allocated':>11}{'finished':>10}{'starts':>8}")
    rigid, resized = (_outcome(name, jobs, speeds) for name, jobs in (("rigid", trace), ("elastic", elastic_trace)))
    return [
        _figure("elastic_jobs.completion", "h", _completion_h(resized), "<", _completion_h(rigid)),
        _figure("elastic_jobs.utilisation", "part", _utilisation(resized), ">", _utilisation(rigid)),
    ]


def _outcome(name: str, trace: Trace[RecordedJob], speeds: GpuSpeeds) -> Outcome:
    """Run the trace and print its line of the table."""
    run = TraceRun(
        trace=trace,
        nodes=tuple(replace(node, gpu_type=A100) for node in EQUAL),
        order=registry.order,
        document=document_of(Rules(), State().document.queues),
        overheads=OVERHEADS,
        speeds=speeds,
    )
    outcome = simulate_trace(run)
    card = outcome.card
    median_h, wait_h = (card.jct_ms.p50 or 0) / HOUR_MS, (card.queueing_ms.mean or 0) / HOUR_MS
    print(
        f"{name:8}{_completion_h(outcome):16.3f}{median_h:8.3f}{wait_h:8.3f}  {_utilisation(outcome):11.4f}"
        f"{_finished(outcome):10.4f}{outcome.starts:8}{'' if not outcome.unended else outcome.unended}",
        flush=True,
    )
    return outcome


def _completion_h(outcome: Outcome) -> float:
    return (outcome.card.jct_ms.mean or 0) / HOUR_MS


def _utilisation(outcome: Outcome) -> float:
    """Return the part of all GPU time that was allocated, until the last job ended."""
    return outcome.card.allocation or 0


def _finished(outcome: Outcome) -> float:
    """Return the GPU time that rigid jobs need for the same work, as a part of all until the last job ended."""
    work = sum(job.gpu_milli * job.duration_ms for job in outcome.histories if job.ended_ms is not None)
    gpus = sum(node.gpus for node in EQUAL)
    return work / (gpus * DEVICE_MILLI * (outcome.card.makespan_ms or 1))


def _figure(name: str, unit: str, value: float, op: str, bar: float) -> Figure:
    return Figure(name=name, unit=unit, samples=(value,), value=value, op=op, bar=bar)
