"""Completion and waiting times of the jobs that ended in every run of a comparison.

A run in which the longest jobs did not end, or were never submitted, has the better mean without being better.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from ganger.simulation.json_output import Record
from ganger.simulation.metrics.run_history import summary
from ganger.simulation.simulate import Outcome

JOB_TIMES: Final = "job_times"
"""Key of a run's times by job, which stay in the process that compares."""
COMMON: Final = "common"


def job_times(outcome: Outcome) -> dict[str, tuple[int, int]]:
    """Return completion and waiting time of each job that ended, by its name."""
    return {
        name: (job.ended_ms - job.submitted_ms, job.ended_ms - job.submitted_ms - job.ran_ms)
        for name, job in zip(outcome.names, outcome.histories, strict=True)
        if job.ended_ms is not None
    }


def with_common_figures(runs: Sequence[Record]) -> list[Record]:
    """Return the runs without the times of their jobs; where these are not the same jobs, with figures of the common.

    Runs in which the same jobs ended need none: their figures are of the same jobs anyway.
    """
    times = [run[JOB_TIMES] for run in runs]
    bare_runs = [{name: value for name, value in run.items() if name != JOB_TIMES} for run in runs]
    if all(of_run.keys() == times[0].keys() for of_run in times):
        return bare_runs
    common = set.intersection(*(set(of_run) for of_run in times))
    return [{**run, COMMON: _figures(of_run, common)} for run, of_run in zip(bare_runs, times, strict=True)]


def _figures(times: dict[str, tuple[int, int]], common: set[str]) -> Record:
    return {
        "jobs": len(common),
        "jct_ms": asdict(summary(times[name][0] for name in common)),
        "queueing_ms": asdict(summary(times[name][1] for name in common)),
    }
