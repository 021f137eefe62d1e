"""Options of cluster, costs and faults that the commands of `ganger sim` share, and the rows of a trace with a flaw."""

import re
from pathlib import Path
from typing import Final

import click

from ganger.cli.options import DURATION, CheckedText, Decorated
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import show
from ganger.cli.sim.simulation_process import Record
from ganger.model.units import parse_duration_ms
from ganger.model.views.simulation_figures import ROW_UNITS


def _check_factor(text: str) -> None:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise ValueError(f"{text!r} is not a factor: write 0.5, 2 or 10")


trace_argument = click.argument("trace", metavar="TRACE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
format_option = click.option(
    "--format", metavar="NAME", help="Format of the trace; unset: detected from its first line."
)
_NODES: Final = click.option("--nodes", type=click.IntRange(1, 100_000), help="Number of nodes.")
_JOBS_OUT: Final = click.option(
    "--jobs-out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a row for each job and run to this file: .csv, .csv.gz, or .parquet (pip install 'ganger[parquet]').",
)
_OPTIONS: Final = (
    click.option("--gpus", "--gpus-per-node", type=click.IntRange(1, 100_000), help="GPUs of each node; unset: 8."),
    click.option("--gpu-type", metavar="NAME", help="GPU type of the nodes, for traces whose jobs request a type."),
    click.option(
        "--cpus",
        type=click.IntRange(1, 100_000),
        help="CPUs of each node; unset: enough, so that jobs wait for GPUs alone. Needed where jobs ask for no GPUs.",
    ),
    click.option("--start", type=DURATION, help="Startup time of each start of a job, such as 30s; unset: none."),
    click.option(
        "--checkpoint", type=DURATION, help="Work between checkpoints, such as 30m; unset: a stop loses no work."
    ),
    click.option(
        "--checkpoint-cost", type=DURATION, help="Time for which each checkpoint stops the work; unset: none."
    ),
    click.option(
        "--notice", type=DURATION, help="Time that a job has to save its work before it is stopped; unset: none."
    ),
    click.option("--save", type=DURATION, help="Time that a save takes in the notice; unset: none."),
    click.option(
        "--faults",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Trace of node faults to replay.",
    ),
    click.option(
        "--fault-rate",
        type=CheckedText("number", _check_factor),
        help="Multiple of the recorded number of faults, such as 0.5, 4; unset: 1.",
    ),
    click.option(
        "--fault-nodes",
        type=click.IntRange(1),
        metavar="N",
        help="Number of nodes that the fault trace covers; unset: those that it names.",
    ),
    click.option(
        "--fault-seed", type=click.IntRange(0), metavar="N", help="Seed that decides which nodes fail when; unset: 0."
    ),
    click.option("--detect", type=DURATION, help="Time until the scheduler detects that a node is lost; unset: none."),
    click.option("--repair", type=DURATION, help="Time until a lost node returns; unset: as recorded."),
    click.option("--spares", type=click.IntRange(0), metavar="N", help="Nodes held back to replace lost ones."),
    click.option(
        "--estimates",
        metavar="HOW",
        help="Time limits of jobs, by which policies plan: recorded, exact, factor=2 (twice the duration) or noisy=3"
        " (one to three times, drawn); unset: recorded, and exact for jobs without a recorded limit.",
    ),
    click.option(
        "--load-scale",
        type=CheckedText("number", _check_factor),
        help="Multiple of the recorded load: with 2, jobs are submitted within half the time; unset: 1.",
    ),
    click.option(
        "--elastic",
        type=CheckedText("number", _check_factor),
        help="Share of the jobs that are made elastic, such as 0.5, drawn; unset: those that the trace says.",
    ),
    click.option(
        "--elastic-max",
        type=CheckedText("number", _check_factor),
        help="Multiple of the requested GPUs that these jobs can use; unset: 2.",
    ),
    click.option(
        "--throughputs",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Steps per second by model and type of GPU, CSV or Gavel's JSON; unset: all types are equally fast.",
    ),
    click.option(
        "--recorded-on",
        metavar="TYPE",
        help="GPU type that the durations of the trace were recorded on, with --throughputs.",
    ),
    click.option(
        "--price",
        multiple=True,
        metavar="[TYPE=]N",
        help="Price of a node-hour, such as 12.50, or by GPU type: h100=98.3.",
    ),
)
_DURATIONS: Final = {
    "since",
    "wait_p99",
    "start",
    "checkpoint",
    "checkpoint_cost",
    "notice",
    "save",
    "detect",
    "repair",
}
"""Options that the simulation process takes in ms, under their name and `-ms`."""


def simulation_options(command: Decorated) -> Decorated:
    """Add the options of cluster, costs, faults and output to a command."""
    return cluster_options(_JOBS_OUT(command))


def cluster_options(command: Decorated) -> Decorated:
    """Add the options of cluster, costs and faults to a command."""
    return _NODES(node_options(command))


def node_options(command: Decorated) -> Decorated:
    """Add the same options without the number of nodes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return format_option(command)


def process_arguments(options: Record) -> list[str]:
    """Return the options that are set as arguments of the simulation process."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if name in _DURATIONS:
            arguments += [f"{flag}-ms", str(parse_duration_ms(value))]
        else:
            for item in value if isinstance(value, tuple) else (value,):
                arguments += [flag, str(item)]
    return arguments


def show_findings(source: Record) -> None:
    """Show the flaws of a trace, with the line of the first rows of each."""
    unit = ROW_UNITS.get(source["format"], "line")
    for finding in source["findings"]:
        treatment = "kept" if finding["kept"] else "left out"
        show(f"  {count(finding['count'], 'row')} {treatment}, {finding['flaw']}: {finding['meaning']}")
        for row in finding["first"]:
            show(f"    {unit} {row['line']}: {row['what']}")
