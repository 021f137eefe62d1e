"""What a simulation came to, as JSON has it. Called by the errands `sim run`, `sim import` and `sim compare`."""

from dataclasses import asdict
from typing import Any

from ganger.simulation.metrics.occupancy import Occupancy
from ganger.simulation.metrics.scorecard import Scorecard
from ganger.simulation.metrics.time_series import STRETCHES
from ganger.simulation.run import Outcome, Run
from ganger.simulation.traces.trace import MEANING, Finding, RecordedJob, Trace

Record = dict[str, Any]


def source(trace: Trace[RecordedJob], findings: tuple[Finding, ...]) -> Record:
    """Where the jobs come from, and what of it has a flaw."""
    return {"trace": trace.place, "format": trace.format, "rows": trace.rows, "findings": flaws(findings)}


def flaws(findings: tuple[Finding, ...]) -> list[Record]:
    """What has a flaw, by which."""
    return [
        {
            "flaw": found.flaw,
            "count": found.count,
            "kept": found.is_kept,
            "meaning": MEANING[found.flaw],
            "first": [{"line": number, "what": what} for number, what in found.first],
        }
        for found in findings
    ]


def looks(run: Run) -> Occupancy:
    """Who is told of every row of a run, for what nodes have left; as often as a picture can show."""
    records = run.trace.records
    lasts_ms = records[-1].submitted_ms - records[0].submitted_ms if records else 0
    return Occupancy(run.nodes, lasts_ms // STRETCHES)


def figures(outcome: Outcome, occupancy: Occupancy) -> Record:
    """How a run went. `occupancy` was told of its rows."""
    counted = {name: getattr(outcome, name) for name in ("unended", "starts", "preemptions", "events")}
    return {
        **counted,
        "scorecard": _card(outcome.card),
        "fragmentation": asdict(occupancy.fragments(outcome.histories)),
        "goodput": _if_any(outcome.goodput),
        "forecast": _if_any(outcome.forecast),
        "cost": _if_any(outcome.cost),
        "self_cost": _if_any(outcome.self_cost),
    }


def _if_any(part: Any) -> Record | None:
    return None if part is None else asdict(part)


def _card(card: Scorecard) -> Record:
    slowdown = {f"slowdown_{tau_ms // 1000}s": asdict(of) for tau_ms, of in card.slowdown.items()}
    return {name: value for name, value in asdict(card).items() if name != "slowdown"} | slowdown
