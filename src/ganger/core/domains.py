"""What each domain of the network has for a gang that waits, and who holds the rest: lines of an explanation.

Called by `core.explain`. The level is the one that the gang must stay in, else the lowest there is. Of many domains
those are told of that have the most room for it.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ganger.core.gang import Gang
from ganger.core.nodes import NodeTable
from ganger.core.shortage import Mask, fitting, hardest, large_enough, node_need
from ganger.core.state import State
from ganger.core.topology import Ints, up
from ganger.model.terms import Layout
from ganger.model.units import format_duration

MAX_DOMAINS: Final = 12
MAX_NAMED: Final = 4


def domain_lines(state: State, gang: Gang, now_ms: int) -> Iterator[str]:
    """One line a domain: what fits there now, who holds the rest, with the end of each by its limit, and what is no use
    to it."""
    nodes = state.nodes
    with nodes.without(gang.avoids):
        part = hardest(nodes, gang.shape)
        fits, able = fitting(nodes, part), large_enough(nodes, part)
    depth = _depth(nodes, gang.shape.layout)
    first = nodes.topology.first_node[depth]
    room, size = (up(mask.astype(np.int64), first) for mask in (fits, able))
    useful = np.flatnonzero(size)
    shown = np.sort(useful[np.argsort(-room[useful], kind="stable")][:MAX_DOMAINS])
    holders = _holders(state, shown, np.searchsorted(first, np.arange(len(able)), side="right") - 1, able, now_ms)
    for domain in shown.tolist():
        here = np.flatnonzero(able[first[domain] : first[domain + 1]]) + int(first[domain])
        parts = [f"{room[domain]} of {size[domain]} nodes have {node_need(part)}"]
        parts += holders[domain][:MAX_NAMED] + _away(nodes, gang, here)[:MAX_NAMED]
        yield f"{nodes.topology.name(depth, domain)}: " + "; ".join(parts)
    if rest := useful.size - shown.size:
        most = int(np.delete(room, shown).max())
        yield f"and {rest} more with at most {most} such nodes each"


def _depth(nodes: NodeTable, layout: Layout) -> int:
    levels = nodes.topology.levels
    return nodes.topology.depth(layout.level) if layout.required and layout.level in levels else len(levels)


def _holders(state: State, shown: Ints, domain_of: Ints, able: Mask, now_ms: int) -> dict[int, list[str]]:
    """Who holds something of the nodes that are of use in each of these domains, the oldest first."""
    found: dict[int, list[str]] = {domain: [] for domain in shown.tolist()}
    mine = np.isin(domain_of, shown) & able
    place = {state.nodes.names[at]: int(domain_of[at]) for at in np.flatnonzero(mine).tolist()}
    for other, shares in state.holding():
        for domain in dict.fromkeys(place[share.node] for share in shares if share.node in place):
            ends_ms = other.ends_ms(now_ms)
            until = "no time limit" if ends_ms is None else f"ends in at most {format_duration(ends_ms - now_ms)}"
            found[domain].append(f"{other.id} ({until})")
    return found


def _away(nodes: NodeTable, gang: Gang, here: Ints) -> list[str]:
    """Nodes of use but that its rules exclude, or that are out of service."""
    rules = dict(gang.excluded)
    named = [(nodes.names[at], at) for at in here.tolist() if not nodes.ready[at] or nodes.names[at] in rules]
    away = [f"{name} is excluded by retry.rules[{rules[name]}]" for name, _ in named if name in rules]
    return away + [f"{name} is {nodes.states[at]}" for name, at in named if not nodes.ready[at]]
