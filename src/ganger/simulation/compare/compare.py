"""`ganger sim compare`: several policies on one trace or log, each in a process of its own, and a report of them.

While runs last, a JSON object is printed on a line of its own whenever one of them has made progress (`done`, from 0 to
1, and `ended`, how many runs are over); the answer is the last line. All arguments are checked before the first run.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ganger import registry
from ganger.model.cluster import Node
from ganger.model.policy import ORDER
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.cluster_arguments import cluster_json
from ganger.simulation.arguments.estimate_arguments import estimates_from
from ganger.simulation.arguments.policy_arguments import order_and_score
from ganger.simulation.arguments.run_arguments import trace_run_from
from ganger.simulation.arguments.trace_queues import with_document
from ganger.simulation.arguments.workload_arguments import read_workload
from ganger.simulation.compare.common_jobs import with_common_figures
from ganger.simulation.compare.contender import JOBS, TraceContender, run_trace_contender
from ganger.simulation.compare.process_pool import Work
from ganger.simulation.compare.progress import run_with_progress
from ganger.simulation.duration_estimates import EstimateKind
from ganger.simulation.from_log.log_contender import LogContender, log_contenders_from, run_log_contender
from ganger.simulation.from_log.run_log import log_source_json
from ganger.simulation.json_output import Record, source_json
from ganger.simulation.report.html_report import comparison_report
from ganger.simulation.results.job_columns import stacked
from ganger.simulation.results.job_file import check_job_file, check_output_file, write_job_file

DEFAULT_POLICIES: Final = "dynamic,strict_fifo,first_fit,easy,conservative"
"""The default order, and those of ganger that published comparisons begin with."""
CHART_DATA: Final = ("series", "gantt")
"""Parts of a run that are no figures."""


def compare(arguments: argparse.Namespace) -> Record:
    """Run all contenders and return their figures. InvalidArgument, UnreadableTrace: an argument is wrong."""
    if arguments.report is not None:
        check_output_file(arguments.report, "report", f"--report {arguments.report / 'report.html'}")
    if arguments.jobs_out is not None:
        check_job_file(arguments.jobs_out)
    answer = _compare_on_trace(arguments) if arguments.from_log is None else _compare_on_log(arguments)
    if arguments.report is not None and answer["runs"]:
        write_atomically(arguments.report, comparison_report(answer))
    return answer


def _compare_on_trace(arguments: argparse.Namespace) -> Record:
    policies = _split_policies(DEFAULT_POLICIES if arguments.policies is None else arguments.policies)
    is_input_drawn = arguments.faults is not None or estimates_from(arguments.estimates).kind is EstimateKind.NOISY
    seeds = _seeds_by_policy(policies, arguments.seeds, is_input_drawn=is_input_drawn)
    trace = read_workload(arguments)
    contenders = [
        TraceContender(
            policy=policy,
            seed=seed,
            run=trace_run_from(arguments, trace, policy, seed or 0),
            with_jobs=arguments.jobs_out is not None,
        )
        for policy in policies
        for seed in seeds[policy]
    ]
    nodes = contenders[0].run.nodes
    for path in arguments.document:
        for seed in range(arguments.seeds) if is_input_drawn and arguments.seeds > 1 else (None,):
            run = with_document(trace_run_from(arguments, trace, ORDER, seed or 0), path, arguments.map_queue)
            with_jobs = arguments.jobs_out is not None
            contenders.append(TraceContender(policy=str(path), seed=seed, run=run, with_jobs=with_jobs))
    runs, failures = _run_all(run_trace_contender, contenders)
    return _answer(arguments, source_json(trace, ()), nodes, runs, failures)


def _compare_on_log(arguments: argparse.Namespace) -> Record:
    """Compare the recorded run, the policy in force, and the policies and documents that are named."""
    policies = [] if arguments.policies is None else _split_policies(arguments.policies)
    _seeds_by_policy(policies or [ORDER], arguments.seeds, is_input_drawn=False)
    nodes, contenders = log_contenders_from(arguments, policies)
    days = contenders[0].days
    runs, failures = _run_all(run_log_contender, contenders)
    return _answer(arguments, log_source_json(days, nodes, days.findings), nodes, runs, failures)


def _split_policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for index, name in enumerate(names):
        if not name:
            raise InvalidArgument(f"a policy without a name in {text!r}", f"--policies {DEFAULT_POLICIES}")
        if name in names[:index]:
            raise InvalidArgument(f"{name} is named twice in {text!r}", "name each policy once")
        order_and_score(name)
    return names


def _seeds_by_policy(policies: Sequence[str], seeds: int, *, is_input_drawn: bool) -> dict[str, list[int | None]]:
    """Return the seeds of each policy; None alone where nothing is drawn.

    is_input_drawn: faults or estimates are drawn, for all policies alike
    """
    is_drawn = {
        policy: registry.score(order_and_score(policy)[1]).SEEDED or (is_input_drawn and seeds > 1)
        for policy in policies
    }
    if seeds > 1 and not any(is_drawn.values()):
        drawn = f"{policies[0].partition('+')[0]}+random, of the package ganger-baselines"
        raise InvalidArgument(
            f"--seeds {seeds}: none of these policies draws, so {seeds} runs of each would be the same",
            f"leave --seeds out, add --faults FILE, or name a placement score that draws: {drawn}",
        )
    return {policy: list(range(seeds)) if is_drawn[policy] else [None] for policy in policies}


def _run_all(work: Work, contenders: Sequence[TraceContender | LogContender]) -> tuple[list[Record], list[Record]]:
    """Return the runs that ended, in the order of the contenders, and the reasons of those that did not."""
    results: dict[int, Record] = {}
    failures = run_with_progress(work, contenders, results.__setitem__)
    failed = [{"name": contenders[index].name, "reason": reason} for index, reason in failures.items()]
    return with_common_figures([results[index] for index in sorted(results)]), failed


def _answer(
    arguments: argparse.Namespace,
    source: Record,
    nodes: Sequence[Node],
    runs: list[Record],
    failures: Sequence[Record],
) -> Record:
    """Write the jobs and return the answer; findings are of trace and cluster: each simulated run has the same."""
    if arguments.jobs_out is not None:
        write_job_file(stacked([run.pop(JOBS) for run in runs]), arguments.jobs_out)
    findings = runs[-1]["findings"] if runs else []
    listed_runs = [{name: value for name, value in run.items() if name != "findings"} for run in runs]
    return {
        **source,
        "findings": findings,
        **cluster_json(nodes),
        "start_ms": arguments.start_ms,
        "checkpoint_ms": arguments.checkpoint_ms or 0,
        "failed": list(failures),
        "report": None if arguments.report is None or not runs else str(arguments.report),
        "runs": listed_runs,
        "spread": _spread_json(listed_runs),
    }


def write_atomically(file: Path, text: str) -> None:
    """Write a file that replaces an existing one only when it is complete."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


