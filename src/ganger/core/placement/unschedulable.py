"""The reason why the nodes have no place for a gang: what there is too little of, in which domain, and who holds it.

Asked once placement has failed. A count comes before a level: that a gang needs a single rack matters once there are
enough nodes in all.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.devices import ALL
from ganger.core.nodes.node_arrays import picks_devices
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.placement.topology_packing import largest_domain_room
from ganger.core.state.state import State
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, Layout, Selector, Slices
from ganger.model.units import format_bytes

Mask = NDArray[np.bool_]
Amounts = NDArray[np.integer[Any]]

MAX_HOLDERS: Final = 8
"""The maximum number of gangs named in a reason."""
NOWHERE: Ints = np.zeros(0, dtype=np.int64)


class Tally(NamedTuple):
    """Nodes or slices that a part needs and that exist, in the cluster or in one domain of `level`."""

    need: int
    have: int
    level: str = ""
    slices: Slices = Slices()


def no_room(state: State, shape: Shape, now_ms: int, stays_ms: int) -> PendingReason:
    """Return the reason why the nodes have no place for the shape.

    Too few nodes could ever hold it, or other gangs hold them, or they go into maintenance before it would end.
    """
    nodes = state.nodes
    part = limiting_part(nodes, shape)
    choice = _reported_choice(nodes, part, shape.layout)
    able, large_enough = nodes.able(choice) & nodes.ready, nodes.large_enough(choice) & nodes.ready
    excluded = tuple(nodes.nodes[index].name for index in np.flatnonzero(large_enough & nodes.excluded))
    idle = _tallies(nodes, part, shape.layout, nodes.capacities(choice, able))
    binding = _binding_index(idle)
    if idle[binding].have < idle[binding].need:
        unrestricted = _tallies(nodes, part, shape.layout, nodes.capacities(choice, large_enough))
        if all(tally.have >= tally.need for tally in unrestricted):
            return replace(_reason(ReasonCode.EXCLUDED, idle[binding], describe_node_need(part)), excluded=excluded)
        return _reason(ReasonCode.NO_NODE, idle[binding], _scarce_resource(nodes, part, nodes.ready, free=False))
    return replace(
        _capacity_reason(state, (part, choice, shape.layout), idle, stays_ms),
        holders=tuple(islice(_holders(state, choice, able, now_ms), MAX_HOLDERS)),
        excluded=excluded,
        foreign=0 if nodes.foreign is None or not choice.has_gpus else int(nodes.foreign[able].sum()),
    )


def _capacity_reason(
    state: State, demand: tuple[Shape, Shape, Layout], idle: list[Tally], stays_ms: int
) -> PendingReason:
    """Return what there is too little of now, while the gang stays, and how much of that maintenance takes away.

    demand: the part, the choice that is counted, and the layout.
    idle: what there would be if nothing else ran.
    """
    nodes, windows, (part, choice, layout) = state.nodes, state.maintenance, demand
    counts = nodes.counts(choice) if nodes.excluded.any() or nodes.reserved else nodes.capacity_index.of(choice).counts
    free = stays = _tallies(nodes, choice, layout, counts)
    unavailable = windows.unavailable(nodes, stays_ms) if windows else NOWHERE
    if unavailable.size:
        counts = counts.copy()
        counts[unavailable] = 0
        stays = _tallies(nodes, choice, layout, counts)
    binding = _binding_index(stays)
    lost = free[binding].have - stays[binding].have
    names = {nodes.names[index]: None for index in unavailable.tolist()} if lost else {}
    overlapping = windows.overlapping(names, windows.now_ms, windows.now_ms + stays_ms) if lost else []
    among = nodes.ready & ~nodes.held & ~nodes.excluded
    among[unavailable] = False
    scarce = _scarce_resource(nodes, part, among, free=True)
    window_ids = tuple(window.id for window in overlapping)
    short = _reason(ReasonCode.NO_CAPACITY, stays[binding], scarce)
    return replace(short, limit=idle[binding].have, in_maintenance=lost, maintenances=window_ids)


def limiting_part(nodes: NodeTable, shape: Shape) -> Shape:
    """Return the part that has no room even alone, preferably one that never has; else the last part.

    The last part stands for a gang whose parts fit alone but not together.
    """
    if not shape.more:
        return shape
    parts = shape.parts
    impossible = [part for part in parts if _is_short_of(_idle_tallies(nodes, part, shape.layout))]
    return (
        impossible
        or [part for part in parts if _is_short_of(_current_tallies(nodes, part, shape.layout))]
        or parts[-1:]
    )[0]


def fitting(nodes: NodeTable, part: Shape) -> Mask:
    """Return (N,) nodes that can take one of the part's nodes now, of any type that it accepts."""
    mask: Mask = np.logical_or.reduce([nodes.fitting(choice) for choice in part.choices])
    return mask


