"""`ganger metrics`: what a job has reported, as a table or as points for a plot."""

import click

from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import job_argument, output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.metric_text import curve_lines, left_out_text
from ganger.cli.output.print_output import Column, shell_quote, show, show_json, show_table
from ganger.model.job_metrics import format_metric

_COLUMNS = (
    Column("METRIC"),
    *(Column(title, right=True) for title in ("LAST", "STEP", "MIN", "STEP", "MAX", "STEP")),
)


@click.command("metrics")
@job_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@output_option
def metrics_command(job: str, names: tuple[str, ...], output: str) -> None:
    """Show the metrics that a job has reported, also after its end.

    Without NAME: the last, the lowest and the highest value of each metric, with their steps. With NAME: the curve of
    these metrics, at most 1,000 points each, as tab-separated values. JSON has both. In a cluster curves are not kept.

    \b
      ganger metrics bert-7f3
      ganger metrics bert-7f3 loss > loss.tsv
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    client = connect()
    kept = client.metrics(job)
    by_name = {metric["name"]: metric for metric in kept["metrics"]}
    typed = f"ganger metrics {shell_quote(kept['job'])}"
    if missing := [name for name in names if name not in by_name]:
        reported = ", ".join(by_name) or "none"
        raise Problem(f"{kept['job']} has reported no metric {missing[0]}; its metrics: {reported}", typed)
    selected = [by_name[name] for name in dict.fromkeys(names)] if names else kept["metrics"]
    if output == "json":
        show_json(kept | {"metrics": selected})
        return
    if names:
        if any(metric["points"] is None for metric in selected):
            raise Problem("curves are not kept in a cluster: only the last, lowest and highest values are", typed)
        for line in curve_lines(selected):
            show(line)
        return
    rows = [
        (
            metric["name"],
            *(cell for key in ("last", "min", "max") for cell in _cells(metric[key], metric[f"{key}_step"])),
        )
        for metric in selected
    ]
    show_table(_COLUMNS, rows, f"{kept['job']} has reported no metrics: ganger.train.report(step, loss=...)")
    if kept["left_out"]:
        show(left_out_text(kept["left_out"]))


def _cells(value: float | None, step: int | None) -> tuple[str, str]:
    return format_metric(value), "-" if step is None else str(step)
