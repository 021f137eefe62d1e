"""Choice of the running gangs to preempt for a pending one.

Under an order that ranks running gangs too, those after the preemptor are released, the last first, until it fits.
Under an order with reservations the rules of the policy document say which gangs may be stopped
(`core.preemption.legality`), and those that cost least are released first (`core.preemption.victim_order`); the search
is in `core.preemption.victim_search`. A gang that the cycle starts may be a victim too: it does not start then.

The capacity is held for the preemptor for the rest of the cycle; under the rules a reservation keeps it from then on,
and without one none is stopped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from ganger.core.cycle.cycle_state import Cycle, Victim
from ganger.core.placement.start_check import could_ever_start, over_user_limits, start_request
from ganger.core.preemption.legality import Legality, Planned
from ganger.core.preemption.surplus import Shrink, Surplus, find_surplus
from ganger.core.preemption.victim_order import VictimOrder, cheapest_first, unsaved_ms
from ganger.core.preemption.victim_search import Choice, Leaving, choose
from ganger.core.queue_order.policy_interface import preemption_rules
from ganger.core.queues.quota import need
from ganger.core.reservations.queue_rotation import is_large_cluster
from ganger.core.state.gang import LEAVING, ClassKey, Gang
from ganger.core.state.pending_index import NUMBER, PRIORITY, QUEUE
from ganger.core.state.state import Shares
from ganger.model.decision import PreemptionRule
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.policy import NONE
from ganger.model.units import DEVICE_MILLI, HOUR_MS

MAX_TRIES_PER_QUEUE: Final = 4
"""Pending gangs of a queue, of the highest priorities, that a cycle tries to preempt others for."""
MAX_SURPLUS_QUEUES: Final = 8
"""Queues, in rotation, for whose pending gangs a cycle looks for surplus if they may preempt no other gang."""
MAX_TRIES: Final = 8
"""Pending gangs, of those that others could make room for, that a cycle of a large cluster tries it for."""


def preempt_for(cycle: Cycle, gang: Gang) -> PendingReason | None:
    """Choose victims so that `gang` fits, and hold the capacity for it; return None if preemption cannot help."""
    staying = [other for other, _ in cycle.state.allocated() if not _is_leaving(cycle, other)]
    # A gang placed in this cycle is still pending; it comes before this gang in the order.
    later = _later_gangs(cycle, gang, [other for other in staying if other.state is not GangState.PENDING])
    if not later and not _leaving_whole(cycle):
        cycle.has_no_victims = True
        return None
    choice = choose(cycle.state, gang, _leaving(cycle), lambda: VictimOrder(later))
    if choice is None:
        return None
    victims = [
        Victim(other, gang.id, PreemptionRule.ORDER, unsaved_ms(other, cycle.now_ms)) for other in choice.victims
    ]
    return _preempt(cycle, gang, victims, choice.shares)


def could_preempt(cycle: Cycle, gang: Gang) -> bool:
    """Return whether others would be stopped for a gang that keeps nodes, if it waited in its queue instead."""
    state, rules = cycle.state, preemption_rules(cycle.policy, cycle.state.document)
    attempt, retries = replace(gang.attempt, left=(), target=()), gang.retries.keeping_nothing()
    waiting = replace(gang, state=GangState.PENDING, shape=gang.job.spec.shape, attempt=attempt, retries=retries)
    could, table = False, cycle.reservations.table
    with state.trial():
        state.release(gang)
        # What is forecast from here on counts its nodes as free, which the rest of the cycle must not.
        cycle.reservations.table = table.reduced(())
        if cycle.policy.ORDERS_RUNNING:
            staying = [other for other, _ in state.allocated() if not _is_leaving(cycle, other)]
            later = _later_gangs(cycle, waiting, [other for other in staying if other.state is not GangState.PENDING])
            choice = choose(state, waiting, _leaving(cycle), lambda: VictimOrder(later)) if later else None
            could = choice is not None and bool(choice.victims)
        elif rules is not None:
            surplus = find_surplus(state, cycle.now_ms, cycle.ending)
            planned = Planned(cycle.ending, cycle.started_gangs, _owners(cycle))
            legality = Legality(state, cycle.now_ms, rules, planned)
            is_likely = _may_help(cycle, waiting, legality, surplus, has_more=True)
            choice = _choose_by_rules(cycle, waiting, (legality, surplus, None), {}) if is_likely else None
            if choice is not None and (choice.victims or choice.shrinks):
                # Else a younger job whose reservation is in its way would get the nodes that it gives up.
                resized = [_resize(cycle, shrink) for shrink in choice.shrinks]
                could = cycle.reservations.could_reserve_beside(waiting, choice.victims, resized)
    cycle.reservations.table = table
    return could


def preempt_by_rules(cycle: Cycle, start: Callable[[Gang], bool]) -> dict[ClassKey, PendingReason]:
    """Preempt gangs for pending ones as the rules of the policy document allow; return the reasons of the latter.

    What elastic gangs have beyond their minimum is taken first, whatever the rules. `start` starts a gang, and returns
    False if it cannot start now.
    """
    rules = preemption_rules(cycle.policy, cycle.state.document)
    if rules is None:
        return {}
    surplus = find_surplus(cycle.state, cycle.now_ms, cycle.ending)
    if (rules.reclaim, rules.priority) == (NONE, NONE) and not (surplus.gangs or _owners(cycle)):
        return {}
    legality = Legality(cycle.state, cycle.now_ms, rules, Planned(cycle.ending, cycle.started_gangs, _owners(cycle)))
    return _preempt_for_each(cycle, legality, surplus, start)


def _preempt_for_each(
    cycle: Cycle, legality: Legality, surplus: Surplus, start: Callable[[Gang], bool]
) -> dict[ClassKey, PendingReason]:
    """Preempt gangs for one pending gang after the other; a cycle of a large cluster tries it for some of them."""
    reasons: dict[ClassKey, PendingReason] = {}
    tries, has_decided, is_outdated, has_more = 0, False, False, _has_more(cycle, surplus)
    for gang in _preemptors(cycle, legality, has_surplus=bool(surplus.gangs)):
        if cycle.reservations.is_awaited(gang):
            reasons[gang.class_key] = _awaits(cycle, cycle.reservations.by_gang[gang.id].nodes)
            continue
        if is_outdated:
            legality.renew(_owners(cycle))
            surplus = find_surplus(cycle.state, cycle.now_ms, cycle.ending)
            is_outdated, has_more = False, _has_more(cycle, surplus)
        if not _may_help(cycle, gang, legality, surplus, has_more=has_more):
            continue
        legal = None if has_more else _legal_victims(cycle, gang, legality, surplus)
        if legal is not None and not legal.gangs:
            continue
        if tries == MAX_TRIES and is_large_cluster(cycle.state):
            # If nothing new was decided, another cycle at once would try the same ones.
            cycle.is_unfinished |= has_decided
            break
        tries += 1
        victims = len(cycle.victims)
        preempted = _preempt_by_rules(cycle, gang, (legality, surplus, legal), start)
        if preempted is not None:
            reasons |= preempted
            is_outdated = True
            has_decided |= len(cycle.victims) > victims or cycle.reservations.is_new(gang)
    return reasons


def _has_more(cycle: Cycle, surplus: Surplus) -> bool:
    """Return whether more comes free than what is free now and what is stopped: that changes what is legal, too."""
    return bool(surplus.gangs) or any(_leaving(cycle))


def _may_help(cycle: Cycle, gang: Gang, legality: Legality, surplus: Surplus, *, has_more: bool) -> bool:
    """Return False if nothing that may be stopped makes `gang` fit: a check without a placement."""
    state, may_stop = cycle.state, legality.may_preempt(gang.queue, gang.job.spec.priority)
    if not (may_stop or surplus.may_help(state, gang.shape)):
        return False
    if not (has_more or _is_enough(cycle, gang, legality.most_gpu_milli(gang))):
        return False
    return not over_user_limits(state, start_request(gang))


class _Legal(NamedTuple):
    """Gangs that may be stopped now, none if all are too few, and the rules that allow it, by gang."""

    gangs: list[Gang]
    rules: dict[str, PreemptionRule]


def _legal_victims(cycle: Cycle, gang: Gang, legality: Legality, surplus: Surplus) -> _Legal:
    """Return the gangs that may be stopped for `gang`."""
    gangs, rules = cycle.state.gangs, legality.victims(gang)
    young = {name: ms for name in rules if (ms := legality.protected_until_ms(gangs[name])) is not None}
    cycle.wakes_ms += young.values()
    legal = [gangs[name] for name in rules if name not in young]
    charges = cycle.state.quota_charges
    held = surplus.gpu_milli + sum(charges[victim.id][0] for victim in legal)
    return _Legal(legal if _is_enough(cycle, gang, held) else [], rules)


def _owners(cycle: Cycle) -> list[Gang]:
    """Return the pending gangs for which others were stopped, and to which that capacity belongs."""
    return [reservation.gang for reservation in cycle.reservations.by_gang.values() if reservation.owned]


def _preempt_by_rules(
    cycle: Cycle, gang: Gang, may_give: tuple[Legality, Surplus, _Legal | None], start: Callable[[Gang], bool]
) -> dict[ClassKey, PendingReason] | None:
    """Stop what the rules allow so that `gang` fits, and reserve the capacity; return None if that does not help."""
    rule_of: dict[str, PreemptionRule] = {}
    choice = _choose_by_rules(cycle, gang, may_give, rule_of)
    if choice is None or not _displace(cycle, gang, choice, start):
        return None
    reasons: dict[ClassKey, PendingReason] = {}
    if gang.id in cycle.reservations.by_gang:  # else it starts
        reasons[gang.class_key] = _preempt(cycle, gang, [*_victims(cycle, gang, choice, rule_of)], choice.shares)
    return reasons


def _choose_by_rules(
    cycle: Cycle, gang: Gang, may_give: tuple[Legality, Surplus, _Legal | None], rule_of: dict[str, PreemptionRule]
) -> Choice | None:
    """Return what the rules allow to stop so that `gang` fits, as `choose` does; add the rules to `rule_of` by gang."""
    legality, surplus, known = may_give

    def order() -> VictimOrder:
        legal, rules = known or _legal_victims(cycle, gang, legality, surplus)
        rule_of.update(rules)
        if not (legal and could_ever_start(cycle.state, start_request(gang))):
            return VictimOrder([])
        found = cheapest_first(cycle.state, gang, legal, cycle.now_ms)
        return found._replace(victims=[*legality.together(gang, _within_budget(cycle, found.victims), rule_of)])

    may_stop = legality.may_preempt(gang.queue, gang.job.spec.priority)
    with cycle.holds.released(), cycle.reservations.kept_from(gang):  # a reservation takes precedence over a hold
        return choose(cycle.state, gang, _leaving(cycle), order if may_stop else None, surplus)


def _victims(cycle: Cycle, gang: Gang, choice: Choice, rule_of: dict[str, PreemptionRule]) -> Iterator[Victim]:
    """Yield those of a choice that are to stop, and that give up their surplus; others do not start."""
    for other in choice.victims:
        if other.may_be_preempted:
            yield Victim(other, gang.id, rule_of[other.id], unsaved_ms(other, cycle.now_ms))
    for other, kept in choice.shrinks:
        yield Victim(other, gang.id, PreemptionRule.SURPLUS, unsaved_ms(other, cycle.now_ms), kept)


def _within_budget(cycle: Cycle, victims: list[Gang]) -> Iterator[Gang]:
    """Yield victims as far as the policy document allows so many of each queue within an hour."""
    budget = cycle.state.document.preemption.max_per_hour
    if budget is None:
        yield from victims
        return
    since_ms = cycle.now_ms - HOUR_MS
    recent = [(queue, at_ms) for queue, at_ms in cycle.state.history.preemptions if at_ms > since_ms]
    counts = Counter([queue for queue, _ in recent] + [victim.gang.queue for victim in cycle.victims])
    for victim in victims:
        if victim.may_be_preempted and counts[victim.queue] >= budget:
            cycle.wakes_ms += [at_ms + HOUR_MS for queue, at_ms in recent if queue == victim.queue]
            continue
        counts[victim.queue] += victim.may_be_preempted
        yield victim


def _is_enough(cycle: Cycle, gang: Gang, held_milli: int) -> bool:
    """Return False if the free GPUs and that many others, in thousandths, are too few for `gang`."""
    nodes = cycle.state.nodes
    return int(nodes.free.gpus[nodes.ready].sum()) * DEVICE_MILLI + held_milli >= need(gang.shape)[0]


def _displace(cycle: Cycle, gang: Gang, choice: Choice, start: Callable[[Gang], bool]) -> bool:
    """Start `gang` in place of victims that the cycle starts, or reserve what all leave; return False if neither is."""
    victims, shrinks = choice.victims, choice.shrinks
    if not (victims or shrinks or gang.id in cycle.reservations.by_gang or cycle.limits.may_reserve(gang)):
        return False
    displaced, mark = [victim for victim in victims if victim.id in cycle.started_gangs], cycle.state.undo.mark()
    for victim in displaced:
        cycle.state.release(victim)
    if displaced:
        cycle.reservations.table = cycle.reservations.table.reduced(())
    resized = [_resize(cycle, shrink) for shrink in shrinks]
    may_start = len(displaced) == len(victims) and not shrinks and start(gang)
    may_reserve = resized or len(displaced) < len(victims) or any(_leaving(cycle))
    if not may_start and not (may_reserve and cycle.reservations.reserve_beside(gang, victims, resized)):
        cycle.state.undo.roll_back(mark)
        if displaced:
            cycle.reservations.table = cycle.reservations.table.reduced(())
        return False
    for victim in displaced:
        del cycle.started_gangs[victim.id]
        cycle.is_unfinished = True
    return True


def _resize(cycle: Cycle, shrink: Shrink) -> Gang:
    """Let an elastic gang give up nodes, which it leaves within its notice; return it as it is then."""
    gang, state = shrink.gang, cycle.state
    attempt = replace(gang.attempt, target=shrink.kept, notice_until_ms=cycle.now_ms + gang.notice_ms)
    resized = replace(gang, state=GangState.RESIZING, attempt=attempt)
    state.release(gang)
    state.take(resized, attempt.held)
    return resized


def _preemptors(cycle: Cycle, legality: Legality, *, has_surplus: bool) -> list[Gang]:
    """Return gangs to preempt others for: first those with a reservation, which may have done so, then by priority.

    On a large cluster only the first come in that order; the others follow in rotation.
    """
    lanes = cycle.state.pending.lanes(cycle.policy)
    queues, numbers, priorities = lanes.index.cells[[QUEUE, NUMBER, PRIORITY]]
    chosen = {gang.id: gang for gang in _owners(cycle) if cycle.waits(gang)}
    offset = cycle.state.seq % max(1, len(lanes.queues))
    for position, (name, members) in enumerate(lanes.queues.items()):
        rows = np.flatnonzero(queues == members.slot)
        may_shrink = has_surplus and (position - offset) % len(lanes.queues) < MAX_SURPLUS_QUEUES
        if not rows.size or not (may_shrink or legality.may_preempt(name, int(priorities[rows].max()))):
            continue
        order = rows[np.lexsort((numbers[rows], -priorities[rows]))].tolist()
        entries = (entry.gang for row in order for entry in lanes.index.rows[row].entries)
        able = (gang for gang in entries if gang.is_forecastable and not gang.retries.unadmitted and cycle.waits(gang))
        chosen |= {gang.id: gang for gang in islice(able, MAX_TRIES_PER_QUEUE)}

    def key(gang: Gang) -> tuple[bool, int, int]:
        return gang.id not in cycle.reservations.by_gang, -gang.job.spec.priority, gang.number

    order = sorted(chosen.values(), key=key)
    if len(order) <= MAX_TRIES or not is_large_cluster(cycle.state):
        return order
    first, others = order[: MAX_TRIES // 2], order[MAX_TRIES // 2 :]
    begin = cycle.state.seq * MAX_TRIES % len(others)
    return [*first, *others[begin:], *others[:begin]]


def _preempt(cycle: Cycle, gang: Gang, victims: list[Victim], shares: Shares) -> PendingReason:
    """Stop the victims and hold the capacity for `gang`; return its pending reason."""
    state = cycle.state
    cycle.victims += victims
    whole = [victim for victim in victims if not victim.kept]
    cycle.ending |= {victim.gang.id: victim.gang.notice_ms for victim in whole}
    for victim in whole:
        state.undo.put(state.allocations.planned_changes, victim.gang.id, -1)
    cycle.holds.hold(gang, ReasonCode.NO_CAPACITY, shares)
    return _awaits(cycle, [share.node for share in shares])


def _awaits(cycle: Cycle, nodes: Iterable[str]) -> PendingReason:
    """Return the pending reason of a gang that waits for those that are leaving these nodes."""
    names = dict.fromkeys(nodes)
    leaving = {other.id: cycle.state.allocations[other.id] for other in _leaving_whole(cycle)}
    for other in _leaving_in_part(cycle):
        leaving[other.id] = other.attempt.parting
    holders = [name for name, held in leaving.items() if any(share.node in names for share in held)]
    # If none of them is on its nodes, they hold quota of a GPU type that it may use instead of another.
    return PendingReason(code=ReasonCode.STOPPING_OTHERS, holders=tuple(holders or leaving))


def _leaving(cycle: Cycle) -> Leaving:
    return Leaving(_leaving_whole(cycle), _leaving_in_part(cycle))


def _leaving_in_part(cycle: Cycle) -> list[Gang]:
    """Return the gangs that are resized, of which some leave nodes."""
    resized = [name for name, gang in cycle.state.timers.in_transition.items() if gang.state is GangState.RESIZING]
    names = dict.fromkeys((*resized, *(victim.gang.id for victim in cycle.victims if victim.kept)))
    gangs = (cycle.state.gangs[name] for name in names if name not in cycle.ending)
    return [gang for gang in gangs if gang.state is GangState.RESIZING and not gang.is_short]


def _leaving_whole(cycle: Cycle) -> list[Gang]:
    """Return the gangs whose nodes are about to be free, oldest first."""
    gangs, allocations = cycle.state.gangs, cycle.state.allocations
    names = dict.fromkeys((*cycle.state.timers.in_transition, *cycle.ending))
    leaving = (gangs[name] for name in names if name in allocations)
    return sorted((gang for gang in leaving if _is_leaving(cycle, gang)), key=lambda gang: gang.number)


def _is_leaving(cycle: Cycle, other: Gang) -> bool:
    return other.state in LEAVING or other.id in cycle.ending


def _later_gangs(cycle: Cycle, gang: Gang, staying: list[Gang]) -> list[Gang]:
    """Return the gangs after `gang` in the order, the last first."""

    def key(other: Gang) -> tuple[Any, ...]:
        return cycle.policy.key(other, cycle.state, cycle.now_ms)

    own_key = key(gang)
    eligible = (other for other in staying if other.job.spec.preemptible and not other.attempt.lent)
    if gang.job.spec.replica_groups:  # what one group gains another one of the same training loses
        eligible = (other for other in eligible if other.array != gang.array)
    later = (other for other in eligible if key(other) > own_key)
    return sorted(later, key=key, reverse=True)
