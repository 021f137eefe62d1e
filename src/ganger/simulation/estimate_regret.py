"""The regret of estimates: the mean wait with them, divided by the mean wait if all durations were known exactly."""

from dataclasses import replace

from ganger.simulation.duration_estimates import EXACT
from ganger.simulation.json_output import Record
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import TraceRun, simulate_trace


def regret_json(run: TraceRun, outcome: Outcome) -> Record | None:
    """Return the regret of a run's estimates; None if they are exact. The run is repeated with exact ones.

    `regret` is None if no job waits with exact estimates: there is nothing to divide by.
    """
    if run.estimates.are_exact(run.trace.records):
        return None
    wait_ms = outcome.card.queueing_ms.mean
    exact_wait_ms = simulate_trace(replace(run, estimates=EXACT)).card.queueing_ms.mean
    return {
        "estimates": str(run.estimates),
        "wait_ms": wait_ms,
        "exact_wait_ms": exact_wait_ms,
        "regret": wait_ms / exact_wait_ms if wait_ms is not None and exact_wait_ms else None,
    }
