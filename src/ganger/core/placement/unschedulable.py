"""Why the nodes have no place for a gang: of what there are too few, in which domain, and who holds the rest.

Called by `core.placement.start_check` once placing has failed, and by `core.explain.explain`. A number comes before a
level: that a gang needs one rack matters once there are enough nodes in all."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import EVERY
from ganger.core.nodes.node_arrays import picks_devices
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.placement.topology_packing import most
from ganger.core.state.state import State
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, Layout, Selector, Slices
from ganger.model.units import format_bytes

Mask = NDArray[np.bool_]
Amounts = NDArray[np.integer[Any]]

MAX_HOLDERS: Final = 8
"""Gangs named in a reason; more would not be read."""
NOWHERE: Ints = np.zeros(0, dtype=np.int64)


class Tally(NamedTuple):
    """What a part needs and what there is: of nodes in all, of slices in all, or of either in one domain of `level`."""

    need: int
    have: int
    level: str = ""
    slices: Slices = Slices()


def no_room(state: State, shape: Shape, now_ms: int, stays_ms: int) -> PendingReason:
    """Why the nodes have no place for it: too few could ever hold it, or others hold them, or are to be maintained
    before it would end."""
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
            return replace(_reason(ReasonCode.EXCLUDED, ever[binds], node_need(part)), excluded=excluded)
        return _reason(ReasonCode.NO_NODE, ever[binds], _scarce(nodes, part, nodes.ready, free=False))
    return replace(
        _now_short(state, (part, choice, shape.layout), ever, stays_ms),
        holders=tuple(islice(_holders(state, choice, able, now_ms), MAX_HOLDERS)),
        excluded=excluded,
        foreign=0 if nodes.foreign is None or not choice.has_gpus else int(nodes.foreign[able].sum()),
    )


def _now_short(state: State, told: tuple[Shape, Shape, Layout], ever: list[Tally], stays_ms: int) -> PendingReason:
    """Of what there is too little now, for as long as the gang stays, and how much of it maintenance takes away.
    `told`: a part, which of what it may be is counted, and its layout; `ever`: what there would be if nothing else
    ran."""
    nodes, windows, (part, choice, layout) = state.nodes, state.windows, told
    times = nodes.times(choice) if nodes.barred.any() or nodes.kept else nodes.columns.of(choice).times
    free = stays = _tallies(nodes, choice, layout, times)
    away = windows.away(nodes, stays_ms) if windows else NOWHERE
    if away.size:
        times = times.copy()
        times[away] = 0
        stays = _tallies(nodes, choice, layout, times)
    binds = _binding(stays)
    gone = free[binds].have - stays[binds].have
    names = {nodes.names[at]: None for at in away.tolist()} if gone else {}
    met = windows.meeting(names, windows.now_ms, windows.now_ms + stays_ms) if gone else []
    among = nodes.ready & ~nodes.held & ~nodes.barred
    among[away] = False
    scarce = _scarce(nodes, part, among, free=True)
    ids = tuple(window.id for window in met)
    short = _reason(ReasonCode.NO_CAPACITY, stays[binds], scarce)
    return replace(short, limit=ever[binds].have, away=gone, windows=ids)


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


# -- who holds it -----------------------------------------------------------------------------------------------------


class InTheWay:
    """Where others keep one node of a part from a place: for each resource the nodes that have too little left of it,
    and those whose guests are in the way whatever they hold."""

    def __init__(self, nodes: NodeTable, part: Shape, able: Mask) -> None:
        """Of the nodes `able` to hold it if nothing else ran."""
        whole = nodes.capacities(part, able)
        needs = (part.gpus, part.cpu_milli, part.memory_bytes)
        has: tuple[Amounts, ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
        self._short = [
            _less(part, need, amount, whole) if need else None for need, amount in zip(needs, has, strict=True)
        ]
        if picks_devices(part):
            self._short[0] = nodes.devices.counts(part, EVERY) < whole
        self._taken: Mask = able & (nodes.alone > 0 if part.selector.sharing == SHARED else nodes.guests > 0)

    @property
    def anywhere(self) -> Mask:
        """(N,) nodes on which something is short."""
        found: Mask = np.logical_or.reduce([self._taken, *(short for short in self._short if short is not None)])
        return found

    def at(self, state: State, gang: str) -> Ints:
        """Nodes, by index, on which a gang holds some of what is short there."""
        found: list[Ints] = [NOWHERE]
        for part, _, at in state.shares.rows(gang):
            bars = self._taken[at]
            for short, amount in zip(self._short, (part.devices, part.cpu_milli, part.memory_bytes), strict=True):
                bars = bars | short[at] if short is not None and amount else bars
            found.append(at[bars])
        return np.concatenate(found)


def _less(part: Shape, need: int, amount: Amounts, whole: Ints) -> Mask:
    """(N,) where there is less left than for as many as a node would hold."""
    # To divide takes ten times as long as to compare.
    found: Mask = amount // need < whole if part.stacked else (amount < need) & (whole > 0)
    return found


def _holders(state: State, part: Shape, able: Mask, now_ms: int) -> Iterator[str]:
    """Who holds what is short of the nodes `able` to hold a part, the first to end first."""
    there = InTheWay(state.nodes, part, able)
    return (gang.id for gang, _ in state.by_end(now_ms) if there.at(state, gang.id).size)


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
    """What must be enough, one after the other: nodes; slices, the smallest first; the largest of them, or nodes where
    there are none, in one domain."""
    tallies = [Tally(part.nodes, int(times.sum()))]
    tallies += [
        Tally(part.nodes // each.nodes, most(nodes, times, (Layout(), each)), slices=each)
        for each in reversed(part.slices.layers)
        if each.nodes > 1
    ]
    if layout.required:
        slices = part.slices if part.slices.nodes > 1 else Slices()
        best = most(nodes, times, (layout, part.slices))
        tallies.append(Tally(part.nodes // part.slices.nodes, best, layout.level, slices))
    return tallies


def _short(tallies: list[Tally]) -> bool:
    return any(tally.have < tally.need for tally in tallies)


def _binding(tallies: list[Tally]) -> int:
    """Which is the first that is not enough, or else the last."""
    return next((at for at, tally in enumerate(tallies) if tally.have < tally.need), len(tallies) - 1)


def _reason(why: ReasonCode, tally: Tally, scope: str) -> PendingReason:
    return PendingReason(
        why=why,
        resource="nodes",
        need=tally.need,
        have=tally.have,
        scope=scope,
        level=tally.level,
        slices=tally.slices,
    )


# -- in words ---------------------------------------------------------------------------------------------------------


def _scarce(nodes: NodeTable, part: Shape, among: Mask, *, free: bool) -> str:
    """The part of a node's need that too few nodes `among` have, in words: which nodes it may have, its GPUs, or else
    all amounts that are short. `free`: what is there now, else what there would be if nothing else ran."""
    meant = among & np.logical_or.reduce([nodes.meant(choice.selector) for choice in part.choices])
    if free and part.selector.sharing != SHARED:
        meant = meant & nodes.empty()
    if int(meant.sum()) < part.nodes and (terms := ", ".join(_terms(part.selector, nodes, free=free))):
        return terms
    shell_quoted_id = np.logical_or.reduce([nodes.of_type(choice.gpu_type) for choice in part.choices])
    has: tuple[Amounts, ...] = (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes)
    if free:
        has = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
    each = (part.gpus, part.cpu_milli, part.memory_bytes)
    if picks_devices(part):
        has = (nodes.devices.counts(part, EVERY) if free else nodes.devices.most(part), *has[1:])
        each = (1, *each[1:])
    masks = (meant & shell_quoted_id, meant, meant)
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
    if selector.required:
        yield f"label {' or '.join(map(str, selector.required))}"
    if selector.networks:
        yield f"network {' or '.join(selector.networks)}"
    if nodes is not None:
        taints = dict.fromkeys(taint for node in nodes.nodes for taint in node.taints if not selector.tolerates(taint))
        yield from (f"no taint {taint}" for taint in sorted(taints)[:3])
    if free and selector.sharing != SHARED:
        yield "no other job"
