"""The reason why the nodes have no place for a gang: what there is too little of, in which domain, and who holds it.

Asked once placement has failed. A count comes before a level: that a gang needs a single rack matters once there are
enough nodes in all.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from ganger.core.nodes.devices import ALL
from ganger.core.nodes.node_arrays import has_extended, picks_devices
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.topology import Ints
from ganger.core.placement.blockers import NOWHERE, Amounts, Mask, holders_of_missing
from ganger.core.placement.place import place
from ganger.core.placement.restrictions import (
    Restriction,
    describe_amounts,
    describe_extended,
    describe_gpus,
    describe_terms,
    name_list,
    node_needs,
    restrictions,
    unrestricted,
    with_selector,
)
from ganger.core.placement.topology_packing import largest_domain_room
from ganger.core.state.state import State
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, Layout, Selector, Slices

MAX_HOLDERS: Final = 8
"""The maximum number of gangs named in a reason."""


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
    able, large_enough = nodes.able(choice) & nodes.ready, nodes.capacity_index.large_enough(choice) & nodes.ready
    excluded = tuple(nodes.nodes[index].name for index in np.flatnonzero(large_enough & nodes.excluded))
    idle = _tallies(nodes, part, shape.layout, nodes.capacities(choice, able))
    binding, restricted = _binding_index(idle), _Restricted(state, shape, part, stays_ms)
    if idle[binding].have < idle[binding].need:
        unrestricted = _tallies(nodes, part, shape.layout, nodes.capacities(choice, large_enough))
        if all(tally.have >= tally.need for tally in unrestricted):
            scope = restricted.scope(node_needs(part), restricted.could_ever_have)
            return replace(_reason(ReasonCode.EXCLUDED, idle[binding], scope), excluded=excluded)
        scarce = _scarce_resources(nodes, part, nodes.ready, free=False)
        scope = restricted.scope(scarce, restricted.could_ever_have)
        return _reason(ReasonCode.NO_NODE, idle[binding], scope)
    foreign = nodes.occupancy.foreign if choice.has_gpus else None
    return replace(
        _capacity_reason(restricted, choice, idle),
        holders=tuple(islice(holders_of_missing(state, choice, able, now_ms), MAX_HOLDERS)),
        excluded=excluded,
        foreign=0 if foreign is None else int(foreign[able].sum()),
    )


def _capacity_reason(restricted: "_Restricted", choice: Shape, idle: list[Tally]) -> PendingReason:
    """Return what there is too little of now, while the gang stays, and how much of that maintenance takes away.

    choice: the choice of the part that is counted.
    idle: what there would be if nothing else ran.
    """
    state, part, layout = restricted.state, restricted.part, restricted.shape.layout
    nodes, windows, unavailable = state.nodes, state.maintenance, restricted.unavailable
    counts = nodes.counts(choice) if nodes.excluded.any() or nodes.reserved else nodes.capacity_index.of(choice).counts
    free = stays = _tallies(nodes, choice, layout, counts)
    if unavailable.size:
        counts = counts.copy()
        counts[unavailable] = 0
        stays = _tallies(nodes, choice, layout, counts)
    binding = _binding_index(stays)
    lost = free[binding].have - stays[binding].have
    names = {nodes.attributes.names[index]: None for index in unavailable.tolist()} if lost else {}
    overlapping = windows.overlapping(names, windows.now_ms, windows.now_ms + restricted.stays_ms) if lost else []
    among = nodes.ready & ~nodes.held & ~nodes.excluded
    among[unavailable] = False
    scarce = _scarce_resources(nodes, part, among, free=True)
    window_ids = tuple(window.id for window in overlapping)
    scope = restricted.scope(scarce, restricted.has_place_now)
    short = _reason(ReasonCode.NO_CAPACITY, stays[binding], scope)
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
    mask: Mask = np.logical_or.reduce([nodes.capacity_index.large_enough(choice) for choice in part.choices])
    return mask


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


# -- what is scarce ---------------------------------------------------------------------------------------------------


def _scarce_resources(nodes: NodeTable, part: Shape, among: Mask, *, free: bool) -> list[str]:
    """Describe what too few nodes `among` have: eligibility, GPUs, or else all amounts that are short.

    free: what is free now, else what there would be if nothing else ran.
    """
    eligible = among & np.logical_or.reduce([nodes.eligible(choice.selector) for choice in part.choices])
    if free and part.selector.sharing != SHARED:
        eligible = eligible & nodes.occupancy.empty()
    if int(eligible.sum()) < part.nodes and (terms := [*describe_terms(part.selector, nodes, free=free)]):
        return terms
    has_type = np.logical_or.reduce([nodes.attributes.accepts(choice) for choice in part.choices])
    amounts: tuple[Amounts, ...] = nodes.total
    if free:
        amounts = nodes.free
    needs = (part.gpus, part.cpu_milli, part.memory_bytes)
    if picks_devices(part):
        amounts = (nodes.devices.counts(part, ALL) if free else nodes.devices.capacity_when_idle(part), *amounts[1:])
        needs = (1, *needs[1:])
    masks = (eligible & has_type, eligible, eligible)
    short = [r for r in range(len(needs)) if needs[r] and (masks[r] & (amounts[r] >= needs[r])).sum() < part.nodes]
    of_extended = nodes.extended.free if free else nodes.extended.total
    has_each = ((each, has_extended(replace(part, extended=(each,)), of_extended, ALL)) for each in part.extended)
    extended = [*describe_extended(each for each, has in has_each if (eligible & has).sum() < part.nodes)]
    if not short:
        return extended or node_needs(part)
    if short[0] == 0:
        return [describe_gpus(part), *extended]
    return [*extended, *describe_amounts(*(amount if r in short else 0 for r, amount in enumerate(needs[1:], start=1)))]


class _Restricted:
    """A gang with a part that has no place, and what it could have without some of its restrictions.

    unavailable: the nodes that go into maintenance before it would end.
    """

    def __init__(self, state: State, shape: Shape, part: Shape, stays_ms: int) -> None:
        """Find the unavailable nodes."""
        self.state, self.shape, self.part, self.stays_ms = state, shape, part, stays_ms
        self.unavailable = state.maintenance.unavailable(state.nodes, stays_ms) if state.maintenance else NOWHERE

    def could_ever_have(self, selector: Selector) -> bool:
        """Return whether the nodes could hold the part with another selector if nothing else ran."""
        nodes, choices = self.state.nodes, replace(self.part, selector=selector).choices
        return any(not _is_short_of(_idle_tallies(nodes, choice, self.shape.layout)) for choice in choices)

    def has_place_now(self, selector: Selector) -> bool:
        """Return whether the gang would have a place now with another selector."""
        nodes, choices = self.state.nodes, replace(self.part, selector=selector).choices
        with nodes.excluding_at(self.unavailable):
            if all(_is_short_of(_current_tallies(nodes, choice, self.shape.layout)) for choice in choices):
                return False
            # Parts that have room alone may be in each other's way.
            return not self.shape.more or place(nodes, with_selector(self.shape, selector)) is not None

    def scope(self, scarce: list[str], has_place: Callable[[Selector], bool]) -> str:
        """Return what is scarce as text, with the restrictions without which the gang `has_place`.

        These are the ones each of which alone keeps it from a place, or all if only all of them together do.
        """
        found = [*restrictions(self.part, self.state.nodes)]
        named = [restriction for restriction in found if has_place(restriction.without)]
        if found and not named and has_place(unrestricted(self.part.selector)):
            named = found
        texts = dict.fromkeys(scarce, "")
        for restriction in named:
            texts[restriction.text] = self._excluded(restriction) if self.has_place_now(restriction.without) else ""
        return ", ".join(text + note for text, note in texts.items())

    def _excluded(self, restriction: Restriction) -> str:
        """Return in parentheses the nodes that a restriction excludes; empty for none.

        These are all nodes that could ever hold the part, so that a published reason does not change whenever a gang
        starts on one of them.
        """
        nodes, without = self.state.nodes, replace(self.part, selector=restriction.without)
        mask = large_enough(nodes, without) & ~large_enough(nodes, self.part) & nodes.ready & ~nodes.excluded
        names = [nodes.attributes.names[index] for index in np.flatnonzero(mask).tolist()]
        count = "1 node" if len(names) == 1 else f"{len(names)} nodes"
        return f" (excludes {count}: {name_list(names)})" if names else ""
