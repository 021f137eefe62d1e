"""Choice of the running gangs to preempt for a pending one.

Under an order that ranks running gangs too, those after the preemptor are released, the last first, until it fits.
Under an order with reservations the rules of the policy document say which gangs may be stopped
(`core.preemption.legality`), and those that cost least are released first (`core.preemption.victim_order`). Then gangs
that need not be stopped stay, the most expensive first. Gangs that are leaving already count as gone, so that no second
gang is stopped for capacity that is being freed.

The capacity is held for the preemptor for the rest of the cycle; under the rules a reservation keeps it from then on,
and without one none is stopped. Source of the step that lets victims stay: Kueue (reference: scheduling, section 2).
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from ganger.core.cycle.cycle import Cycle, Victim
from ganger.core.placement.start_check import could_ever_start, find_placement, over_user_limits, start_request
from ganger.core.preemption.legality import Legality
from ganger.core.preemption.victim_order import VictimOrder, cheapest_first, unsaved_ms
from ganger.core.state.gang import LEAVING, ClassKey, Gang
from ganger.core.state.pending_index import NUMBER, PRIORITY, QUEUE
from ganger.core.state.state import Shares
from ganger.model.decision import PreemptionRule
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.shape import Shape

MAX_TRIES_PER_QUEUE: Final = 4
"""Pending gangs of a queue, of the highest priorities, that a cycle tries to preempt others for."""
MAX_EXACT: Final = 64
"""Most victims for which each is checked by a full placement; with more, first by the free amounts of their nodes."""


class Choice(NamedTuple):
    """The victims for a pending gang, and where it fits once they are gone."""

    victims: list[Gang]
    shares: Shares


def preempt_for(cycle: Cycle, gang: Gang) -> PendingReason | None:
    """Choose victims so that `gang` fits, and hold the capacity for it; return None if preemption cannot help."""
    staying = [other for other, _ in cycle.state.allocated() if not _is_leaving(cycle, other)]
    # A gang placed in this cycle is still pending; it comes before this gang in the order.
    later = _later_gangs(cycle, gang, [other for other in staying if other.state is not GangState.PENDING])
    if not later and not _leaving(cycle):
        cycle.has_no_victims = True
        return None
    choice = choose(cycle, gang, lambda: VictimOrder(later))
    if choice is None:
        return None
    victims = [
        Victim(other, gang.id, PreemptionRule.ORDER, unsaved_ms(other, cycle.now_ms)) for other in choice.victims
    ]
    return _preempt(cycle, gang, victims, choice.shares)


def preempt_by_rules(cycle: Cycle) -> dict[ClassKey, PendingReason]:
    """Preempt gangs for pending ones as the rules of the policy document allow; return the reasons of the latter."""
    reasons: dict[ClassKey, PendingReason] = {}
    legality = _legality(cycle)
    for gang in _preemptors(cycle, legality):
        reason = _preempt_by_rules(cycle, gang, legality)
        if reason is not None:
            reasons[gang.class_key] = reason
            legality = _legality(cycle)
    return reasons


def _legality(cycle: Cycle) -> Legality:
    return Legality(cycle.state, cycle.now_ms, cycle.ending, cycle.started_gangs.values(), _owners(cycle))


def _owners(cycle: Cycle) -> list[Gang]:
    """Return the pending gangs for which others were stopped, and to which that capacity belongs."""
    return [reservation.gang for reservation in cycle.reservations.by_gang.values() if reservation.owned]


def _preempt_by_rules(cycle: Cycle, gang: Gang, legality: Legality) -> PendingReason | None:
    """Stop what the rules allow so that `gang` fits, and reserve the capacity; return None if that does not help."""
    state, request = cycle.state, start_request(gang)
    rule_of = {other.id: rule for other in legality.running if (rule := legality.rule(gang, other))}
    young = {name: ms for name in rule_of if (ms := legality.protected_until_ms(state.gangs[name])) is not None}
    legal = [state.gangs[name] for name in rule_of if name not in young]
    with cycle.holds.released(only=gang.id):
        if over_user_limits(state, request) or not could_ever_start(state, request):
            return None
        choice = choose(cycle, gang, lambda: cheapest_first(state, gang, legal, cycle.now_ms))
    may_reserve = choice is not None and (
        choice.victims or gang.id in cycle.reservations.by_gang or cycle.limits.may_reserve(gang)
    )
    if choice is None or not may_reserve or not cycle.reservations.reserve_beside(gang, choice.victims):
        cycle.wakes_ms += young.values()
        if any(legality.rule(gang, started) for started in cycle.started_gangs.values()):
            cycle.wakes_ms.append(cycle.now_ms + max(1, state.document.preemption.min_run_ms))
        return None
    victims = [Victim(v, gang.id, rule_of[v.id], unsaved_ms(v, cycle.now_ms)) for v in choice.victims]
    return _preempt(cycle, gang, victims, choice.shares)


def _preemptors(cycle: Cycle, legality: Legality) -> list[Gang]:
    """Return gangs to preempt others for: first those with a reservation, which may have done so, then by priority."""
    lanes = cycle.state.pending.lanes(cycle.policy)
    queues, numbers, priorities = lanes.index.cells[[QUEUE, NUMBER, PRIORITY]]
    chosen = {gang.id: gang for gang in _owners(cycle) if cycle.waits(gang)}
    for name, members in lanes.queues.items():
        rows = np.flatnonzero(queues == members.slot)
        if not rows.size or not legality.may_preempt(name, int(priorities[rows].max())):
            continue
        order = rows[np.lexsort((numbers[rows], -priorities[rows]))].tolist()
        entries = (entry.gang for row in order for entry in lanes.index.rows[row].entries)
        able = (gang for gang in entries if gang.is_forecastable and not gang.retries.unadmitted and cycle.waits(gang))
        chosen |= {gang.id: gang for gang in islice(able, MAX_TRIES_PER_QUEUE)}

    def key(gang: Gang) -> tuple[bool, int, int]:
        return gang.id not in cycle.reservations.by_gang, -gang.job.spec.priority, gang.number

    return sorted(chosen.values(), key=key)


def _preempt(cycle: Cycle, gang: Gang, victims: list[Victim], shares: Shares) -> PendingReason:
    """Stop the victims and hold the capacity for `gang`; return its pending reason."""
    state = cycle.state
    leaving = {other.id: state.allocations[other.id] for other in _leaving(cycle)}
    leaving |= {victim.gang.id: state.allocations[victim.gang.id] for victim in victims}
    cycle.victims += victims
    cycle.ending |= {victim.gang.id: victim.gang.notice_ms for victim in victims}
    for victim in victims:
        state.undo.put(state.allocations.planned_changes, victim.gang.id, -1)
    cycle.holds.hold(gang, ReasonCode.NO_CAPACITY, shares)
    nodes = {share.node: None for share in shares}
    holders = [name for name, held in leaving.items() if any(share.node in nodes for share in held)]
    # If none of them is on its nodes, they hold quota of a GPU type that it may use instead of another.
    return PendingReason(code=ReasonCode.STOPPING_OTHERS, holders=tuple(holders or leaving))


def choose(cycle: Cycle, gang: Gang, order: Callable[[], VictimOrder]) -> Choice | None:
    """Return as few victims as `gang` needs beside what is leaving, taken in that order; None if all are too few.

    `order` is called when what is leaving has been released.
    """
    state, shares_of = cycle.state, dict(cycle.state.allocations)
    with state.trial():
        for other in _leaving(cycle):
            state.release(other)
        released = _release(cycle, gang, order())
        if released is None:
            return None
        victims = _give_back(cycle, gang, released, shares_of)
        shares = find_placement(state, start_request(gang))
    return Choice(victims, shares) if shares else None


def _release(cycle: Cycle, gang: Gang, order: VictimOrder) -> list[Gang] | None:
    """Release gangs in that order, as many as should do, then as many again, until `gang` fits; None if it does not."""
    state, released = cycle.state, list[Gang]()
    while not find_placement(state, start_request(gang)):
        more = order.victims[len(released) : 2 * len(released) or order.first_count]
        if not more:
            return None
        for other in more:
            state.release(other)
        released += more
    return released


def _give_back(cycle: Cycle, gang: Gang, released: list[Gang], shares_of: dict[str, Shares]) -> list[Gang]:
    """Put back the released gangs beside which `gang` fits, the last of the order first; return the others."""
    if len(released) > MAX_EXACT:
        released = _give_back_beside(cycle, gang, released, shares_of)[::-1]
    if len(released) > MAX_EXACT:
        return released[::-1]
    return [other for other in reversed(released) if not _may_stay(cycle, other, gang, shares_of[other.id])]


def _give_back_beside(cycle: Cycle, gang: Gang, released: list[Gang], shares_of: dict[str, Shares]) -> list[Gang]:
    """Put back the released gangs for which there is room beside a placement of `gang`; return the others.

    None is put back if quota, or anything but amounts on nodes, then keeps `gang` from starting.
    """
    state, victims, mark = cycle.state, list[Gang](), cycle.state.undo.mark()
    placed = find_placement(state, start_request(gang)) or ()
    left = [amount.tolist() for amount in state.nodes.free]

    def take(shape: Shape, shares: Shares, sign: int) -> bool:
        """Take shares from what is left, or give them back; return whether nothing is below zero there."""
        is_enough = True
        for share in shares:
            part, index = shape.parts[share.part], state.nodes.index[share.node]
            # A share of a device counts as a whole one.
            for amounts, amount in zip(left, (part.devices, part.cpu_milli, part.memory_bytes), strict=True):
                amounts[index] -= sign * amount
                is_enough &= amounts[index] >= 0
        return is_enough

    take(gang.shape, placed, +1)
    for other in reversed(released):
        if take(other.shape, shares_of[other.id], +1):
            state.take(other, shares_of[other.id])
        else:
            take(other.shape, shares_of[other.id], -1)
            victims.append(other)
    if find_placement(state, start_request(gang)):
        return victims
    state.undo.roll_back(mark)
    return released[::-1]


def _may_stay(cycle: Cycle, other: Gang, gang: Gang, shares: Shares) -> bool:
    """Put `other` back and return True if `gang` still fits."""
    mark = cycle.state.undo.mark()
    cycle.state.take(other, shares)
    if not find_placement(cycle.state, start_request(gang)):
        cycle.state.undo.roll_back(mark)
        return False
    return True


def _leaving(cycle: Cycle) -> list[Gang]:
    return [other for other, _ in cycle.state.allocated() if _is_leaving(cycle, other)]


def _is_leaving(cycle: Cycle, other: Gang) -> bool:
    return other.state in LEAVING or other.id in cycle.ending


def _later_gangs(cycle: Cycle, gang: Gang, staying: list[Gang]) -> list[Gang]:
    """Return the gangs after `gang` in the order, the last first."""

    def key(other: Gang) -> tuple[Any, ...]:
        return cycle.policy.key(other, cycle.state, cycle.now_ms)

    own_key = key(gang)
    return sorted((other for other in staying if key(other) > own_key), key=key, reverse=True)
