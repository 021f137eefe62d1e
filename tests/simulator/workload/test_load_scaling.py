"""Load scaling: the same jobs within another time."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.workload_arguments import load_from, scale_load
from ganger.simulation.traces.trace import RecordedJob, Trace
from tests.simulator.test_metamorphic_laws import JOBS
from tests.simulator.test_trace_replay import recorded

factors = st.fractions(Fraction(1, 50), Fraction(50), max_denominator=60)


def offered_load(trace: Trace[RecordedJob]) -> Fraction:
    """Return the GPUs that jobs ask for on average, from the first submission to the last."""
    jobs = trace.records
    span_ms = jobs[-1].submitted_ms - jobs[0].submitted_ms
    return Fraction(sum((job.duration_ms or 0) * job.gpus for job in jobs), span_ms)


@given(jobs=JOBS.filter(lambda jobs: len({job[0] for job in jobs}) > 1), factor=factors)
def test_the_offered_load_is_multiplied_and_nothing_else_changes(
    jobs: list[tuple[int, int, int]], factor: Fraction
) -> None:
    trace = recorded(*sorted(jobs))
    due = replace(
        trace, records=tuple(replace(job, deadline_ms=job.submitted_ms + 77, started_ms=None) for job in trace.records)
    )
    scaled = scale_load(due, factor)
    assert scale_load(due, Fraction(1)) == due
    assert float(offered_load(scaled)) == pytest.approx(float(offered_load(due) * factor), rel=1e-3)
    assert [job.submitted_ms for job in scaled.records] == sorted(job.submitted_ms for job in scaled.records)
    assert scaled.records[0] == due.records[0]
    for before, after in zip(due.records, scaled.records, strict=True):
        assert after.deadline_ms == after.submitted_ms + 77
        assert replace(after, submitted_ms=before.submitted_ms, deadline_ms=before.deadline_ms) == before


@pytest.mark.parametrize("text", ["0", "-1", "", "two", "1/2", "1e9", "1001", "0.0001", "1" * 30])
def test_what_is_no_load_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a number from 0\.001 to 1000"):
        load_from(text)
