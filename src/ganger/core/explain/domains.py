"""What each domain of the network has for a gang that waits, and who holds the rest: lines of an explanation.

Called by `core.explain.explain`. The level is the one that the gang must stay in, else the lowest there is. Of many
domains those are told of that have the most room for it."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints, up
from ganger.core.placement.start_check import ask
from ganger.core.placement.unschedulable import InTheWay, Mask, fitting, hardest, large_enough, node_need
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.shape import Shape
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
    of_node = np.searchsorted(first, np.arange(len(able)), side="right") - 1
    holders = _holders(state, part, np.isin(of_node, shown) & able, of_node, now_ms)
    for domain in shown.tolist():
        here = np.flatnonzero(able[first[domain] : first[domain + 1]]) + int(first[domain])
        parts = [f"{room[domain]} of {size[domain]} nodes have {node_need(part)}"]
        parts += holders.get(domain, [])[:MAX_NAMED] + _away(nodes, gang, here)[:MAX_NAMED]
        parts += _maintained(state, gang, here, now_ms)
        yield f"{nodes.topology.name(depth, domain)}: " + "; ".join(parts)
    if rest := useful.size - shown.size:
        most = int(np.delete(room, shown).max())
        yield f"and {rest} more with at most {most} such nodes each"


def _depth(nodes: NodeTable, layout: Layout) -> int:
    levels = nodes.topology.levels
    return nodes.topology.depth(layout.level) if layout.required and layout.level in levels else len(levels)


def _holders(state: State, part: Shape, able: Mask, of_node: Ints, now_ms: int) -> dict[int, list[str]]:
    """Who holds what is short of these nodes, by domain, the oldest first."""
    nodes, there = state.nodes, InTheWay(state.nodes, part, able)
    taken = np.flatnonzero(there.anywhere)
    found: dict[int, list[str]] = {domain: [] for domain in of_node[taken].tolist()}
    for other in state.on_nodes(nodes.names[at] for at in taken.tolist()):
        for domain in dict.fromkeys(of_node[there.at(state, other.id)].tolist()):
            ends_ms = other.ends_ms(now_ms)
            how = "predicted to end in" if other.is_predicted else "ends in at most"
            until = "no time limit" if ends_ms is None else f"{how} {format_duration(ends_ms - now_ms)}"
            found[domain].append(f"{other.id} ({until})")
        if all(len(names) >= MAX_NAMED for names in found.values()):
            break
    return found


def _maintained(state: State, gang: Gang, here: Ints, now_ms: int) -> Iterator[str]:
    """Nodes of use that are in maintenance before the gang would end."""
    nodes, windows = state.nodes, state.windows
    names = [nodes.names[at] for at in here.tolist()] if windows else []
    for window in windows.meeting(names, now_ms, now_ms + ask(gang).stays_ms)[:MAX_NAMED]:
        count = int(np.isin(here, windows.at(nodes, window)).sum())
        if window.from_ms > now_ms:
            go = "goes" if count == 1 else "go"
            yield f"{count} of them {go} into maintenance {window.id} in {format_duration(window.from_ms - now_ms)}"
        else:
            are, left = "is" if count == 1 else "are", format_duration(window.until_ms - now_ms)
            yield f"{count} of them {are} in maintenance {window.id} for {left} more"


def _away(nodes: NodeTable, gang: Gang, here: Ints) -> list[str]:
    """Nodes of use but that its rules exclude, or that are out of service."""
    rules = dict(gang.excluded)
    named = [(nodes.names[at], at) for at in here.tolist() if not nodes.ready[at] or nodes.names[at] in rules]
    away = [f"{name} is excluded by retry.rules[{rules[name]}]" for name, _ in named if name in rules]
    return away + [f"{name} is {nodes.shown_state(at)}" for name, at in named if not nodes.ready[at]]
