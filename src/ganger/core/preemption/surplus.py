"""Surplus: the nodes that elastic gangs have beyond their minimum, and those of them that a pending gang needs.

Surplus may be taken for any pending gang, without a rule, and is taken before any whole gang is stopped. To see which
nodes help, all that elastic gangs hold is free for a moment; a gang of which more is used than its surplus then keeps
the rest, until a placement takes no more than the surplus of any.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.placement.start_check import StartRequest, find_placement
from ganger.core.preemption.victim_order import unsaved_ms
from ganger.core.queues.quota import need
from ganger.core.state.allocations.allocations import NODE
from ganger.core.state.elastic_gangs import in_units, ranked, resize_cost_ms, unit_of
from ganger.core.state.gang import Gang
from ganger.core.state.gang_attempts import without
from ganger.core.state.state import Shares, State
from ganger.model.job import GangState
from ganger.model.shape import Shape

MAX_TRIES: Final = 32
"""Units of a role that a gang is to give up, of which it is tried whether it may keep them."""


class Shrink(NamedTuple):
    """An elastic gang that gives up nodes, and what it keeps."""

    gang: Gang
    kept: Shares


@dataclass(frozen=True, slots=True)
class Surplus:
    """The elastic gangs that may give up nodes at one time, those first that lose least, and what they hold.

    held: (3, N) GPUs, CPU and memory on each node.
    """

    gangs: tuple[Gang, ...]
    held: NDArray[np.int64]

    @property
    def gpu_milli(self) -> int:
        """The GPUs of all surplus, in thousandths."""
        return sum(gang.surplus * gang.shape.gpu_milli_of(gang.job.spec.elastic_part) for gang in self.gangs)

    def may_help(self, state: State, shape: Shape) -> bool:
        """Return False if a gang would not fit even if the elastic gangs held nothing: a check of amounts alone."""
        if not self.gangs:
            return False
        part, nodes = shape.parts[0], state.nodes
        usable = np.logical_or.reduce([nodes.able(choice) for choice in part.choices]) & nodes.ready & ~nodes.held
        wanted = part.devices, part.cpu_milli, part.memory_bytes
        for free, held, amount in zip(nodes.free, self.held, wanted, strict=True):
            usable &= free + held >= amount
        return int(np.count_nonzero(usable)) >= (1 if part.stacked else part.nodes)


NO_SURPLUS: Final = Surplus((), np.zeros((3, 0), dtype=np.int64))
"""That of no gang."""


def find_surplus(state: State, now_ms: int, ending: Collection[str]) -> Surplus:
    """Return the surplus of all gangs but those that end.

    A gang that has left some of its nodes, because its ranks there have finished, ends too: what it still holds is no
    gang of a smaller size, and may be less than its surplus.
    """
    if not state.timers.elastic.surplus:
        return NO_SURPLUS
    gangs = [gang for name in state.timers.elastic.surplus if name not in ending for gang in (state.gangs[name],)]
    gangs = [gang for gang in gangs if gang.state in (GangState.STARTING, GangState.RUNNING)]
    gangs = [gang for gang in gangs if len(gang.attempt.left) == len(gang.nodes)]
    table, held = state.allocations.table, np.zeros((3, len(state.nodes.nodes)), dtype=np.int64)
    rows = table.row_indices(gang.id for gang in gangs)
    for amounts, of_rows in zip(held, table.cells[NODE + 1 : NODE + 4, rows], strict=True):
        np.add.at(amounts, table.cells[NODE, rows], of_rows)
    return Surplus(tuple(sorted(gangs, key=lambda gang: (_loss(gang, now_ms), gang.number))), held)


def _loss(gang: Gang, now_ms: int) -> int:
    """Return what a resize of a gang wastes now, in GPU-milliseconds."""
    size = need(gang.shape)[0] or 1000 * gang.shape.all_nodes
    return size * (unsaved_ms(gang, now_ms) + resize_cost_ms(gang)) // 1000


def find_shrinks(state: State, request: StartRequest, surplus: Surplus) -> list[Shrink] | None:
    """Return which gangs give up what so that a pending gang fits, as few as it needs; None if all are too few."""
    with state.trial():
        mark = state.undo.mark()
        given = _shares_that_help(state, request, surplus)
        state.undo.roll_back(mark)
        if given is None:
            return None
        shrinks = [Shrink(gang, _without(state, gang, given[gang.id])) for gang in surplus.gangs if given.get(gang.id)]
        for shrink in shrinks:
            shrink_to(state, shrink)
        if not find_placement(state, request):
            return None
        return still_needed(state, shrinks, request)


def give_up_all(state: State, surplus: Surplus) -> list[Shrink]:
    """Let all gangs give up all their surplus for the rest of a trial."""
    shrinks = []
    for gang in surplus.gangs:
        shares = gang.elastic_shares(state.allocations[gang.id])[::-1]
        shrinks.append(Shrink(gang, _without(state, gang, in_units(state.nodes, gang, shares, shares)[: gang.surplus])))
        shrink_to(state, shrinks[-1])
    return shrinks


def still_needed(state: State, shrinks: list[Shrink], request: StartRequest) -> list[Shrink]:
    """Let those gangs that need not give up anything have all again, the last first; return the others."""
    needed = [shrink for shrink in reversed(shrinks) if not _may_stay(state, shrink, request)][::-1]
    return [_least(state, shrink, request) if unit_of(shrink.gang).stacked else shrink for shrink in needed]


def shrink_to(state: State, shrink: Shrink) -> None:
    """Leave to a gang, for the rest of a trial, what it keeps, as if it had left the rest already."""
    gang, kept = shrink
    if gang.id in state.allocations:
        state.release(state.gangs[gang.id])
    if kept:
        attempt = replace(gang.attempt, left=(), target=kept)
        state.take(replace(gang, shape=gang.shape_on(kept), attempt=attempt), kept)


def _may_stay(state: State, shrink: Shrink, request: StartRequest) -> bool:
    """Let a gang have all again, and return True if the pending gang still fits."""
    mark = state.undo.mark()
    state.release(state.gangs[shrink.gang.id])
    state.take(shrink.gang, shrink.gang.attempt.held)
    if find_placement(state, request):
        return True
    state.undo.roll_back(mark)
    return False


def _least(state: State, shrink: Shrink, request: StartRequest) -> Shrink:
    """Let a gang with a range of a role, of which a node may have several processes, keep those that do not help."""
    gang, step = shrink.gang, shrink.gang.job.spec.sizes.step
    given = without(gang.attempt.held, shrink.kept)
    for end in [*range(len(given), 0, -step)][:MAX_TRIES]:
        less = given[: end - step] + given[end:]
        shrink_to(state, Shrink(gang, without(gang.attempt.held, less)))
        given = less if find_placement(state, request) else given
    least = Shrink(gang, ranked(gang.shape, without(gang.attempt.held, given), state.nodes.index))
    shrink_to(state, least)
    return least


def _shares_that_help(state: State, request: StartRequest, surplus: Surplus) -> dict[str, Shares] | None:
    """Return by gang the shares to give up so that a pending gang fits, none of them more than its surplus."""
    waiting, opened = list(surplus.gangs), dict[str, Gang]()
    shares_of = {gang.id: gang.elastic_shares(state.allocations[gang.id]) for gang in waiting}
    while True:
        placed = find_placement(state, request)
        if placed is None:
            if not waiting:
                return None
            count = max(1, len(opened))
            for gang in waiting[:count]:
                shrink_to(state, Shrink(gang, without(state.allocations[gang.id], shares_of[gang.id])))
                opened[gang.id] = gang
            del waiting[:count]
            continue
        nodes = dict.fromkeys(share.node for share in placed)
        own = {name: tuple(s for s in shares_of[name] if s.node in nodes) for name in opened}
        given = {name: in_units(state.nodes, gang, own[name], shares_of[name]) for name, gang in opened.items()}
        excessive = [gang for name, gang in opened.items() if len(given[name]) > gang.surplus]
        if not excessive:
            return given
        for gang in excessive:
            shares_of[gang.id] = given[gang.id][: gang.surplus]
            shrink_to(state, Shrink(gang, without(gang.attempt.held, shares_of[gang.id])))


def _without(state: State, gang: Gang, given: Shares) -> Shares:
    """Return the other shares of a gang, with ranks in their order."""
    return ranked(gang.shape, without(state.allocations[gang.id], given), state.nodes.index)
