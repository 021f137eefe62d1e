"""Comparisons of runs in which different jobs ended, and jobs that spares leave no room for."""

from dataclasses import replace

from ganger.simulation.compare.common_jobs import JOB_TIMES, job_times, with_common_figures
from ganger.simulation.json_output import Record
from ganger.simulation.trace_replay import Faults, TraceRun, simulate_trace
from tests.simulator.test_trace_replay import M, cluster, recorded, run

JOBS = recorded((0, 10, 8), (1, 20, 16), (2, 5, 8))
"""On two nodes the second waits for the first, and the third for the second; on one there is no room for the second."""


def ended(asked: TraceRun) -> Record:
    return {"name": "a run", JOB_TIMES: job_times(simulate_trace(asked))}


def test_runs_are_compared_on_the_jobs_that_ended_in_all() -> None:
    """A run without the widest jobs, which wait longest, was compared with one that had them."""
    whole = run(JOBS, cluster(2, 8))
    without_spare, with_spare = with_common_figures([ended(whole), ended(replace(whole, faults=Faults(spares=1)))])
    assert without_spare["common"]["jobs"] == with_spare["common"]["jobs"] == 2
    assert without_spare["common"]["queueing_ms"]["mean"] == 28 * M / 2
    assert with_spare["common"]["queueing_ms"]["mean"] == 8 * M / 2


def test_runs_of_the_same_jobs_have_no_other_figures() -> None:
    asked = run(JOBS, cluster(2, 8))
    assert with_common_figures([ended(asked), ended(asked)]) == [{"name": "a run"}] * 2


def test_a_job_too_wide_beside_the_spares_has_a_flaw_of_its_own() -> None:
    trace = recorded((0, 10, 8), (1, 20, 16), (2, 5, 17))
    outcome = simulate_trace(run(trace, cluster(2, 8), faults=Faults(spares=1)))
    assert outcome.left_out == 2
    assert {finding.flaw: finding.examples for finding in outcome.findings} == {
        "too_large": ((4, "j2 asks for 17 GPUs, 0 CPUs, 0 bytes"),),
        "held_back": ((3, "j1 asks for 16 GPUs, 0 CPUs, 0 bytes, and 1 of 2 nodes are held back"),),
    }
