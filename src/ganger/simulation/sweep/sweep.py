"""`ganger sim sweep`: a run for each point of a grid, in processes of their own; a table, and the Pareto front.

Runs are those of `ganger sim compare`, and so is the progress that is printed; all arguments are checked before the
first. Each point is written to the folder as soon as it has ended. Points are compared with those under the same load.
Points on which fewer jobs ended than on another, for lack of nodes, are not compared: they look better without being
better.
"""

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final

from ganger.model.policy import ORDER
from ganger.model.views.figure_names import DEFAULT_MEASURES, LARGE_GPUS, MEASURES, flat_figures
from ganger.model.views.simulation_figures import Best, Figure
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.cluster_arguments import cluster_json
from ganger.simulation.arguments.run_arguments import trace_run_from
from ganger.simulation.arguments.workload_arguments import read_workload
from ganger.simulation.compare.common_jobs import JOB_TIMES
from ganger.simulation.compare.compare import CHART_DATA, write_atomically
from ganger.simulation.compare.contender import TraceContender, run_trace_contender
from ganger.simulation.compare.process_pool import ReportProgress
from ganger.simulation.compare.progress import run_with_progress
from ganger.simulation.json_output import Record, source_json
from ganger.simulation.metrics.run_history import summary
from ganger.simulation.report.pareto_chart import ChartPoint, pareto_chart
from ganger.simulation.sweep.finished_points import FinishedPoints
from ganger.simulation.sweep.grid import GridPoint, grid_points
from ganger.simulation.trace_replay import TraceRun
from ganger.simulation.traces.trace import RecordedJob, Trace

