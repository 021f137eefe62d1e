"""What a simulation came to, as JSON has it. Called by the errands `sim run`, `sim import` and `sim compare`."""

from dataclasses import asdict
from typing import Any

from ganger.backends.simulator.scorecard import Scorecard
from ganger.backends.simulator.traces.recorded import MEANING, Finding, RecordedJob, Trace
from ganger.wiring.simulate import Outcome

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


def figures(outcome: Outcome) -> Record:
    """How a run went."""
    counted = {name: getattr(outcome, name) for name in ("unended", "starts", "preemptions", "events")}
    forecast = asdict(outcome.forecast) if outcome.forecast is not None else None
    return {
        **counted,
        "scorecard": _card(outcome.card),
        "goodput": None if outcome.goodput is None else asdict(outcome.goodput),
        "forecast": forecast,
    }


def _card(card: Scorecard) -> Record:
    slowdown = {f"slowdown_{tau_ms // 1000}s": asdict(of) for tau_ms, of in card.slowdown.items()}
    return {name: value for name, value in asdict(card).items() if name != "slowdown"} | slowdown
