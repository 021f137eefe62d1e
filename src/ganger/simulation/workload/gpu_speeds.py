"""The run time of jobs on other types of GPU than the one that their durations were recorded on.

A job takes its recorded duration times the throughput on the reference type, divided by the throughput on the type that
it runs on. On nodes of several types its ranks wait for the slowest. The scheduler does not know where a job will run,
so its time limit is that of the slowest type that it may run on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from ganger.model.cluster import Node
from ganger.model.units import SECOND_MS
from ganger.simulation.traces.trace import Findings, Flaw, RecordedJob, Trace
from ganger.simulation.workload.throughputs import JobKind, Throughputs

TimeRatios = Mapping[str, Fraction]
"""Run time on a type of GPU, divided by that on the reference type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpeeds:
    """Throughputs, and the type of GPU that durations were recorded on."""

    throughputs: Throughputs
    reference: str

    def with_durations(self, trace: Trace[RecordedJob]) -> Trace[RecordedJob]:
        """Return the trace with the durations that follow from steps and throughput, for jobs without a duration."""
        if all(job.duration_ms is not None for job in trace.records):
            return trace
        jobs = tuple(self._with_duration(job) for job in trace.records)
        findings = Findings(tuple(finding for finding in trace.findings if finding.flaw is not Flaw.NO_DURATION))
        for job in jobs:
            if job.duration_ms is None:
                findings.add(Flaw.NO_DURATION, job.line, f"{job.name} has no duration")
        return replace(trace, records=jobs, findings=findings.all())

    def time_ratios(self, job: RecordedJob, gpu_types: Iterable[str]) -> TimeRatios:
        """Return the ratio for each of these types that the throughputs have one for."""
        ratios = ((gpu_type, self._time_ratio(job, gpu_type)) for gpu_type in gpu_types)
        return {gpu_type: ratio for gpu_type, ratio in ratios if ratio is not None}

    def _with_duration(self, job: RecordedJob) -> RecordedJob:
        steps_per_s = next(
            (
                by_gpu_type[self.reference]
                for by_gpu_type in map(self.throughputs.get, _kinds(job))
                if by_gpu_type is not None and self.reference in by_gpu_type
            ),
            None,
        )
        if job.duration_ms is not None or job.iterations is None or steps_per_s is None:
            return job
        return replace(job, duration_ms=round(job.iterations * SECOND_MS / steps_per_s))

    def _time_ratio(self, job: RecordedJob, gpu_type: str) -> Fraction | None:
        """Return the ratio by the most specific kind of job that both types have a throughput for."""
        if gpu_type == self.reference:
            return Fraction(1)
        for kind in _kinds(job):
            by_gpu_type = self.throughputs.get(kind, {})
            if self.reference in by_gpu_type and gpu_type in by_gpu_type:
                return by_gpu_type[self.reference] / by_gpu_type[gpu_type]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpeeds:
    """The time ratios of the jobs of a trace on the nodes of a cluster, by name; a job without an entry has none.

    lacking: jobs that keep their duration on some type of GPU, because the throughputs do not have them there
    """

    ratios: Mapping[str, TimeRatios]
    lacking: tuple[RecordedJob, ...] = ()

    def of(self, job: RecordedJob) -> TimeRatios:
        """Return the ratios of a job."""
        return self.ratios.get(job.name, {})

    def longest(self, job: RecordedJob, nodes: Sequence[Node]) -> RecordedJob:
        """Return the job with duration and time limit on the slowest type of these nodes that it may run on."""
        ratios = self.of(job)
        if not ratios:
            return job
        ratio = max(ratios.get(gpu_type, Fraction(1)) for gpu_type in gpu_types_for(job, nodes))
        limit_ms = None if job.limit_ms is None else ceil(job.limit_ms * ratio)
        return replace(job, duration_ms=ceil((job.duration_ms or 0) * ratio), limit_ms=limit_ms)


NO_SPEEDS = JobSpeeds(ratios={})


def job_speeds(speeds: GpuSpeeds | None, jobs: Iterable[RecordedJob], nodes: Sequence[Node]) -> JobSpeeds:
    """Return the time ratios of jobs on the types of GPU that these nodes have. Jobs of CPUs alone have none."""
    if speeds is None:
        return NO_SPEEDS
    by_kind: dict[tuple[JobKind, tuple[str, ...]], TimeRatios] = {}
    ratios, lacking = dict[str, TimeRatios](), list[RecordedJob]()
    for job in jobs:
        if not job.asked_gpu_milli:
            continue
        gpu_types = gpu_types_for(job, nodes)
        key = (_kinds(job)[0], gpu_types)
        if key not in by_kind:
            by_kind[key] = speeds.time_ratios(job, gpu_types)
        if len(by_kind[key]) < len(gpu_types):
            lacking.append(job)
        if any(ratio != 1 for ratio in by_kind[key].values()):
            ratios[job.name] = by_kind[key]
    return JobSpeeds(ratios=ratios, lacking=tuple(lacking))


def gpu_types_for(job: RecordedJob, nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the types of GPU that a job may run on."""
    gpu_types = dict.fromkeys(node.gpu_type for node in nodes if node.gpus)
    return tuple(gpu_type for gpu_type in gpu_types if not job.gpu_types or gpu_type in job.gpu_types)


def _kinds(job: RecordedJob) -> tuple[JobKind, ...]:
    """Return the kinds that a job is of, the most specific first."""
    gpus = max(1, job.gpus)
    model, batch_size = job.model_name, job.batch_size
    return (model, batch_size, gpus), (model, batch_size, None), (model, None, gpus), (model, None, None)
