"""The result of a simulation as JSON."""

from dataclasses import asdict
from typing import Any

from ganger.backends.simulator.virtual_cluster import BEGIN_MS
from ganger.simulation.metrics.occupancy import Occupancy
from ganger.simulation.metrics.scorecard import Scorecard
from ganger.simulation.metrics.time_series import INTERVALS
from ganger.simulation.metrics.wait_distribution import wait_by_duration
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import TraceRun
from ganger.simulation.traces.trace import MEANING, Finding, RecordedJob, Trace

Record = dict[str, Any]


def source_json(trace: Trace[RecordedJob], findings: tuple[Finding, ...]) -> Record:
    """Return the source of the jobs and its flaws."""
    return {"trace": trace.path, "format": trace.format, "rows": trace.rows, "findings": findings_json(findings)}


def findings_json(findings: tuple[Finding, ...]) -> list[Record]:
    """Return each flaw with its number of rows and the first of these."""
    return [
        {
            "flaw": finding.flaw,
            "count": finding.count,
            "kept": finding.is_kept,
            "meaning": MEANING[finding.flaw],
            "first": [{"line": number, "what": text} for number, text in finding.examples],
        }
        for finding in findings
    ]


def occupancy_for(run: TraceRun) -> Occupancy:
    """Return a reader of a run's rows that samples the nodes as often as a picture can show."""
    jobs = run.trace.records
    submission_ms = jobs[-1].submitted_ms - jobs[0].submitted_ms if jobs else 0
    failed_ms = {(outage.node, BEGIN_MS + outage.known_ms): BEGIN_MS + outage.from_ms for outage in run.faults.outages}
    return Occupancy(run.nodes, submission_ms // INTERVALS, failed_ms)


def outcome_json(outcome: Outcome, occupancy: Occupancy) -> Record:
    """Return the figures of a run; `occupancy` has read its rows."""
    counts = {name: getattr(outcome, name) for name in ("unended", "left_out", "starts", "preemptions", "events")}
    return {
        **counts,
        "scorecard": _scorecard_json(outcome.card),
        "wait_by_duration": {name: asdict(waits) for name, waits in wait_by_duration(outcome.histories).items()},
        "fragmentation": asdict(occupancy.fragmentation_figures(outcome.histories)),
        "goodput": _optional_json(outcome.goodput),
        "forecast": _optional_json(outcome.forecast),
        "cost": _optional_json(outcome.cost),
        "self_cost": _optional_json(outcome.self_cost),
    }


def _optional_json(part: Any) -> Record | None:
    return None if part is None else asdict(part)


def _scorecard_json(card: Scorecard) -> Record:
    slowdown = {f"slowdown_{tau_ms // 1000}s": asdict(summary) for tau_ms, summary in card.slowdown.items()}
    return {name: value for name, value in asdict(card).items() if name != "slowdown"} | slowdown
