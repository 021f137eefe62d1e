"""Why the nodes have no place for a gang: of what there are too few, in which domain, and who holds the rest.

Called by `core.fit` once placing has failed, and by `core.explain`. A number comes before a level: that a gang needs
one rack matters once there are enough nodes in all.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.devices import EVERY
from ganger.core.layout import most
from ganger.core.nodes import NodeTable, picks_devices
from ganger.core.state import State
from ganger.core.topology import Ints
from ganger.model.reason import Reason, Why
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, Layout, Selector, Slices
from ganger.model.units import format_bytes

Mask = NDArray[np.bool_]
Amounts = NDArray[np.integer[Any]]

MAX_HOLDERS = 8
"""Gangs named in a reason; more would not be read."""


class Tally(NamedTuple):
    """What a part needs and what there is: of nodes in all, of slices in all, or of either in one domain of `level`."""

    need: int
    have: int
    level: str = ""
    slices: Slices = Slices()


def no_room(state: State, shape: Shape, now_ms: int) -> Reason:
    """Why the nodes have no place for it: too few could ever hold it, or others hold them."""
    nodes = state.nodes
    part = hardest(nodes, shape)
    choice = _choice(nodes, part, shape.layout)
    able, large_enough = nodes.able(choice) & nodes.ready, nodes.large_enough(choice) & nodes.ready
    excluded = tuple(nodes.nodes[at].name for at in np.flatnonzero(large_enough & nodes.barred))
    ever = _tallies(nodes, part, shape.layout, nodes.capacities(choice, able))
    binds = _binding(ever)
    if ever[binds].have < ever[binds].need:
        without = _tallies(nodes, part, shape.layout, nodes.capacities(choice, large_enough))
        if all(tally.have >= tally.need for tally in without):
            return replace(_reason(Why.EXCLUDED, ever[binds], node_need(part)), excluded=excluded)
        return _reason(Why.NO_NODE, ever[binds], _scarce(nodes, part, nodes.ready, free=False))
    now = _tallies(nodes, part, shape.layout, nodes.times(choice))
    binds = _binding(now)
    there = (gang.id for gang, shares in state.by_end(now_ms) if any(able[nodes.index[s.node]] for s in shares))
    return replace(
        _reason(
            Why.NO_CAPACITY, now[binds], _scarce(nodes, part, nodes.ready & ~nodes.held & ~nodes.barred, free=True)
        ),
        limit=ever[binds].have,
        holders=tuple(islice(there, MAX_HOLDERS)),
        excluded=excluded,
    )


def hardest(nodes: NodeTable, shape: Shape) -> Shape:
    """The part that even alone has no room, the one that never has before others; else the last: the parts are in each
    other's way."""
    if not shape.more:
        return shape
    parts = shape.parts
    never = [part for part in parts if _short(_ever(nodes, part, shape.layout))]
    return (never or [part for part in parts if _short(_now(nodes, part, shape.layout))] or parts[-1:])[0]


def fitting(nodes: NodeTable, part: Shape) -> Mask:
    """(N,) nodes that can take one of the part's nodes now, of whichever type it may be."""
    mask: Mask = np.logical_or.reduce([nodes.fitting(choice) for choice in part.choices])
    return mask


def large_enough(nodes: NodeTable, part: Shape) -> Mask:
    """(N,) nodes that could hold one of them if nothing else ran, also such as the gang must not have."""
    mask: Mask = np.logical_or.reduce([nodes.large_enough(choice) for choice in part.choices])
    return mask


# -- counting ---------------------------------------------------------------------------------------------------------


def _choice(nodes: NodeTable, part: Shape, layout: Layout) -> Shape:
    """What the part is told about: of what it may be, that which could ever hold it and has the most room now."""

    def room(choice: Shape) -> tuple[bool, int, int]:
        ever, now = _ever(nodes, choice, layout), _now(nodes, choice, layout)
        return not _short(ever), now[-1].have, ever[-1].have

    return max(part.choices, key=room) if len(part.choices) > 1 else part


def _ever(nodes: NodeTable, choice: Shape, layout: Layout) -> list[Tally]:
    return _tallies(nodes, choice, layout, nodes.capacities(choice, nodes.able(choice) & nodes.ready))


def _now(nodes: NodeTable, choice: Shape, layout: Layout) -> list[Tally]:
    return _tallies(nodes, choice, layout, nodes.times(choice))


