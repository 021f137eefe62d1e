"""Search for the victims of a preemption: release in an order until the pending gang fits, then give back.

Gangs that are leaving already count as gone, so that no second gang is stopped for capacity that is being freed. Of
elastic gangs the surplus goes before whole gangs. In the end those that need not be stopped stay, the last of the order
first. Source of that step: Kueue (reference: scheduling, section 2).
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ganger.core.placement.start_check import find_placement, start_request
from ganger.core.preemption.surplus import (
    NO_SURPLUS,
    Shrink,
    Surplus,
    find_shrinks,
    give_up_all,
    shrink_to,
    still_needed,
)
from ganger.core.preemption.victim_order import VictimOrder
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.shape import Shape

MAX_EXACT: Final = 64
"""Most victims for which each is checked by a full placement; with more, first by the free amounts of their nodes."""


class Leaving(NamedTuple):
    """Gangs whose nodes come free anyway: those that are leaving, and those that are resized and leave some nodes."""

    whole: Sequence[Gang] = ()
    in_part: Sequence[Gang] = ()


class Choice(NamedTuple):
    """The victims for a pending gang, where it fits once they are gone, and the elastic gangs that give up nodes."""

    victims: list[Gang]
    shares: Shares
    shrinks: list[Shrink]


def choose(
    state: State, gang: Gang, leaving: Leaving, order: Callable[[], VictimOrder] | None, surplus: Surplus = NO_SURPLUS
) -> Choice | None:
    """Return as few victims as `gang` needs beside what is leaving, taken in that order; None if all are too few.

    `order` is called when what is leaving has been released, and all surplus.
    """
    request = start_request(gang)
    with state.trial():
        if not any(leaving) and find_placement(state, request):
            return None  # it waits for something else
        for other in leaving.whole:
            state.release(other)
        for other in leaving.in_part:
            shrink_to(state, Shrink(other, other.attempt.target))
        if shares := find_placement(state, request):
            return Choice([], shares, [])
        shrinks = find_shrinks(state, request, surplus) if surplus.may_help(state, gang.shape) else None
        if shrinks is not None:
            for shrink in shrinks:
                shrink_to(state, shrink)
            shares = find_placement(state, request)
            return Choice([], shares, shrinks) if shares else None
        return _choose_victims(state, gang, order, surplus) if order else None


def _choose_victims(state: State, gang: Gang, order: Callable[[], VictimOrder], surplus: Surplus) -> Choice | None:
    """Return the victims beside all surplus, and what of it is needed; the state is that with both of them gone."""
    shrinks, shares_of = give_up_all(state, surplus), dict(state.allocations)
    victim_order = order()
    before = {victim.id: victim for victim in victim_order.victims}
    released = list[Gang]()
    placed = _release(state, gang, victim_order._replace(victims=[state.gangs[name] for name in before]), released)
    if placed is None:
        return None
    victims = [before[other.id] for other in _give_back(state, (gang, placed), released, shares_of)]
    whole = {victim.id: None for victim in victims}
    needed = [shrink for shrink in shrinks if shrink.gang.id not in whole]
    shrinks = still_needed(state, needed, start_request(gang))
    shares = find_placement(state, start_request(gang))
    return Choice(victims, shares, shrinks) if shares else None


def _release(state: State, gang: Gang, order: VictimOrder, released: list[Gang]) -> Shares | None:
    """Release gangs in that order, as many as should do, then as many again, until `gang` fits; return where it does.

    Those are added to `released`.
    """
    while not (placed := find_placement(state, start_request(gang))):
        more = order.victims[len(released) : 2 * len(released) or order.first_count]
        if not more:
            return None
        state.release_all(more)
        released += more
    return placed


def _give_back(
    state: State, start: tuple[Gang, Shares], released: list[Gang], shares_of: dict[str, Shares]
) -> list[Gang]:
    """Put back the released gangs beside which a gang fits, the last of the order first; return the others."""
    if len(released) > MAX_EXACT:
        released = _give_back_beside(state, start, released, shares_of)[::-1]
    if len(released) > MAX_EXACT:
        return released[::-1]
    return [other for other in reversed(released) if not _may_stay(state, other, start[0], shares_of[other.id])]


def _give_back_beside(
    state: State, start: tuple[Gang, Shares], released: list[Gang], shares_of: dict[str, Shares]
) -> list[Gang]:
    """Put back the released gangs for which there is room beside a placement of a gang; return the others.

    None is put back if quota, or anything but amounts on nodes, then keeps the gang from starting.
    """
    (gang, placed), victims, mark = start, list[Gang](), state.undo.mark()
    left = [amount.tolist() for amount in state.nodes.free]
    _take(state, left, (gang.shape, placed), +1)
    for other in reversed(released):
        allocation = other.shape, shares_of[other.id]
        if _take(state, left, allocation, +1):
            state.take(other, shares_of[other.id])
        else:
            _take(state, left, allocation, -1)
            victims.append(other)
    if len(victims) == len(released) or find_placement(state, start_request(gang)):
        return victims
    state.undo.roll_back(mark)
    return released[::-1]


def _take(state: State, left: list[list[int]], allocation: tuple[Shape, Shares], sign: int) -> bool:
    """Take an allocation from what is left of each node, or give it back; return whether nothing is below zero there.

    A share of a device counts as a whole one.
    """
    (shape, shares), is_enough = allocation, True
    for share in shares:
        part, index = shape.parts[share.part], state.nodes.index[share.node]
        for amounts, amount in zip(left, (part.devices, part.cpu_milli, part.memory_bytes), strict=True):
            amounts[index] -= sign * amount
            is_enough &= amounts[index] >= 0
    return is_enough


def _may_stay(state: State, other: Gang, gang: Gang, shares: Shares) -> bool:
    """Put `other` back and return True if `gang` still fits."""
    mark = state.undo.mark()
    state.take(other, shares)
    if not find_placement(state, start_request(gang)):
        state.undo.roll_back(mark)
        return False
    return True
