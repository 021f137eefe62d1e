"""Runs of a comparison on a server's own log: as recorded, under the policy in force, and under other documents."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ganger.model.cluster import Node
from ganger.simulation.arguments.cluster_arguments import prices_from
from ganger.simulation.arguments.policy_arguments import read_document, with_policy
from ganger.simulation.compare.contender import JOBS, ProgressReader, contender_json
from ganger.simulation.compare.process_pool import ReportProgress
from ganger.simulation.from_log.log_replay import LogRun, as_recorded, simulate_log
from ganger.simulation.from_log.recorded_days import RecordedDays, read_days
from ganger.simulation.from_log.run_log import (
    IN_FORCE,
    log_run_from,
    nodes_from_arguments_or_log,
    occupancy_of_days,
)
from ganger.simulation.json_output import Record
from ganger.simulation.results.job_columns import job_columns
from ganger.simulation.simulated_cluster import Prices

RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContender:
    """A run of the days of a log. `run`: None: the log itself is measured; `with_jobs`: as of `TraceContender`."""

    name: str
    days: RecordedDays
    run: LogRun | None = None
    prices: Prices | None = None
    since_ms: int | None = None
    with_jobs: bool = False


def log_contenders_from(
    arguments: argparse.Namespace, policies: Sequence[str]
) -> tuple[tuple[Node, ...], list[LogContender]]:
    """Return the nodes, and the contenders on them.

    RequestError, UnreadableTrace, InvalidArgument: the log, the nodes or a document cannot be used.
    """
    days = read_days(arguments.from_log, since_ms=arguments.since_ms)
    nodes = nodes_from_arguments_or_log(arguments, days)
    documents = {IN_FORCE: days.document}
    documents |= {policy: with_policy(days.document, policy) for policy in policies}
    documents |= {str(path): read_document(path, nodes) for path in arguments.document}
    with_jobs = arguments.jobs_out is not None
    simulated = [
        LogContender(name=name, days=days, run=log_run_from(arguments, days, nodes, document), with_jobs=with_jobs)
        for name, document in documents.items()
    ]
    prices = prices_from(arguments.price, days.nodes)
    recorded = LogContender(name=RECORDED, days=days, prices=prices, since_ms=arguments.since_ms, with_jobs=with_jobs)
    return nodes, [recorded, *simulated]


def run_log_contender(contender: LogContender, report_progress: ReportProgress) -> Record:
    """Run the days and return the same as `run_trace_contender` of a trace."""
    days, run = contender.days, contender.run
    nodes = days.nodes if run is None else run.nodes
    occupancy = occupancy_of_days(days, nodes)
    if run is None:
        recorded_days = read_days(Path(days.path), occupancy.fold, since_ms=contender.since_ms)
        outcome = as_recorded(recorded_days, contender.prices)
    else:
        outcome = simulate_log(run, occupancy.fold, ProgressReader(days.rows, report_progress).read)
    names = {"policy": contender.name, "seed": None, "name": contender.name}
    figures = contender_json(names, outcome, occupancy, nodes)
    return figures | {JOBS: job_columns(outcome, policy=contender.name)} if contender.with_jobs else figures
