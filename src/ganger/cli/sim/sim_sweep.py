"""`ganger sim sweep`: a run for each combination of parameters, and the Pareto front of two measures."""

from pathlib import Path
from typing import Any

import click

from ganger.cli.exit_codes import UNREACHABLE
from ganger.cli.output.error_output import Problem
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import Column, show, show_json, show_table
from ganger.cli.sim.progress import run_with_progress
from ganger.cli.sim.sim_options import cluster_options, process_arguments, show_findings, trace_argument
from ganger.cli.sim.simulation_process import Record
from ganger.model.views.figure_names import MEASURES


@click.command("sweep")
@trace_argument
@click.option(
    "--grid",
    multiple=True,
    required=True,
    metavar="NAME=VALUE[,VALUE]",
    help="Parameters and their values: policy=easy,fifo,nodes=8,16,load=1,1.5; also gpus, estimates, start, checkpoint,"
    " fault-rate, spares and seed.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="FOLDER",
    help="Folder for the results; points that are in it already are not run again.",
)
@click.option(
    "--measures",
    metavar="NAME,NAME",
    help="The two measures of the Pareto front, by their names in CSV; unset: queueing_ms.mean,allocation.",
)
@click.option(
    "--policy", metavar="NAME", help="Queue order, or order and placement score (easy+fgd); unset: the default."
)
@click.option(
    "--cluster",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with the nodes, instead of --nodes.",
)
@cluster_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="Output format: a table; JSON; or CSV, a row for each point with all its figures.",
)
def sweep_command(trace: Path, output: str, **options: Any) -> None:
    """Run the jobs of a trace for each combination of parameters, and show which are on the Pareto front.

    Each run is a process of its own, and as many run at a time as there are cores. The folder has a file for each
    finished point, so that an interrupted sweep goes on, and one with more values runs only the new points; all of them
    as CSV (points.csv); and a picture of the front (pareto.svg).

    A point is on the front, marked with *, if no other under the same load is at least as good in both measures and
    better in one. Points on which fewer jobs ended than on others are not compared.

    \b
      ganger sim sweep jobs.csv --grid policy=easy,fifo,nodes=8,16,load=1,1.5 --to swept
      ganger sim sweep jobs.csv --grid nodes=8,12,16 --measures nodes,queueing_ms.p99 --to swept
    """  # noqa: D301 - click needs the character itself before lines that it must not wrap
    result = run_with_progress("sweep", str(trace), *process_arguments(options))
    if output == "json":
        show_json(result)
    elif output == "csv":
        show(Path(result["table"]).read_text(encoding="utf-8").rstrip("\n"))
    else:
        _show_sweep(result)
    if failed := result["failed"]:
        reasons = "\n".join(f"{run['name']}: {run['reason']}" for run in failed)
        points = count(len(failed) + len(result["points"]), "point")
        raise Problem(f"{len(failed)} of {points} failed:\n{reasons}", "", UNREACHABLE)


def _show_sweep(result: Record) -> None:
    points = result["points"]
    reused = f", {result['reused']} of them finished before" if result["reused"] else ""
    show(f"{count(result['rows'], 'row')} of {result['trace']}, {count(len(points), 'point')}{reused}")
    show_findings(result)
    incomplete = sum(not point["is_complete"] for point in points)
    if incomplete:
        show(f"{count(incomplete, 'point')} not compared, marked with -: fewer jobs ended than on the others")
    show()
    measures = {name: MEASURES[name] for name in result["measures"] if name not in result["parameters"]}
    titles = ("JOBS", *(name.upper() for name in measures), "FRONT")
    parameters = (Column(name.upper()) for name in result["parameters"])
    columns = [*parameters, *(Column(title, right=True) for title in titles)]
    show_table(columns, [_cells(point, measures) for point in points], "")
    show()
    show(f"table: {result['table']}")
    show(f"picture: {result['picture']}")


def _cells(point: Record, measures: dict[str, Any]) -> list[str]:
    run = point["run"]
    values = [(figure, figure.of(run)) for figure in measures.values()]
    texts = ["-" if value is None else figure.text(value) for figure, value in values]
    mark = "*" if point["is_on_front"] else "" if point["is_complete"] else "-"
    return [*point["values"].values(), f"{run['scorecard']['jct_ms']['n']:,}", *texts, mark]