Values = tuple[float | None, float | None]
TABLE: Final = "points.csv"
PICTURE: Final = "pareto.svg"
_NOT_FIGURES: Final = (*CHART_DATA, JOB_TIMES, "policy", "seed", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """The run of a point, as the input of a process."""

    point: GridPoint
    run: TraceRun


def sweep(arguments: argparse.Namespace) -> Record:
    """Run the points that are not finished, and return all. InvalidArgument, UnreadableTrace: an argument is wrong."""
    measures = _measures(arguments.measures)
    points, trace = grid_points(arguments), read_workload(arguments)
    finished = FinishedPoints(arguments.to)
    results = {index: result for index, point in enumerate(points) if (result := finished.load(point.arguments))}
    reused, failures = len(results), _run_unfinished(points, trace, results, finished)
    listed = _listed_points([(points[index], results[index]) for index in sorted(results)], tuple(measures.values()))
    findings = [point["run"].pop("findings") for point in listed]
    _write_files(arguments, listed, measures)
    return {
        **source_json(trace, ()),
        "findings": next((of for of, point in zip(findings, listed, strict=True) if point["is_complete"]), []),
        "parameters": [*points[0].values],
        "measures": [*measures],
        "points": listed,
        "reused": reused,
        "failed": [{"name": points[index].name, "reason": reason} for index, reason in failures.items()],
        "table": str(arguments.to / TABLE),
        "picture": str(arguments.to / PICTURE),
    }


def _run_unfinished(
    points: Sequence[GridPoint], trace: Trace[RecordedJob], results: dict[int, Record], finished: FinishedPoints
) -> dict[int, str]:
    """Run the points without a result and add their results; return the reasons of those that failed, by index.

    trace: under the load of all points, unless the grid has loads
    """
    unfinished = [index for index in range(len(points)) if index not in results]
    traces = {points[0].arguments.load_scale: trace} if "load" not in points[0].values else {}
    runs = [_sweep_run(points[index], traces) for index in unfinished]

    def keep(at: int, result: Record) -> None:
        results[unfinished[at]] = result
        finished.save(points[unfinished[at]].arguments, result)

    failures = run_with_progress(run_point, runs, keep) if runs else {}
    return {unfinished[at]: reason for at, reason in failures.items()}


def run_point(sweep_run: SweepRun, report_progress: ReportProgress) -> Record:
    """Return the figures of a point: those of a run, the size of the cluster, and the waiting of large gangs."""
    contender = TraceContender(policy=sweep_run.point.name, seed=None, run=sweep_run.run)
    record = run_trace_contender(contender, report_progress)
    gpus = {job.name: job.gpus for job in sweep_run.run.trace.records}
    waits_ms = [wait_ms for name, (_, wait_ms) in record[JOB_TIMES].items() if gpus[name] > LARGE_GPUS]
    return {
        **{name: value for name, value in record.items() if name not in _NOT_FIGURES},
        **cluster_json(sweep_run.run.nodes),
        "large_gangs": {"queueing_ms": asdict(summary(waits_ms))},
    }


def _measures(text: str | None) -> dict[str, Figure]:
    names = list(DEFAULT_MEASURES) if text is None else [name.strip() for name in text.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        usual = ",".join(DEFAULT_MEASURES)
        raise InvalidArgument(f"--measures {text}: a front has two measures", f"--measures {usual}")
    if unknown := [name for name in names if name not in MEASURES]:
        raise InvalidArgument(f"there is no measure {unknown[0]!r}", f"name two of {', '.join(MEASURES)}")
    return {name: MEASURES[name] for name in names}


def _sweep_run(point: GridPoint, traces: dict[str | None, Trace[RecordedJob]]) -> SweepRun:
    """Return the run of a point. InvalidArgument: it cannot be run."""
    arguments = point.arguments
    if arguments.load_scale not in traces:
        traces[arguments.load_scale] = read_workload(arguments)
    try:
        run = trace_run_from(
            arguments, traces[arguments.load_scale], arguments.policy or ORDER, getattr(arguments, "seed", 0)
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"{point.name}: {error.reason}", error.next) from None
    return SweepRun(point=point, run=run)


def _listed_points(points: Sequence[tuple[GridPoint, Record]], measures: Sequence[Figure]) -> list[Record]:
    """Return the finished points, with whether they are complete and on the front."""
    ended = [run["scorecard"]["jct_ms"]["n"] for _, run in points]
    complete = [index for index, jobs in enumerate(ended) if jobs == max(ended)]
    front: set[int] = set()
    for load in {_load(points[index][0].values) for index in complete}:
        of_load = [index for index in complete if _load(points[index][0].values) == load]
        front |= {of_load[at] for at in _front([points[index][1] for index in of_load], measures)}
    return [
        {"values": point.values, "is_complete": index in complete, "is_on_front": index in front, "run": run}
        for index, (point, run) in enumerate(points)
    ]


def _front(runs: Sequence[Record], measures: Sequence[Figure]) -> list[int]:
    first, second = measures
    return pareto_front([(first.of(run), second.of(run)) for run in runs], (first.best, second.best))


def _load(values: Mapping[str, str]) -> str:
    """Return the load of a point, by which points are compared; empty if the sweep has only one."""
    return values.get("load", "")


def _write_files(arguments: argparse.Namespace, points: Sequence[Record], measures: dict[str, Figure]) -> None:
    """Write the table and the picture."""
    rows: list[dict[str, Any]] = [
        {**point["values"], "is_complete": point["is_complete"], "is_on_front": point["is_on_front"]}
        | {name: value for name, value in flat_figures(point["run"]) if name not in point["values"]}
        for point in points
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(arguments.to / TABLE, text.getvalue())
    first, second = measures.values()
    shown = [
        ChartPoint(
            name=" ".join(point["values"].values()),
            group=_load(point["values"]),
            x=x,
            y=y,
            is_on_front=point["is_on_front"],
        )
        for point in points
        if point["is_complete"]
        and (x := first.of(point["run"])) is not None
        and (y := second.of(point["run"])) is not None
    ]
    write_atomically(arguments.to / PICTURE, pareto_chart(shown, measures))


def pareto_front(points: Sequence[Values], best: tuple[Best | None, Best | None]) -> list[int]:
    """Return the indices of the points that no other dominates, the best in the first measure first.

    A point dominates another if it is at least as good in both measures and better in one: of equal points either all
    are on the front or none. A point without one of the measures is not.

    best: for each measure `min` or `max`, which tells the better of two values
    """
    first_sign, second_sign = (-1 if better is max else 1 for better in best)
    costs = sorted(
        (first * first_sign, second * second_sign, index)
        for index, (first, second) in enumerate(points)
        if first is not None and second is not None
    )
    front, lowest = list[int](), float("inf")
    for _, group in groupby(costs, key=lambda cost: cost[0]):
        same_first = list(group)
        second = same_first[0][1]
        if second < lowest:
            lowest = second
            front += [index for _, cost, index in same_first if cost == second]
    return front
