"""`ganger sim compare`: several policies on one trace, beside each other: a table, JSON, CSV, and a report to look at.

The runs are processes of the errand (`simulation.compare.compare`), which tells on its way how far they are.
"""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import click

from ganger.cli.exit_codes import UNREACHABLE
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import count
from ganger.cli.output.print_output import Column, show, show_json, show_table, supports_colour
from ganger.cli.sim.sim_options import Record, answer_of, show_findings, simulated_options, started, words_of
from ganger.cli.sim.sim_source import checked, cluster_of, documents_option, sourced
from ganger.model.views.simulation_figures import Figure, Row, iter_rows, iter_tables

LEFT_OUT: Final = ("series", "bars", "name")
"""What is for pictures, and no figure."""


@click.command("compare")
@sourced
@documents_option
@click.option(
    "--policies",
    metavar="NAME[,NAME]",
    help="Queue orders, or orders and placement scores: easy,easy+fgd; unset: six that the field compares.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Runs of each policy that draws, or of each with --faults.",
)
@simulated_options
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write figures and pictures: HTML.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="How to print: tables; JSON, with the series of the pictures; or CSV, a row for each run.",
)
def compare_command(output: str, **said: Any) -> None:
    """Run the jobs of a trace under several policies, and show how they fared beside each other.

    Each run is a process of its own, as many at a time as there are cores. What is simulated is as in `ganger sim run`,
    and so is each figure. With --from-log they are those that were recorded, those under the policy in force, and
    those under each document that is named. The score `random` draws, and so do --faults: with --seeds 10 such runs
    are made with the seeds 0 to 9, and tables have their mean and standard deviation.

    \b
      ganger sim compare cluster04.csv.gz --nodes 72 --report compared.html
      ganger sim compare --from-log --document new.yaml
      ganger sim compare jobs.csv --nodes 16 --policies easy,sjf,tiresias -o csv
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    said = checked(said, "ganger sim compare")
    trace = said.pop("trace")
    told = _compared("compare", *([] if trace is None else [str(trace)]), *words_of(said))
    if output == "json":
        show_json(told)
    elif output == "csv":
        _write_csv(told["runs"])
    else:
        _show(told)
    if told["failed"]:
        which = "\n".join(f"{each['name']}: {each['reason']}" for each in told["failed"])
        many = f"{len(told['failed'])} of {count(len(told['failed']) + len(told['runs']), 'run')}"
        raise Problem(f"{many} did not come to the end:\n{which}", "", UNREACHABLE)


def _compared(*words: str) -> Record:
    """The answer of the errand, whose way is shown on a terminal."""
    with _progress() as further, started(*words) as errand:
        return _answer(errand, further)


def _answer(errand: "subprocess.Popen[bytes]", further: "Further") -> Record:
    """The last line; each line before says how far it is."""
    last = b""
    for line in errand.stdout or ():
        if last.startswith(b'{"done"'):
            further(json.loads(last))
        last = line
    return answer_of(last)


class Further(Protocol):
    """Shows how far it is: `done`, from 0 to 1, and how many `runs` have `ended`."""

    def __call__(self, told: Record, /) -> None:
        """The next word of the errand."""


@contextmanager
def _progress() -> Iterator[Further]:
    """A bar with the time that is left, on a terminal; elsewhere nothing."""
    if not supports_colour(sys.stderr):
        yield lambda _told: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=1.0)

        def further(told: Record, /) -> None:
            progress.update(task, completed=told["done"], description=f"{told['ended']} of {told['runs']} runs")

        yield further


def _write_csv(runs: list[Record]) -> None:
    """A row for each run; figures of figures are called as their way in JSON is."""
    rows = [dict(_flat({name: of for name, of in run.items() if name not in LEFT_OUT})) for run in runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _flat(record: Record, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if name == "unended":
            yield name, sum(value.values())
        elif isinstance(value, dict):
            yield from _flat(value, path if name == "scorecard" else f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _show(told: Record) -> None:
    runs = told["runs"]
    show(f"{count(told['rows'], 'row')} of {told['trace']} on {cluster_of(told)}, {count(len(runs), 'run')}")
    show_findings(told)
    _show_runs(told)
    if told["report"]:
        show()
        show(f"report: {told['report']}")


def _show_runs(answer: Record) -> None:
    """Print the tables that have figures for these runs: a row for each run, or for the mean and spread over seeds."""
    rows = list(iter_rows(answer))
    for table in iter_tables(rows):
        show()
        columns = [Column("POLICY"), *(Column(figure.title.upper(), right=True) for figure in table.figures)]
        show_table(columns, [[row.name, *_texts(row, table.figures)] for row in rows], "")


def _texts(row: Row, figures: Sequence[Figure]) -> Iterator[str]:
    for figure in figures:
        value = figure.of(row.run)
        yield "-" if value is None else figure.text(value)