# -- spread over seeds -------------------------------------------------------------------------------------------------


def _spread_json(runs: Sequence[Record]) -> list[Record]:
    """Return mean and standard deviation (of a sample) for each policy with several runs.

    Each has the shape of a run, so that a table shows it as one. A figure that a run lacks is left out of both.
    """
    runs_by_policy: dict[str, list[Record]] = {}
    for run in runs:
        runs_by_policy.setdefault(run["policy"], []).append(run)
    return [
        {
            "policy": policy,
            "runs": len(runs),
            "mean": _aggregated(runs, statistics.fmean),
            "std": _aggregated(runs, statistics.stdev),
        }
        for policy, runs in runs_by_policy.items()
        if len(runs) > 1
    ]


def _aggregated(runs: Sequence[Record], aggregate: Callable[[list[float]], float]) -> Record:
    """Aggregate all figures that are numbers; a reason of `unended` that a run does not have counts as 0."""
    aggregates: Record = {}
    for name in dict.fromkeys(name for run in runs for name in run if name not in CHART_DATA):
        values = [run.get(name) for run in runs]
        if any(isinstance(value, dict) for value in values):
            parts = [value or {} for value in values]
            if name == "unended":
                reasons = dict.fromkeys(reason for part in parts for reason in part)
                parts = [{reason: part.get(reason, 0) for reason in reasons} for part in parts]
            aggregates[name] = _aggregated(parts, aggregate)
        else:
            numbers = [float(value) for value in values if isinstance(value, int | float)]
            aggregates[name] = aggregate(numbers) if len(numbers) > 1 else None
    return aggregates
