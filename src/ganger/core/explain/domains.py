"""The domains of an explanation: what each has free for a waiting gang, and who holds the rest.

The level is the one that the gang must stay in, else the lowest there is. If there are many domains, those with the
most room for it are shown.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints, slice_sums
from ganger.core.placement.blockers import Blockers, Mask
from ganger.core.placement.restrictions import describe_node_need
from ganger.core.placement.start_check import start_request
from ganger.core.placement.unschedulable import fitting, large_enough, limiting_part
from ganger.core.state.gang import LEAVING, Gang
from ganger.core.state.state import State
from ganger.model.shape import Shape
from ganger.model.terms import Layout
from ganger.model.units import format_duration

MAX_DOMAINS: Final = 12
MAX_NAMED: Final = 4
_FULL: Final = ("",) * MAX_NAMED


def domain_lines(state: State, gang: Gang, now_ms: int) -> Iterator[str]:
    """Iterate over a line for each domain: free nodes, holders with the latest end of each, unavailable nodes."""
    nodes = state.nodes
    with nodes.excluding(gang.avoids):
        part = limiting_part(nodes, gang.shape)
        fits, able = fitting(nodes, part), large_enough(nodes, part)
    depth = _depth(nodes, gang.shape.layout)
    first = nodes.topology.first_node[depth]
    room, size = (slice_sums(mask.astype(np.int64), first) for mask in (fits, able))
    useful = np.flatnonzero(size)
    shown = np.sort(useful[np.argsort(-room[useful], kind="stable")][:MAX_DOMAINS])
    of_node = np.searchsorted(first, np.arange(len(able)), side="right") - 1
    holders = _holder_lines(state, part, np.isin(of_node, shown) & able, of_node, now_ms)
    for domain in shown.tolist():
        indices = np.flatnonzero(able[first[domain] : first[domain + 1]]) + int(first[domain])
        parts = [f"{room[domain]} of {size[domain]} nodes have {describe_node_need(part)}"]
        parts += holders.get(domain, [])[:MAX_NAMED] + _unavailable_lines(state, gang, indices)[:MAX_NAMED]
        parts += _maintenance_lines(state, gang, indices, now_ms)
        yield f"{nodes.topology.name(depth, domain)}: " + "; ".join(parts)
    if rest := useful.size - shown.size:
        max_room = int(np.delete(room, shown).max())
        yield f"and {rest} more with at most {max_room} such nodes each"


def _depth(nodes: NodeTable, layout: Layout) -> int:
    levels = nodes.topology.levels
    return nodes.topology.depth(layout.level) if layout.required and layout.level in levels else len(levels)


def _holder_lines(state: State, part: Shape, able: Mask, of_node: Ints, now_ms: int) -> dict[int, list[str]]:
    """Return the holders of what is short on these nodes by domain, oldest first."""
    nodes, blockers = state.nodes, Blockers(state.nodes, part, able)
    blocked = np.flatnonzero(blockers.anywhere)
    lines: dict[int, list[str]] = {domain: [] for domain in of_node[blocked].tolist()}
    for holder in state.on_nodes(nodes.attributes.names[index] for index in blocked.tolist()):
        own_domains = dict.fromkeys(int(of_node[nodes.index[share.node]]) for share in state.allocations[holder.id])
        if all(len(lines.get(domain, _FULL)) >= MAX_NAMED for domain in own_domains):
            continue
        for domain in dict.fromkeys(of_node[blockers.blocked_by(state, holder.id)].tolist()):
            lines[domain].append(f"{holder.id} ({_until(holder, now_ms)})")
        if all(len(names) >= MAX_NAMED for names in lines.values()):
            break
    return lines


def _until(holder: Gang, now_ms: int) -> str:
    """Return until when a gang holds its nodes."""
    if holder.state in LEAVING:
        notice_ms = holder.attempt.notice_until_ms - now_ms
        return f"is being stopped, {format_duration(notice_ms)} of notice left" if notice_ms > 0 else "is being stopped"
    ends_ms = holder.ends_ms(now_ms)
    verb = "predicted to end in" if holder.is_predicted else "ends in at most"
    return "no time limit" if ends_ms is None else f"{verb} {format_duration(ends_ms - now_ms)}"


def _maintenance_lines(state: State, gang: Gang, indices: Ints, now_ms: int) -> Iterator[str]:
    """Iterate over lines about useful nodes that go into maintenance before the gang would end."""
    nodes, windows = state.nodes, state.maintenance
    names = [nodes.attributes.names[index] for index in indices.tolist()] if windows else []
    for window in windows.overlapping(names, now_ms, now_ms + start_request(gang).stays_ms)[:MAX_NAMED]:
        count = int(np.isin(indices, windows.nodes_of(nodes, window)).sum())
        if window.from_ms > now_ms:
            verb = "goes" if count == 1 else "go"
            yield f"{count} of them {verb} into maintenance {window.id} in {format_duration(window.from_ms - now_ms)}"
        else:
            verb, left = "is" if count == 1 else "are", format_duration(window.until_ms - now_ms)
            yield f"{count} of them {verb} in maintenance {window.id} for {left} more"


def _unavailable_lines(state: State, gang: Gang, indices: Ints) -> list[str]:
    """Return lines about nodes that are excluded by the gang's rules, out of service, or about to be taken away."""
    nodes, rules = state.nodes, dict(gang.retries.excluded)
    named = [
        (nodes.attributes.names[index], index)
        for index in indices.tolist()
        if not nodes.ready[index] or nodes.attributes.names[index] in rules
    ]
    lines = [f"{name} is excluded by retry.rules[{rules[name]}]" for name, _ in named if name in rules]
    return lines + [
        f"{name} is {'preempted' if name in state.health.leaving else nodes.display_state(index)}"
        for name, index in named
        if not nodes.ready[index]
    ]
