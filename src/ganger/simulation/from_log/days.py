"""`ganger sim run --from-log`: the days of a server's own log under a policy document, beside what was recorded.

Called by the errand `sim`.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ganger import registry
from ganger.engine.policy_doc.policy_text import changes
from ganger.model.cluster import Node
from ganger.model.event import Stamped
from ganger.model.policy import PolicyDocument
from ganger.simulation.arguments.node_arguments import nodes_of, size_of
from ganger.simulation.arguments.policy_arguments import read_document
from ganger.simulation.arguments.price_arguments import prices_of
from ganger.simulation.arguments.run_arguments import parts_of
from ganger.simulation.from_log.recorded_days import Past, read_past
from ganger.simulation.from_log.replay_days import Again, as_recorded, live_again
from ganger.simulation.metrics.occupancy import Occupancy
from ganger.simulation.metrics.time_series import STRETCHES
from ganger.simulation.result import Record, figures, flaws
from ganger.simulation.traces.trace import Finding

PRESENT: Final = "in force"
"""The document that the log ends with."""


def own_days(arguments: argparse.Namespace, *readers: Callable[[Stamped], None]) -> Record:
    """What `sim run` tells of them. Refused, Unreadable, Unaskable: as the readers say."""
    past = read_past(arguments.from_log, since_ms=arguments.since_ms)
    nodes = nodes_there(arguments, past)
    document, name = _document(arguments, past, nodes)
    again = asked_again(arguments, past, nodes, document)
    occupancy, recorded = looks_at(past, nodes), looks_at(past, past.nodes)
    outcome = live_again(again, occupancy.take, *readers)
    as_it_was = read_past(arguments.from_log, recorded.take, since_ms=arguments.since_ms)
    return {
        **own_source(past, outcome.findings),
        "policy": name,
        **size_of(nodes),
        **figures(outcome, occupancy),
        "recorded": figures(as_recorded(as_it_was, prices_of(arguments.price, past.nodes)), recorded),
    }


def own_source(past: Past, findings: tuple[Finding, ...]) -> Record:
    """Which log it is, and what of it is otherwise than it was."""
    return {"trace": past.place, "format": "ganger_log", "rows": past.rows, "findings": flaws(findings)}


def looks_at(past: Past, nodes: Sequence[Node]) -> Occupancy:
    """Who is told of every row of these days, on these nodes."""
    return Occupancy(nodes, past.end_ms // STRETCHES)


def nodes_there(arguments: argparse.Namespace, past: Past) -> tuple[Node, ...]:
    """Those that there were, where nobody names others."""
    return past.nodes if arguments.cluster is None and arguments.nodes is None else nodes_of(arguments)


def asked_again(arguments: argparse.Namespace, past: Past, nodes: tuple[Node, ...], document: PolicyDocument) -> Again:
    """The same days under that document."""
    return Again(
        past=past,
        nodes=nodes,
        document=document,
        order=registry.order,
        start_ms=arguments.start_ms,
        checkpoint_ms=arguments.checkpoint_ms,
        prices=prices_of(arguments.price, nodes),
    )


def _document(arguments: argparse.Namespace, past: Past, nodes: tuple[Node, ...]) -> tuple[PolicyDocument, str]:
    """Under which, and what it is called."""
    if arguments.document:
        (path,) = arguments.document
        document = read_document(path, nodes)
        return document, f"{path}, {_differs(past.document, document)}"
    if arguments.policy is None:
        return past.document, PRESENT
    return with_order(past.document, arguments.policy), arguments.policy


def with_order(document: PolicyDocument, policy: str) -> PolicyDocument:
    """The document with another order, or with that and a placement score. Unaskable: there is none of that name."""
    order, plus, score = policy.partition("+")
    parts_of(policy)
    shares = replace(document.gpu_shares, score=score) if plus else document.gpu_shares
    return replace(document, order=order, gpu_shares=shares)


def _differs(before: PolicyDocument, after: PolicyDocument) -> str:
    many = len(changes(before, after))
    return f"{many} {'change' if many == 1 else 'changes'} from the one {PRESENT}"
