"""`ganger sim`: recorded jobs on a simulated cluster, decided by the code that decides on a real one.

An errand of its own process, as `ganger doctor` is: no server is asked, and none is loaded here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from ganger import settings
from ganger.faces.cli.exit_codes import UNREACHABLE
from ganger.faces.cli.options import DURATION, output_option
from ganger.faces.cli.problem import Problem
from ganger.faces.cli.render import Column, show, show_json, show_table
from ganger.faces.cli.story import count
from ganger.model.units import format_duration, parse_duration_ms

Record = dict[str, Any]

_COLUMNS: Final = (Column("OF JOBS"), *(Column(title, right=True) for title in ("N", "MEAN", "P50", "P95", "P99")))
_TIMES: Final = {"jct_ms": "completion time", "queueing_ms": "waiting", "first_start_ms": "until the first start"}
_SLOWDOWNS: Final = {"slowdown_10s": "slowdown (10s)", "slowdown_600s": "slowdown (10m)"}
_SHARES: Final = {
    "allocation": "allocated, of all GPU time",
    "allocation_in_submission": "the same, until the last submission",
    "occupancy": "allocated, of what was asked for",
    "jain": "Jain's index over tenants",
}
_trace_argument = click.argument("trace", metavar="TRACE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_format_option = click.option("--format", "form", metavar="NAME", help="Of the trace; unset: its first line tells.")


@click.group("sim")
def sim_command() -> None:
    """Run recorded jobs on a simulated cluster, or write them in ganger's own format.

    What decides is what decides on a real cluster. Formats: docs/trace-format.md.
    """


@sim_command.command("import")
@_trace_argument
@click.argument("file", type=click.Path(path_type=Path))
@_format_option
@output_option
def import_command(trace: Path, file: Path, form: str | None, output: str) -> None:
    """Write the jobs of a trace in ganger's own format, and say what was left out.

    \b
      ganger sim import cluster04.csv.gz jobs.csv
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    told = _errand("import", str(trace), "--to", str(file), *(["--format", form] if form else []))
    if output == "json":
        show_json(told)
        return
    show(f"{told['file']}: {count(told['jobs'], 'job')} of {count(told['rows'], 'row')}, format {told['format']}")
    _show_findings(told)


@sim_command.command("run")
@_trace_argument
@click.option("--policy", metavar="NAME", help="The queue order; unset: as of a server that nobody configured.")
@click.option("--nodes", type=click.IntRange(1, 100_000), required=True, help="How many nodes there are.")
@click.option("--gpus", type=click.IntRange(1, 100_000), default=8, show_default=True, help="GPUs of each node.")
@click.option("--gpu-type", metavar="NAME", help="Their type, for traces whose jobs ask for one.")
@click.option("--start", type=DURATION, help="What each start of a job costs: 30s; unset: nothing.")
@click.option(
    "--checkpoint", type=DURATION, help="Work between checkpoints: 30m; unset: a stopped job keeps all of it."
)
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Write every event there.")
@_format_option
@output_option
def run_command(trace: Path, form: str | None, output: str, **said: Any) -> None:
    """Run the jobs of a trace on a cluster of equal nodes, and show how they fared.

    Jobs run as long as they were recorded to, and that is the time limit they are known to have. One that says only how
    many GPUs it wants is on one node, if a node has so many, else on whole nodes and one for what is left over. The
    same words give the same answer.

    \b
      ganger sim run cluster04.csv.gz --nodes 72 --gpus 8
      ganger sim run jobs.csv --nodes 16 --policy sjf -o json
    """  # noqa: D301 - as above
    durations = {"start": "--start-ms", "checkpoint": "--checkpoint-ms"}
    words = [word for name, flag in durations.items() if said[name] for word in (flag, parse_duration_ms(said[name]))]
    plain = ("policy", "nodes", "gpus", "gpu_type", "log")
    words += [word for name in plain if said[name] for word in (f"--{name.replace('_', '-')}", said[name])]
    told = _errand("run", str(trace), *map(str, words), *(["--format", form] if form else []))
    if output == "json":
        show_json(told)
    else:
        _show_run(told)


def _errand(*words: str) -> Record:
    """The answer of a process that may load all of ganger. Problem: what it says is wrong."""
    home = settings.home(os.environ)
    command = [sys.executable, "-P", "-m", "ganger.wiring", "sim", *words, "--home", str(home.path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    try:
        told: Record = json.loads(run.stdout)
    except ValueError:
        raise Problem("the simulation itself broke down: its words are above", "", UNREACHABLE) from None
    if "error" in told:
        raise Problem(told["error"], told["next"])
    return told


def _show_run(told: Record) -> None:
    card = told["scorecard"]
    cluster = f"{count(told['nodes'], 'node')} x {count(told['gpus'], 'GPU')}"
    show(f"{count(card['jobs'], 'job')} of {told['trace']} on {cluster}, policy {told['policy']}")
    _show_findings(told)
    for why, many in told["unended"].items():
        show(f"  {count(many, 'job')} did not come to an end: {why}")
    show()
    show_table(_COLUMNS, [*_rows(card, _TIMES, _time), *_rows(card, _SLOWDOWNS, _number)], "")
    show()
    makespan = "-" if card["makespan_ms"] is None else format_duration(card["makespan_ms"])
    show(f"{'makespan':36}{makespan}")
    for name, words in _SHARES.items():
        show(f"{words:36}{'-' if card[name] is None else format(card[name], '.4f')}")
    show(f"{'starts, of them after a preemption':36}{told['starts']}, {told['preemptions']}")


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


def _show_findings(told: Record) -> None:
    """Rows with a flaw, the first of them by line."""
    for found in told["findings"]:
        what = "kept" if found["kept"] else "left out"
        show(f"  {count(found['count'], 'row')} {what}, {found['flaw']}: {found['meaning']}")
        for first in found["first"]:
            show(f"    line {first['line']}: {first['what']}")