def large_enough(nodes: NodeTable, part: Shape) -> Mask:
    """Return (N,) nodes that could hold one of the part's nodes if nothing else ran, also excluded ones."""
    mask: Mask = np.logical_or.reduce([nodes.large_enough(choice) for choice in part.choices])
    return mask


# -- holders ----------------------------------------------------------------------------------------------------------


class Blockers:
    """The nodes on which other gangs keep a part from a place.

    For each resource, the nodes that have too little of it left; and the nodes whose guests block it whatever they
    hold.
    """

    def __init__(self, nodes: NodeTable, part: Shape, able: Mask) -> None:
        """Compute the masks among the nodes `able` to hold it if nothing else ran."""
        whole = nodes.capacities(part, able)
        needs = (part.gpus, part.cpu_milli, part.memory_bytes)
        free: tuple[Amounts, ...] = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
        self._is_short_of = [
            _is_short(part, need, amount, whole) if need else None for need, amount in zip(needs, free, strict=True)
        ]
        if picks_devices(part):
            self._is_short_of[0] = nodes.devices.counts(part, ALL) < whole
        self._taken: Mask = able & (nodes.alone > 0 if part.selector.sharing == SHARED else nodes.guests > 0)

    @property
    def anywhere(self) -> Mask:
        """(N,) nodes on which something is short."""
        mask: Mask = np.logical_or.reduce([self._taken, *(short for short in self._is_short_of if short is not None)])
        return mask

    def blocked_by(self, state: State, gang: str) -> Ints:
        """Return the indices of the nodes on which a gang holds some of what is short there."""
        nodes: list[Ints] = [NOWHERE]
        for part, _, indices in state.allocations.by_part(gang):
            blocks = self._taken[indices]
            for short, amount in zip(self._is_short_of, (part.devices, part.cpu_milli, part.memory_bytes), strict=True):
                blocks = blocks | short[indices] if short is not None and amount else blocks
            nodes.append(indices[blocks])
        return np.concatenate(nodes)


def _is_short(part: Shape, need: int, amount: Amounts, whole: Ints) -> Mask:
    """Return (N,) nodes that have less left than for as many as they would hold idle."""
    # Dividing takes ten times as long as comparing, and unstacked parts need only a comparison.
    mask: Mask = amount // need < whole if part.stacked else (amount < need) & (whole > 0)
    return mask


def _holders(state: State, part: Shape, able: Mask, now_ms: int) -> Iterator[str]:
    """Iterate over the gangs that hold what is short on the nodes `able` to hold a part, the first to end first."""
    blockers = Blockers(state.nodes, part, able)
    return (gang.id for gang, _ in state.by_end(now_ms) if blockers.blocked_by(state, gang.id).size)


# -- counting ---------------------------------------------------------------------------------------------------------


def _reported_choice(nodes: NodeTable, part: Shape, layout: Layout) -> Shape:
    """Return the choice of a part that the reason is about: one that could ever fit, with the most room now."""

    def room(choice: Shape) -> tuple[bool, int, int]:
        idle, current = _idle_tallies(nodes, choice, layout), _current_tallies(nodes, choice, layout)
        return not _is_short_of(idle), current[-1].have, idle[-1].have

    return max(part.choices, key=room) if len(part.choices) > 1 else part


def _idle_tallies(nodes: NodeTable, choice: Shape, layout: Layout) -> list[Tally]:
    return _tallies(nodes, choice, layout, nodes.capacities(choice, nodes.able(choice) & nodes.ready))


def _current_tallies(nodes: NodeTable, choice: Shape, layout: Layout) -> list[Tally]:
    return _tallies(nodes, choice, layout, nodes.counts(choice))


