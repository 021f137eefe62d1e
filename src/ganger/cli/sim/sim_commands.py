"""`ganger sim`: recorded jobs on a simulated cluster, decided by the code that decides on a real one.

An errand of its own process, as `ganger doctor` is: no server is asked, and none is loaded here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from ganger.cli.options import output_option
from ganger.cli.output.messages import count
from ganger.cli.output.print_output import Column, show, show_json, show_table
from ganger.cli.sim.goodput_output import show_faults, show_goodput
from ganger.cli.sim.sim_compare import compare_command
from ganger.cli.sim.sim_options import (
    Record,
    errand,
    format_option,
    show_findings,
    simulated_options,
    trace_argument,
    words_of,
)
from ganger.cli.sim.sim_source import checked, cluster_of, document_option, sourced
from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration

_COLUMNS: Final = (Column("OF JOBS"), *(Column(title, right=True) for title in ("N", "MEAN", "P50", "P95", "P99")))
_TIMES: Final = {
    "jct_ms": "completion time",
    "queueing_ms": "waiting",
    "first_start_ms": "until the first start",
    "starvation_ms": "longest wait at a stretch",
}
_SLOWDOWNS: Final = {
    "slowdown_10s": "slowdown (10s)",
    "slowdown_600s": "slowdown (10m)",
    "finish_time_fairness": "finish-time fairness",
    "preemptions_per_job": "preemptions",
    "migrations_per_job": "migrations",
}
_LOOKS: Final = {"gpus": "fragmented GPUs", "largest_gang": "largest gang with room"}
_SHARES: Final = {
    "allocation": "allocated, of all GPU time",
    "allocation_in_submission": "the same, until the last submission",
    "occupancy": "allocated, of what was asked for",
    "jain": "Jain's index over tenants",
    "unfair": "jobs with fairness above 1.05",
    "quota_debt_share": "quota debt, of what was due",
    "cross_switch": "gangs across switches",
}


@click.group("sim")
def sim_command() -> None:
    """Run recorded jobs on a simulated cluster, or write them in ganger's own format.

    What decides is what decides on a real cluster. Formats: docs/reference/trace-format.md.
    """


sim_command.add_command(compare_command)


@sim_command.command("import")
@trace_argument
@click.argument("file", type=click.Path(path_type=Path))
@format_option
@output_option
def import_command(trace: Path, file: Path, format: str | None, output: str) -> None:
    """Write the jobs of a trace in ganger's own format, and say what was left out.

    \b
      ganger sim import cluster04.csv.gz jobs.csv
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    told = errand("import", str(trace), *words_of({"to": file, "format": format}))
    if output == "json":
        show_json(told)
        return
    show(f"{told['file']}: {count(told['jobs'], 'job')} of {count(told['rows'], 'row')}, format {told['format']}")
    show_findings(told)


@sim_command.command("run")
@sourced
@document_option
@click.option(
    "--policy", metavar="NAME", help="The queue order, or that and a placement score (easy+fgd); unset: the default."
)
@simulated_options
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Write every event there.")
@output_option
def run_command(output: str, **said: Any) -> None:
    """Run the jobs of a trace on a cluster, and show how they fared.

    Jobs run as long as they were recorded to, and that is the time limit they are known to have. One that says only how
    many GPUs it wants is on one node, if a node has so many, else on whole nodes and one for what is left over. The
    same words give the same answer, but for what deciding took. Faults are of these nodes where they have the same
    names, else of nodes that are drawn; after the end of the record nothing fails.

    With --from-log the jobs are those of your own server, as they were submitted, on the nodes that it had: they did so
    much work, were stopped by people when they were, and start when the policy lets them.

    \b
      ganger sim run cluster04.csv.gz --nodes 72 --gpus 8
      ganger sim run jobs.csv --cluster nodes.csv --policy sjf -o json
      ganger sim run --from-log --document new.yaml
      ganger sim run jobs.csv --nodes 16 --start 2m --checkpoint 30m --faults node_faults.csv --spares 1
    """  # noqa: D301 - as above
    said = checked(said, "ganger sim run")
    trace = said.pop("trace")
    told = errand("run", *([] if trace is None else [str(trace)]), *words_of(said))
    if output == "json":
        show_json(told)
    else:
        _show_run(told)


def _show_run(told: Record) -> None:
    card = told["scorecard"]
    show(f"{count(card['jobs'], 'job')} of {told['trace']} on {cluster_of(told)}, policy {told['policy']}")
    show_findings(told)
    show_faults(told)
    for why, many in told["unended"].items():
        show(f"  {count(many, 'job')} did not come to an end: {why}")
    show()
    looked = _rows(told["fragmentation"], _LOOKS, _number)
    show_table(_COLUMNS, [*_rows(card, _TIMES, _time), *_rows(card, _SLOWDOWNS, _number), *looked], "")
    show()
    makespan = "-" if card["makespan_ms"] is None else format_duration(card["makespan_ms"])
    show(f"{'makespan':36}{makespan}")
    for name, words in _SHARES.items():
        show(f"{words:36}{'-' if card[name] is None else format(card[name], '.4f')}")
    show(f"{'starts, of them after a preemption':36}{told['starts']}, {told['preemptions']}")
    show(f"{'worst finish-time fairness':36}{_or_dash(card['worst_fairness'])}")
    show(f"{'GPU-hours run before a migration':36}{card['moved'] / DEVICE_MILLI / HOUR_MS:.1f}")
    show_goodput(told)
    _show_costs(told)
    if "recorded" in told:
        _show_recorded(told["recorded"])


def _show_costs(told: Record) -> None:
    """Of nodes, where they have prices; and what deciding took."""
    cost, own = told["cost"], told["self_cost"]
    if cost is not None:
        each = _or_dash(cost["per_gpu_hour"])
        show(f"{'cost, of a finished GPU-hour':36}{cost['total']:.2f}, {each}")
    if own is not None and own["cycle_ms"]["n"]:
        cycle = own["cycle_ms"]
        show(f"{'a cycle of the scheduler, p50, p99':36}{cycle['p50']:.2f} ms, {cycle['p99']:.2f} ms")


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _show_recorded(recorded: Record) -> None:
    """What the log itself says, to compare with."""
    show()
    show("as it was recorded")
    show_table(_COLUMNS, [*_rows(recorded["scorecard"], _TIMES, _time)], "")


def _rows(card: Record, names: dict[str, str], text: Any) -> Iterator[list[str]]:
    for name, words in names.items():
        of = card[name]
        yield [
            words,
            str(of["n"]),
            *("-" if of[key] is None else text(of[key]) for key in ("mean", "p50", "p95", "p99")),
        ]


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)


def _number(value: float) -> str:
    return f"{value:.2f}"
