"""Elastic jobs of a trace: which they are, and their throughput by number of GPUs.

The throughput of a model between two numbers of GPUs that are known is interpolated; beyond the largest it does not
grow. A job of a model without such a curve scales by Amdahl's law.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random
from typing import Final

from ganger.simulation.traces.trace import RecordedJob, Trace
from ganger.simulation.workload.gpu_speeds import GpuSpeeds

SERIAL: Final = Fraction(1, 10)
"""Part of a step that more GPUs do not shorten, for models without a curve: twice the GPUs make 20/11 of the steps."""

Curve = Sequence[tuple[int, Fraction]]
"""(GPUs, steps per second), by GPUs."""
Speedups = Mapping[int, Fraction]
"""Throughput on a number of nodes, as a multiple of that on the fewest that the job runs on."""


@dataclass(frozen=True, slots=True)
class ElasticJobs:
    """The jobs of a trace that are made elastic.

    share: of the jobs, which are drawn
    largest: most GPUs, as a multiple of those that a job asks for
    """

    share: Fraction
    largest: Fraction

    def drawn_from(self, trace: Trace[RecordedJob], curves: "ScalingCurves", seed: int) -> Trace[RecordedJob]:
        """Return the trace with the share of its jobs elastic; one that more GPUs do not speed up stays rigid."""

        def drawn(job: RecordedJob) -> RecordedJob:
            # Drawn by name, so that the same jobs are elastic under every policy and beside any other jobs.
            if not job.gpus or Random(f"{seed}/elastic/{job.name}").random() >= self.share:
                return job
            largest = curves.fastest(job, int(job.gpus * self.largest))
            return replace(job, max_gpus=largest) if largest > job.gpus else job

        return replace(trace, records=tuple(map(drawn, trace.records)))


@dataclass(slots=True)
class ScalingCurves:
    """The throughput of jobs by number of GPUs, on the type that their durations were recorded on."""

    curves: Mapping[tuple[str, int | None], Curve] = field(default_factory=dict)
    _speedups: dict[tuple[object, ...], Speedups] = field(default_factory=dict)

    def speedup_by_nodes(self, job: RecordedJob, nodes: range) -> Speedups:
        """Return the throughput on each number of nodes, as a multiple of that on the first."""
        key = (job.model_name, job.batch_size, job.gpus, nodes)
        if key not in self._speedups:
            per_node = job.gpus // nodes.start
            self._speedups[key] = {number: self._speedup(job, number * per_node) for number in nodes}
        return self._speedups[key]

    def fastest(self, job: RecordedJob, max_gpus: int) -> int:
        """Return the fewest GPUs, up to a number, on which a job is fastest."""
        known = {gpus for gpus, _ in self._curve(job) if job.gpus < gpus < max_gpus}
        return max(sorted({job.gpus, max_gpus, *known}), key=lambda gpus: self._speedup(job, gpus))

    def _speedup(self, job: RecordedJob, gpus: int) -> Fraction:
        """Return the throughput on a number of GPUs, as a multiple of that on those which the job asks for."""
        curve = self._curve(job)
        if not curve:
            return 1 / (SERIAL + (1 - SERIAL) * Fraction(job.gpus, gpus))
        return _interpolated(curve, gpus) / _interpolated(curve, job.gpus)

    def _curve(self, job: RecordedJob) -> Curve:
        """Return the curve of the model of a job, with its batch size if there is one; empty if it has none."""
        curves = (self.curves.get((job.model_name, batch), ()) for batch in (job.batch_size, None))
        return next((curve for curve in curves if curve and curve[0][0] <= job.gpus <= curve[-1][0]), ())


def scaling_curves(speeds: GpuSpeeds | None) -> ScalingCurves:
    """Return the curves of the models that the throughputs have for several numbers of GPUs."""
    points: dict[tuple[str, int | None], list[tuple[int, Fraction]]] = {}
    if speeds is not None:
        for (model, batch_size, gpus), by_gpu_type in speeds.throughputs.items():
            if gpus is not None and speeds.reference in by_gpu_type:
                points.setdefault((model, batch_size), []).append((gpus, by_gpu_type[speeds.reference]))
    return ScalingCurves({kind: sorted(curve) for kind, curve in points.items() if len(curve) > 1})


def _interpolated(curve: Curve, gpus: int) -> Fraction:
    """Return the steps per second on a number of GPUs that is not below the first of the curve."""
    after = bisect_left(curve, (gpus,))
    if after == len(curve):
        return curve[-1][1]
    (high, high_steps), (low, low_steps) = curve[after], curve[max(0, after - 1)]
    if high in (low, gpus):
        return high_steps
    return low_steps + (high_steps - low_steps) * Fraction(gpus - low, high - low)
