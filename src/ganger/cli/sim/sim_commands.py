"""`ganger sim`: recorded jobs on a simulated cluster, scheduled by the code that schedules a real one.

The simulation runs in a process of its own: no server is involved, and little of ganger is loaded here.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from ganger.cli.options import output_option
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import Column, show, show_json, show_table
from ganger.cli.sim.goodput_output import show_faults, show_goodput
from ganger.cli.sim.sim_compare import compare_command
from ganger.cli.sim.sim_options import (
    format_option,
    process_arguments,
    show_findings,
    simulation_options,
    trace_argument,
)
from ganger.cli.sim.sim_size import size_command
from ganger.cli.sim.sim_source import check_options, cluster_size, document_option, source_options
from ganger.cli.sim.sim_sweep import sweep_command
from ganger.cli.sim.simulation_process import Record, run_simulation
from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration
from ganger.model.views.simulation_figures import job_set_notes

_COLUMNS: Final = (
    Column("PER JOB"),
    *(Column(title, right=True) for title in ("N", "MEAN", "P50", "P95", "P99")),
)
_TIMES: Final = {
    "jct_ms": "completion time",
    "queueing_ms": "waiting",
    "first_start_ms": "until the first start",
    "starvation_ms": "longest uninterrupted wait",
}
_RATIOS: Final = {
    "slowdown_10s": "slowdown (10s)",
    "slowdown_600s": "slowdown (10m)",
    "finish_time_fairness": "finish-time fairness",
    "preemptions_per_job": "preemptions",
    "migrations_per_job": "migrations",
}
_FRAGMENTATION: Final = {"gpus": "fragmented GPUs", "largest_gang": "largest gang with room"}
"""Samples of the cluster, not of jobs."""
_SHARES: Final = {
    "allocation": "allocated, of all GPU time",
    "allocation_in_submission": "the same, until the last submission",
    "occupancy": "allocated, of what was requested",
    "unfair": "jobs with fairness above 1.05",
    "quota_debt_share": "quota debt, of what was due",
    "cross_switch": "gangs across switches",
}


@click.group("sim")
def sim_command() -> None:
    """Run recorded jobs on a simulated cluster, or write them in ganger's own format.

    The scheduler is the one that runs on a real cluster. Trace formats: docs/reference/trace-format.md.
    """


sim_command.add_command(compare_command)
sim_command.add_command(size_command)
sim_command.add_command(sweep_command)


@sim_command.command("import")
@trace_argument
@click.argument("file", type=click.Path(path_type=Path))
@format_option
@output_option
def import_command(trace: Path, file: Path, format: str | None, output: str) -> None:
    """Write the jobs of a trace in ganger's own format, and report the rows that are left out.

    \b
      ganger sim import cluster04.csv.gz jobs.csv
    """  # noqa: D301 - click needs the character itself before lines that it must not wrap
    result = run_simulation("import", str(trace), *process_arguments({"to": file, "format": format}))
    if output == "json":
        show_json(result)
        return
    jobs, rows = count(result["jobs"], "job"), count(result["rows"], "row")
    show(f"{result['file']}: {jobs} of {rows}, format {result['format']}")
    show_findings(result)


@sim_command.command("run")
@source_options
@document_option
@click.option(
    "--policy", metavar="NAME", help="Queue order, or order and placement score (easy+fgd); unset: the default."
)
@simulation_options
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Write every event to this file.")
@output_option
def run_command(output: str, **options: Any) -> None:
    """Run the jobs of a trace on a simulated cluster, and show waiting times, fairness and use of the cluster.

    Jobs run for as long as was recorded. Their time limit, by which the scheduler plans, is the recorded one if there
    is any, else as long as they run; if limits differ from durations, the mean wait is compared with that of exact
    limits, in a second run. A job for which only a
    number of GPUs was recorded runs on one node if a node has that many, else on whole nodes and one more for the
    remainder. The same arguments give the same result, except for the time that scheduling took. Faults apply to the
    nodes of the same names if there are any, else to nodes drawn at random; after the end of the fault trace no node
    fails.

    With --from-log the jobs are those of your own server, as they were submitted, on the nodes that it had: they do as
    much work as recorded, are stopped when users stopped them, and start when the policy lets them.

    \b
      ganger sim run cluster04.csv.gz --nodes 72 --gpus 8
      ganger sim run jobs.csv --cluster nodes.csv --policy easy -o json
      ganger sim run --from-log --document new.yaml
      ganger sim run jobs.csv --nodes 16 --start 2m --checkpoint 30m --faults node_faults.csv --spares 1
    """  # noqa: D301 - as above
    options = check_options(options, "ganger sim run")
    trace = options.pop("trace")
    result = run_simulation("run", *([] if trace is None else [str(trace)]), *process_arguments(options))
    if output == "json":
        show_json(result)
    else:
        _show_run(result)


def _show_run(result: Record) -> None:
    card = result["scorecard"]
    show(f"{count(card['jobs'], 'job')} of {result['trace']} on {cluster_size(result)}, policy {result['policy']}")
    show_findings(result)
    show_faults(result)
    for reason, jobs in result["unended"].items():
        show(f"  {count(jobs, 'job')} did not finish: {reason}")
    for note in job_set_notes({"runs": [result]}):
        show(note)
    show()
    rows = [
        *_rows(card, _TIMES, _time),
        *_rows(card, _RATIOS, _number),
        *_rows(result["fragmentation"], _FRAGMENTATION, _number),
    ]
    show_table(_COLUMNS, rows, "")
    show()
    makespan = "-" if card["makespan_ms"] is None else format_duration(card["makespan_ms"])
    show(f"{'makespan':36}{makespan}")
    for name, label in _SHARES.items():
        show(f"{label:36}{'-' if card[name] is None else format(card[name], '.2%')}")
    label = "Jain's index over tenants"
    show(f"{label:36}{_or_dash(card['jain'], '{:.4f}'.format)}")
    show(f"{'starts, of them after a preemption':36}{result['starts']}, {result['preemptions']}")
    show(f"{'worst finish-time fairness':36}{_or_dash(card['worst_fairness'])}")
    show(f"{'GPU-hours run before a migration':36}{card['moved_gpu_us'] / DEVICE_MILLI / HOUR_MS:.1f}")
    _show_regret(result)
    show_goodput(result)
    _show_costs(result)
    if "recorded" in result:
        show()
        show("as recorded")
        show_table(_COLUMNS, [*_rows(result["recorded"]["scorecard"], _TIMES, _time)], "")


def _show_regret(result: Record) -> None:
    """Show how much longer jobs waited than with exact estimates, if the estimates were not exact."""
    estimates = result.get("estimates")
    if estimates is not None:
        waits = [_or_dash(estimates[name], _time) for name in ("wait_ms", "exact_wait_ms")]
        label = f"mean wait, estimates {estimates['estimates']}"
        show(f"{label:36}{waits[0]}; {waits[1]} with exact ones: regret {_or_dash(estimates['regret'])}")


def _show_costs(result: Record) -> None:
    """Show the cost of the nodes if they have prices, and the time that scheduling took."""
    cost, self_cost = result["cost"], result["self_cost"]
    if cost is not None:
        show(f"{'cost, per finished GPU-hour':36}{cost['total']:.2f}, {_or_dash(cost['per_gpu_hour'])}")
    if self_cost is not None and self_cost["cycle_ms"]["n"]:
        cycle = self_cost["cycle_ms"]
        show(f"{'scheduling cycle, p50, p99':36}{cycle['p50']:.2f} ms, {cycle['p99']:.2f} ms")


def _rows(card: Record, labels: dict[str, str], text: Callable[[float], str]) -> Iterator[list[str]]:
    for name, label in labels.items():
        summary = card[name]
        statistics = [summary[key] for key in ("mean", "p50", "p95", "p99")]
        yield [label, str(summary["n"]), *("-" if value is None else text(value) for value in statistics)]


def _or_dash(value: float | None, text: Callable[[float], str] = "{:.2f}".format) -> str:
    return "-" if value is None else text(value)


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)


def _number(value: float) -> str:
    return f"{value:.2f}"
