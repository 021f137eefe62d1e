"""`ganger sim run --from-log`: the days of a server's own log under a policy document, beside what was recorded."""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from ganger import registry
from ganger.engine.policy_doc.policy_validation import changes
from ganger.model.cluster import Node
from ganger.model.event import Stamped
from ganger.model.policy import PolicyDocument
from ganger.simulation.arguments.cluster_arguments import cluster_json, nodes_from, prices_from
from ganger.simulation.arguments.policy_arguments import read_document, with_policy
from ganger.simulation.from_log.log_replay import LogRun, as_recorded, simulate_log
from ganger.simulation.from_log.recorded_days import RecordedDays, read_days
from ganger.simulation.json_output import Record, findings_json, outcome_json
from ganger.simulation.metrics.occupancy import Occupancy
from ganger.simulation.metrics.time_series import INTERVALS
from ganger.simulation.simulate import Outcome
from ganger.simulation.traces.trace import Finding

IN_FORCE: Final = "in force"
"""Name of the document that the log ends with."""


def run_log(arguments: argparse.Namespace, *readers: Callable[[Stamped], None]) -> tuple[Record, Outcome]:
    """Return the answer of `sim run --from-log`, and the run that it is of.

    RequestError, UnreadableTrace, InvalidArgument: the log, the nodes or the document cannot be used.
    """
    days = read_days(arguments.from_log, since_ms=arguments.since_ms)
    nodes = nodes_from_arguments_or_log(arguments, days)
    document, policy = _document(arguments, days, nodes)
    occupancy, recorded_occupancy = occupancy_of_days(days, nodes), occupancy_of_days(days, days.nodes)
    outcome = simulate_log(log_run_from(arguments, days, nodes, document), occupancy.fold, *readers)
    recorded_days = read_days(arguments.from_log, recorded_occupancy.fold, since_ms=arguments.since_ms)
    recorded = as_recorded(recorded_days, prices_from(arguments.price, days.nodes))
    answer = {
        **log_source_json(days, nodes, outcome.findings),
        "policy": policy,
        **cluster_json(nodes),
        **outcome_json(outcome, occupancy),
        "recorded": outcome_json(recorded, recorded_occupancy),
    }
    return answer, outcome


def log_source_json(days: RecordedDays, nodes: Sequence[Node], findings: tuple[Finding, ...]) -> Record:
    """Return the log, what is simulated otherwise than recorded, and how many of the nodes are up at a time at most.

    The nodes are the recorded ones, all that the log ever had, or others, which are always up.
    """
    return {
        "trace": days.path,
        "format": "ganger_log",
        "rows": days.rows,
        "most_nodes_up": _most_nodes_up(days) if nodes is days.nodes else len(nodes),
        "findings": findings_json(findings),
    }


def _most_nodes_up(days: RecordedDays) -> int:
    changes = Counter({0: len(days.nodes)})
    for fault in days.faults:
        changes[fault.start_ms] -= 1
        changes[fault.end_ms] += 1
    # After the last row all nodes are up again, since a log does not say which of them will ever return.
    return max(accumulate(changes[at_ms] for at_ms in sorted(changes) if at_ms <= days.end_ms))


def occupancy_of_days(days: RecordedDays, nodes: Sequence[Node]) -> Occupancy:
    """Return a reader of rows that samples the nodes as often as a picture can show."""
    return Occupancy(nodes, days.end_ms // INTERVALS)


def nodes_from_arguments_or_log(arguments: argparse.Namespace, days: RecordedDays) -> tuple[Node, ...]:
    """Return the recorded nodes, unless arguments name others."""
    return days.nodes if arguments.cluster is None and arguments.nodes is None else nodes_from(arguments)


def log_run_from(
    arguments: argparse.Namespace, days: RecordedDays, nodes: tuple[Node, ...], document: PolicyDocument
) -> LogRun:
    """Return the run of the days under a document."""
    return LogRun(
        days=days,
        nodes=nodes,
        document=document,
        order=registry.order,
        start_ms=arguments.start_ms,
        checkpoint_ms=arguments.checkpoint_ms,
        prices=prices_from(arguments.price, nodes),
    )


def _document(arguments: argparse.Namespace, days: RecordedDays, nodes: tuple[Node, ...]) -> tuple[PolicyDocument, str]:
    """Return the document of the run, and its name in the answer."""
    if arguments.document:
        (path,) = arguments.document
        document = read_document(path, nodes)
        return document, f"{path}, {_difference(days.document, document)}"
    if arguments.policy is None:
        return days.document, IN_FORCE
    return with_policy(days.document, arguments.policy), arguments.policy


def _difference(before: PolicyDocument, after: PolicyDocument) -> str:
    count = len(changes(before, after))
    return f"{count} {'change' if count == 1 else 'changes'} from the one {IN_FORCE}"
