"""The load of a trace, scaled: the same jobs, submitted within a shorter or a longer time."""

from dataclasses import replace
from fractions import Fraction

from ganger.simulation.traces.trace import RecordedJob, Trace


def scale_load(trace: Trace[RecordedJob], factor: Fraction) -> Trace[RecordedJob]:
    """Return the trace with `factor` times the load: times since the first submission are divided by it.

    Durations stay as they are, and so does the time that a job has from its submission to its deadline.
    """
    if factor == 1 or not trace.records:
        return trace
    first_ms = trace.records[0].submitted_ms
    return replace(trace, records=tuple(_scaled(job, first_ms, factor) for job in trace.records))


def _scaled(job: RecordedJob, first_ms: int, factor: Fraction) -> RecordedJob:
    earlier_ms = job.submitted_ms - first_ms - round((job.submitted_ms - first_ms) / factor)
    return replace(
        job,
        submitted_ms=job.submitted_ms - earlier_ms,
        started_ms=None if job.started_ms is None else job.started_ms - earlier_ms,
        deadline_ms=None if job.deadline_ms is None else job.deadline_ms - earlier_ms,
    )
