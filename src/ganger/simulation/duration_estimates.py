"""Estimates of how long a job runs, which the scheduler has as the job's time limit, and what their errors cost.

Users ask for more time than they need, so a policy that plans with durations (easy, conservative, the default order)
does worse on a real cluster than with the true ones. An estimate is never below the duration: it is a limit, at which
the scheduler would stop the job, and the recorded job was not stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from random import Random
from typing import Final

from ganger.simulation.traces.trace import RecordedJob


class EstimateKind(StrEnum):
    """Ways to estimate a duration.

    RECORDED: the job's own time limit, or its duration where the trace has none
    EXACT: its duration
    FACTOR: a multiple of its duration
    NOISY: a multiple that is drawn for each job
    """

    RECORDED = "recorded"
    EXACT = "exact"
    FACTOR = "factor"
    NOISY = "noisy"


@dataclass(frozen=True, slots=True)
class Estimates:
    """A way to estimate durations.

    factor: with FACTOR the multiple, with NOISY the largest; at least 1
    seed: of the draws
    """

    kind: EstimateKind = EstimateKind.RECORDED
    factor: float = 1.0
    seed: int = 0

    def of(self, job: RecordedJob) -> int:
        """Return the estimate for a job, in ms: at least its duration and at least 1."""
        duration_ms = max(1, job.duration_ms or 0)
        match self.kind:
            case EstimateKind.RECORDED:
                return max(duration_ms, job.limit_ms or 0)
            case EstimateKind.FACTOR:
                return ceil(duration_ms * self.factor)
            case EstimateKind.NOISY:
                # Drawn by name, so that a job has the same estimate under every policy and beside any other jobs.
                return ceil(duration_ms * Random(f"{self.seed}/{job.name}").uniform(1.0, self.factor))
            case EstimateKind.EXACT:
                return duration_ms

    def are_exact(self, jobs: Iterable[RecordedJob]) -> bool:
        """Return whether the estimate of each job is its duration."""
        return all(self.of(job) == EXACT.of(job) for job in jobs if job.duration_ms is not None)

    def __str__(self) -> str:
        """Return the estimates as they are typed: `recorded`, `factor=2`."""
        has_factor = self.kind in (EstimateKind.FACTOR, EstimateKind.NOISY)
        return f"{self.kind}={self.factor:g}" if has_factor else str(self.kind)


RECORDED: Final = Estimates()
EXACT: Final = Estimates(EstimateKind.EXACT)