def _tallies(nodes: NodeTable, part: Shape, layout: Layout, counts: Ints) -> list[Tally]:
    """Return what must be sufficient, in order: nodes; slices, smallest first; the largest unit in one domain."""
    tallies = [Tally(part.nodes, int(counts.sum()))]
    tallies += [
        Tally(part.nodes // layer.nodes, largest_domain_room(nodes, counts, (Layout(), layer)), slices=layer)
        for layer in reversed(part.slices.layers)
        if layer.nodes > 1
    ]
    if layout.required:
        slices = part.slices if part.slices.nodes > 1 else Slices()
        best = largest_domain_room(nodes, counts, (layout, part.slices))
        tallies.append(Tally(part.nodes // part.slices.nodes, best, layout.level, slices))
    return tallies


def _is_short_of(tallies: list[Tally]) -> bool:
    return any(tally.have < tally.need for tally in tallies)


def _binding_index(tallies: list[Tally]) -> int:
    """Return the index of the first insufficient tally, or else of the last."""
    return next((index for index, tally in enumerate(tallies) if tally.have < tally.need), len(tallies) - 1)


def _reason(code: ReasonCode, tally: Tally, scope: str) -> PendingReason:
    return PendingReason(
        code=code,
        resource="nodes",
        need=tally.need,
        have=tally.have,
        scope=scope,
        level=tally.level,
        slices=tally.slices,
    )


# -- texts ------------------------------------------------------------------------------------------------------------


def _scarce_resource(nodes: NodeTable, part: Shape, among: Mask, *, free: bool) -> str:
    """Describe what too few nodes `among` have: eligibility, GPUs, or else all amounts that are short.

    free: what is free now, else what there would be if nothing else ran.
    """
    eligible = among & np.logical_or.reduce([nodes.eligible(choice.selector) for choice in part.choices])
    if free and part.selector.sharing != SHARED:
        eligible = eligible & nodes.empty()
    if int(eligible.sum()) < part.nodes and (terms := ", ".join(_describe_terms(part.selector, nodes, free=free))):
        return terms
    has_type = np.logical_or.reduce([nodes.of_type(choice.gpu_type) for choice in part.choices])
    amounts: tuple[Amounts, ...] = (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes)
    if free:
        amounts = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
    needs = (part.gpus, part.cpu_milli, part.memory_bytes)
    if picks_devices(part):
        amounts = (nodes.devices.counts(part, ALL) if free else nodes.devices.capacity_when_idle(part), *amounts[1:])
        needs = (1, *needs[1:])
    masks = (eligible & has_type, eligible, eligible)
    short = [r for r in range(len(needs)) if needs[r] and (masks[r] & (amounts[r] >= needs[r])).sum() < part.nodes]
    if not short:
        return describe_node_need(part)
    parts = short[:1] if short[0] == 0 else short
    if 0 in parts:
        return _describe_gpus(part)
    cpu_milli, memory_bytes = (amount if r in parts else 0 for r, amount in enumerate(needs[1:], start=1))
    return _describe_amounts(replace(part, cpu_milli=cpu_milli, memory_bytes=memory_bytes), gpus=False)


def describe_node_need(part: Shape) -> str:
    """Describe what each node must have: `8 free h100 GPUs, 8 free CPUs, 64Gi free memory, label zone=a`."""
    return ", ".join(filter(None, (_describe_amounts(part), *_describe_terms(part.selector, None, free=True))))


def _describe_gpus(part: Shape) -> str:
    """Describe the GPUs: `8 free h100 GPUs`, `0.5/10Gi free of one h100 GPU`, with required indices; empty for none."""
    types = " or ".join(filter(None, (part.gpu_type, *part.other_types)))
    type_text = f" {types}" if types else ""
    indices_text = f" of {', '.join(f'#{index}' for index in part.selector.devices)}" if part.selector.devices else ""
    if part.has_share:
        return f"{part.share} free of one{type_text} GPU{indices_text}"
    return f"{part.gpus} free{type_text} GPU{'s' if part.gpus > 1 else ''}{indices_text}" if part.gpus else ""


def _describe_amounts(part: Shape, *, gpus: bool = True) -> str:
    parts = [_describe_gpus(part)] if gpus and part.has_gpus else []
    parts += [f"{part.cpu_milli / 1000:g} free CPU{'s' if part.cpu_milli > 1000 else ''}"] if part.cpu_milli else []
    parts += [f"{format_bytes(part.memory_bytes)} free memory"] if part.memory_bytes else []
    return ", ".join(parts)


def _describe_terms(selector: Selector, nodes: NodeTable | None, *, free: bool) -> Iterator[str]:
    """Iterate over the restrictions to certain nodes, with the taints that exclude nodes where `nodes` are known."""
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