def _tallies(nodes: NodeTable, part: Shape, layout: Layout, times: Ints) -> list[Tally]:
    """What must be enough, one after the other: nodes, slices, and either in one domain."""
    tallies = [Tally(part.nodes, int(times.sum()))]
    grouped = part.slices.nodes > 1
    if not grouped and not layout.required:
        return tallies
    best, every = most(nodes, times, (layout, part.slices))
    count, slices = part.nodes // part.slices.nodes, part.slices if grouped else Slices()
    tallies += [Tally(count, every, slices=slices)] if grouped else []
    return tallies + ([Tally(count, best, layout.level, slices)] if layout.required else [])


def _short(tallies: list[Tally]) -> bool:
    return any(tally.have < tally.need for tally in tallies)


def _binding(tallies: list[Tally]) -> int:
    """Which is the first that is not enough, or else the last."""
    return next((at for at, tally in enumerate(tallies) if tally.have < tally.need), len(tallies) - 1)


def _reason(why: Why, tally: Tally, scope: str) -> Reason:
    return Reason(
        why=why,
        resource="nodes",
        need=tally.need,
        have=tally.have,
        scope=scope,
        level=tally.level,
        slice_level=tally.slices.level,
        slice_nodes=tally.slices.nodes,
    )


# -- in words ---------------------------------------------------------------------------------------------------------


def _scarce(nodes: NodeTable, part: Shape, among: Mask, *, free: bool) -> str:
    """The part of a node's need that too few nodes `among` have, in words: which nodes it may have, its GPUs, or else
    all amounts that are short. `free`: what is there now, else what there would be if nothing else ran."""
    meant = among & np.logical_or.reduce([nodes.meant(choice.selector) for choice in part.choices])
    if free and part.selector.sharing != SHARED:
        meant = meant & (nodes.guests == 0)
    if int(meant.sum()) < part.nodes and (terms := ", ".join(_terms(part.selector, nodes, free=free))):
        return terms
    typed = np.logical_or.reduce([nodes.of_type(choice.gpu_type) for choice in part.choices])
    has: tuple[Amounts, ...] = (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes)
    if free:
        has = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
    each = (part.gpus, part.cpu_milli, part.memory_bytes)
    if picks_devices(part):
        has = (nodes.devices.counts(part, EVERY) if free else nodes.devices.most(part), *has[1:])
        each = (1, *each[1:])
    masks = (meant & typed, meant, meant)
    short = [r for r in range(len(each)) if each[r] and (masks[r] & (has[r] >= each[r])).sum() < part.nodes]
    if not short:
        return node_need(part)
    parts = short[:1] if short[0] == 0 else short
    if 0 in parts:
        return _gpus(part)
    cpu_milli, memory_bytes = (amount if r in parts else 0 for r, amount in enumerate(each[1:], start=1))
    return _amounts(replace(part, cpu_milli=cpu_milli, memory_bytes=memory_bytes), gpus=False)


def node_need(part: Shape) -> str:
    """What each node must have, in words: `8 free h100 GPUs, 8 free CPUs, 64Gi free memory, label zone=a`."""
    return ", ".join(filter(None, (_amounts(part), *_terms(part.selector, None, free=True))))


def _gpus(part: Shape) -> str:
    """`8 free h100 GPUs`, `0.5/10Gi free of one h100 GPU`; nothing for none; with the indices that it must have."""
    kinds = " or ".join(filter(None, (part.gpu_type, *part.other_types)))
    kind = f" {kinds}" if kinds else ""
    which = f" of {', '.join(f'#{index}' for index in part.selector.devices)}" if part.selector.devices else ""
    if part.has_share:
        return f"{part.share} free of one{kind} GPU{which}"
    return f"{part.gpus} free{kind} GPU{'s' if part.gpus > 1 else ''}{which}" if part.gpus else ""


def _amounts(part: Shape, *, gpus: bool = True) -> str:
    parts = [_gpus(part)] if gpus and part.has_gpus else []
    parts += [f"{part.cpu_milli / 1000:g} free CPU{'s' if part.cpu_milli > 1000 else ''}"] if part.cpu_milli else []
    parts += [f"{format_bytes(part.memory_bytes)} free memory"] if part.memory_bytes else []
    return ", ".join(parts)


def _terms(selector: Selector, nodes: NodeTable | None, *, free: bool) -> Iterator[str]:
    """Which nodes it may have; with the taints that keep it away, where `nodes` are known."""
    if selector.nodes:
        yield f"name {' or '.join(selector.nodes)}"
    yield from (f"label {key}={value}" for key, value in selector.labels)
    if selector.networks:
        yield f"network {' or '.join(selector.networks)}"
    if nodes is not None:
        taints = dict.fromkeys(taint for node in nodes.nodes for taint in node.taints if not selector.tolerates(taint))
        yield from (f"no taint {taint}" for taint in sorted(taints)[:3])
    if free and selector.sharing != SHARED:
        yield "no other job"
