"""Metrics of a job as text. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ganger.cli.output.print_output import shell_quote
from ganger.model.job_metrics import MAX_METRICS, SHOWN_METRICS, format_metric

Record = dict[str, Any]

TOTALS: Final = ("total_steps", "steps")
"""Names under which a script reports how many steps it will make."""


def main_metric_text(metrics: Record) -> str:
    """Return the last value of the loss, or else of the metric that the job reported first: loss 0.31."""
    values = [value for value in metrics["values"] if value["name"] not in TOTALS]
    value = next((value for value in values if value["name"] == "loss"), values[0] if values else None)
    return "-" if value is None else f"{value['name']} {format_metric(value['last'])}"


def metric_lines(job: str, metrics: Record) -> Iterator[str]:
    """Yield a line for each of the first metrics: loss 0.31 at step 900, min 0.29 at step 880, max 4.1 at step 0."""
    for value in metrics["values"][:SHOWN_METRICS]:
        extremes = (
            f", {extreme} {format_metric(value[extreme])} at step {value[f'{extreme}_step']}"
            for extreme in ("min", "max")
            if value[extreme] is not None
        )
        yield f"{value['name']} {format_metric(value['last'])} at step {value['last_step']}{''.join(extremes)}"
    if len(metrics["values"]) > SHOWN_METRICS or metrics["left_out"]:
        yield f"all metrics: ganger metrics {shell_quote(job)}"


def left_out_text(left_out: int) -> str:
    """Return how many metrics are not kept, and why."""
    return (
        f"{left_out} more not kept: of a job the first {MAX_METRICS} are, with names of up to 100 printable characters"
    )


def curve_lines(metrics: Iterable[Record]) -> Iterator[str]:
    """Yield the points of curves as tab-separated values, one a line, with a head: metric, step, time, value."""
    yield "metric\tstep\ttime_ms\tvalue"
    for metric in metrics:
        for step, at_ms, value in metric["points"]:
            yield f"{metric['name']}\t{step}\t{at_ms}\t{'NaN' if value is None else repr(value)}"
