"""Days of a server's own log beside each other: as recorded, under the policy in force, and under other documents.

Called by `simulation.compare.compare` for `ganger sim compare --from-log`; each run is a process of its own.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ganger.model.cluster import Node
from ganger.simulation.arguments.policy_arguments import read_document
from ganger.simulation.arguments.price_arguments import prices_of
from ganger.simulation.compare.contender import Progress, pictured
from ganger.simulation.from_log.days import PRESENT, asked_again, looks_at, nodes_there, with_order
from ganger.simulation.from_log.recorded_days import Past, read_past
from ganger.simulation.from_log.replay_days import Again, Prices, as_recorded, live_again
from ganger.simulation.process_pool import Tell
from ganger.simulation.result import Record

RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnContender:
    """What is run; without `again` the log itself is looked at."""

    name: str
    past: Past
    again: Again | None = None
    prices: Prices | None = None
    since_ms: int | None = None


def own_contenders(
    arguments: argparse.Namespace, policies: Sequence[str]
) -> tuple[tuple[Node, ...], list[OwnContender]]:
    """The nodes, and what is to be compared on them. Refused, Unreadable, Unaskable: as the readers say."""
    past = read_past(arguments.from_log, since_ms=arguments.since_ms)
    nodes = nodes_there(arguments, past)
    named = {PRESENT: past.document}
    named |= {policy: with_order(past.document, policy) for policy in policies}
    named |= {str(path): read_document(path, nodes) for path in arguments.document}
    runs = [
        OwnContender(name=name, past=past, again=asked_again(arguments, past, nodes, document))
        for name, document in named.items()
    ]
    prices = prices_of(arguments.price, past.nodes)
    recorded = OwnContender(name=RECORDED, past=past, prices=prices, since_ms=arguments.since_ms)
    return nodes, [recorded, *runs]


def own_compared(contender: OwnContender, tell: Tell) -> Record:
    """How it went, as `simulation.compare.contender` tells of a trace."""
    past, again = contender.past, contender.again
    occupancy = looks_at(past, past.nodes if again is None else again.nodes)
    if again is None:
        outcome = as_recorded(
            read_past(Path(past.place), occupancy.take, since_ms=contender.since_ms), contender.prices
        )
    else:
        outcome = live_again(again, occupancy.take, Progress(past.rows, tell).take)
    return pictured({"policy": contender.name, "seed": None, "name": contender.name}, outcome, occupancy)
