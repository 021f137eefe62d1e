"""Choice of the running gangs to preempt for a pending one, under a policy that orders running gangs too.

Gangs after the preemptor in the order are stopped, the last first, until it fits; then those that need not be stopped
stay, the first in the order first. The capacity is held for the preemptor for the rest of the cycle. Gangs that are
leaving already count as gone, so that no gang is stopped twice for the same capacity. The choice does not minimise the
cost of the victims. Source of the step that lets victims stay: Kueue (reference: scheduling, section 2).
"""

from typing import Any

from ganger.core.cycle.cycle import Cycle
from ganger.core.placement.start_check import find_placement, start_request
from ganger.core.state.gang import LEAVING, Gang
from ganger.core.state.state import Shares
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode


def preempt_for(cycle: Cycle, gang: Gang) -> PendingReason | None:
    """Choose victims so that `gang` fits, and hold the capacity for it; return None if preemption cannot help."""
    state, holding = cycle.state, cycle.state.allocated()
    shares_of = {other.id: shares for other, shares in holding}
    leaving = [other for other, _ in holding if _is_leaving(cycle, other)]
    # A gang placed in this cycle is still pending; it comes before this gang in the order.
    staying = [other for other, _ in holding if not _is_leaving(cycle, other) and other.state is not GangState.PENDING]
    later = _later_gangs(cycle, gang, staying)
    if not later and not leaving:
        cycle.has_no_victims = True
        return None
    with state.trial():
        for other in leaving:
            state.release(other)
        victims = _choose_victims(cycle, gang, later, shares_of)
        placement = find_placement(state, start_request(gang))
    if not placement:
        return None
    cycle.victims += victims
    cycle.ending |= {other.id: None for other in victims}
    for other in victims:
        state.undo.put(state.allocations.planned_changes, other.id, -1)
    cycle.holds.hold(gang, ReasonCode.NO_CAPACITY, placement)
    nodes = {share.node: None for share in placement}
    leaving_shares = [(other.id, held_shares) for other, held_shares in holding if _is_leaving(cycle, other)]
    holders = [name for name, held_shares in leaving_shares if any(share.node in nodes for share in held_shares)]
    # If none of them is on its nodes, they hold quota of a GPU type that it may use instead of another.
    return PendingReason(
        code=ReasonCode.STOPPING_OTHERS, holders=tuple(holders or (name for name, _ in leaving_shares))
    )


def _is_leaving(cycle: Cycle, other: Gang) -> bool:
    return other.state in LEAVING or other.id in cycle.ending


def _later_gangs(cycle: Cycle, gang: Gang, staying: list[Gang]) -> list[Gang]:
    """Return the gangs after `gang` in the order, the last first."""

    def key(other: Gang) -> tuple[Any, ...]:
        return cycle.policy.key(other, cycle.state, cycle.now_ms)

    own_key = key(gang)
    return sorted((other for other in staying if key(other) > own_key), key=key, reverse=True)


def _choose_victims(cycle: Cycle, gang: Gang, later: list[Gang], shares_of: dict[str, Shares]) -> list[Gang]:
    """Release as many of `later` as `gang` needs, and return those that cannot stay; all if it does not fit."""
    state = cycle.state
    released: list[Gang] = []
    while not find_placement(state, start_request(gang)):
        if len(released) == len(later):
            return released
        released.append(later[len(released)])
        state.release(released[-1])
    return [other for other in reversed(released) if not _may_stay(cycle, other, gang, shares_of[other.id])]


def _may_stay(cycle: Cycle, other: Gang, gang: Gang, shares: Shares) -> bool:
    """Put `other` back and return True if `gang` still fits."""
    mark = cycle.state.undo.mark()
    cycle.state.take(other, shares)
    if not find_placement(cycle.state, start_request(gang)):
        cycle.state.undo.roll_back(mark)
        return False
    return True
