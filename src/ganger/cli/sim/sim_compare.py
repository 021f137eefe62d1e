"""`ganger sim compare`: several policies on one trace, side by side: tables, JSON, CSV, and an HTML report.

The simulation process starts one process for each run, and reports its progress.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ganger.cli.exit_codes import UNREACHABLE
from ganger.cli.output.error_output import Problem
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import Column, show, show_json, show_table
from ganger.cli.sim.progress import run_with_progress
from ganger.cli.sim.sim_options import process_arguments, show_findings, simulation_options
from ganger.cli.sim.sim_source import check_options, cluster_size, documents_option, source_options
from ganger.cli.sim.simulation_process import Record
from ganger.model.views.figure_names import flat_figures
from ganger.model.views.policy_differences import headline
from ganger.model.views.simulation_figures import Figure, Row, iter_rows, iter_tables, job_set_notes

NOT_IN_CSV: Final = ("series", "gantt", "name")
"""Keys of a run that are not figures but for charts and headings."""


@click.command("compare")
@source_options
@documents_option
@click.option(
    "--policies",
    metavar="NAME[,NAME]",
    help="Queue orders, or orders and placement scores, such as easy,easy+fgd; unset: five common orders.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Runs of each policy that draws at random; of every policy with --faults.",
)
@simulation_options
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="Write figures and charts to this HTML file."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="Output format: tables; JSON, with the series of the charts; or CSV, a row for each run.",
)
def compare_command(output: str, **options: Any) -> None:
    """Run the jobs of a trace under several policies, and compare the results.

    Each run is a process of its own; as many run at a time as there are cores. Runs and figures are those of `ganger
    sim run`. With --from-log they are the recorded run, one under the policy in force, and one under each --document.
    The score `random` draws at random, and so do --faults: with --seeds 10 such runs are repeated with the seeds 0 to
    9, and tables show their mean and standard deviation.

    \b
      ganger sim compare cluster04.csv.gz --nodes 72 --report compared.html
      ganger sim compare --from-log --document new.yaml
      ganger sim compare jobs.csv --nodes 16 --policies easy,first_fit -o csv
    """  # noqa: D301 - click needs the character itself before lines that it must not wrap
    options = check_options(options, "ganger sim compare")
    trace = options.pop("trace")
    result = run_with_progress("compare", *([] if trace is None else [str(trace)]), *process_arguments(options))
    runs, failed_runs = result["runs"], result["failed"]
    if output == "json":
        show_json(result)
    elif output == "csv":
        _write_csv(runs)
    else:
        _show_result(result)
    if failed_runs:
        reasons = "\n".join(f"{run['name']}: {run['reason']}" for run in failed_runs)
        summary = f"{len(failed_runs)} of {count(len(failed_runs) + len(runs), 'run')} failed"
        raise Problem(f"{summary}:\n{reasons}", "", UNREACHABLE)


def _write_csv(runs: list[Record]) -> None:
    """Write a row for each run; the name of a nested figure is its path in JSON."""
    rows = [dict(flat_figures({key: value for key, value in run.items() if key not in NOT_IN_CSV})) for run in runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _show_result(result: Record) -> None:
    rows, runs = count(result["rows"], "row"), count(len(result["runs"]), "run")
    show(f"{rows} of {result['trace']} on {cluster_size(result)}, {runs}")
    show_findings(result)
    if result["runs"]:
        show("; ".join(headline(result)))
    _show_runs(result)
    if result["report"]:
        show()
        show(f"report: {result['report']}")


def _show_runs(result: Record) -> None:
    """Print the tables that have figures for these runs: a row for each run, or for the mean and spread over seeds."""
    for note in job_set_notes(result):
        show(note)
    rows = list(iter_rows(result))
    for table in iter_tables(rows):
        show()
        columns = [Column("POLICY"), *(Column(figure.title.upper(), right=True) for figure in table.figures)]
        show_table(columns, [[row.name, *_texts(row, table.figures)] for row in rows], "")


def _texts(row: Row, figures: Sequence[Figure]) -> Iterator[str]:
    for figure in figures:
        value = figure.of(row.run)
        yield "-" if value is None else figure.text(value)
