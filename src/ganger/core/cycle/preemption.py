"""Which running gangs give way to a waiting one, under a policy that orders running gangs too.

Called by `core.cycle.plan` for a gang that only lacks room. Rule: gangs after it in the order leave, the last first,
until it fits; then those that need not leave are given back, the dearest first; what it will stand on is kept from all
others in this round. Gangs that are leaving already count as gone, so nobody is stopped twice for the same room.
Searching for the cheapest victims is a later issue. Source of the fill-back step: Kueue (reference: scheduling, section
2)."""

from typing import Any

from ganger.core.cycle.cycle import Cycle
from ganger.core.placement.start_check import ask, where
from ganger.core.state.gang import LEAVING, Gang
from ganger.core.state.state import Shares
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason, ReasonCode


def make_room(now: Cycle, gang: Gang) -> PendingReason | None:
    """Stop whoever must leave so that `gang` fits, and keep the room for it. None: stopping cannot help it."""
    state, held = now.state, now.state.holding()
    shares = {other.id: there for other, there in held}
    leaving = [other for other, _ in held if _leaves(now, other)]
    # One that this very round placed is still pending: it was before this gang in the order.
    staying = [other for other, _ in held if not _leaves(now, other) and other.state is not GangState.PENDING]
    after = _after(now, gang, staying)
    if not after and not leaving:
        now.nobody_gives_way = True
        return None
    with state.trial():
        for other in leaving:
            state.release(other)
        stop = _enough(now, gang, after, shares)
        place = where(state, ask(gang))
    if not place:
        return None
    now.victims += stop
    now.ending |= {other.id: None for other in stop}
    for other in stop:
        state.undo.put(state.meant, other.id, -1)
    now.keep(gang, ReasonCode.NO_CAPACITY, place)
    there = {share.node: None for share in place}
    leaves = [(other.id, its) for other, its in held if _leaves(now, other)]
    holders = [name for name, its in leaves if any(share.node in there for share in its)]
    # Where none of them is on its nodes, they have the quota of a type that it may have instead of another.
    return PendingReason(why=ReasonCode.STOPPING_OTHERS, holders=tuple(holders or (name for name, _ in leaves)))


def _leaves(now: Cycle, other: Gang) -> bool:
    return other.state in LEAVING or other.id in now.ending


def _after(now: Cycle, gang: Gang, staying: list[Gang]) -> list[Gang]:
    """Those who come after `gang` in the order, the last first."""

    def key(of: Gang) -> tuple[Any, ...]:
        return now.policy.key(of, now.state, now.now_ms)

    mine = key(gang)
    return sorted((other for other in staying if key(other) > mine), key=key, reverse=True)


def _enough(now: Cycle, gang: Gang, after: list[Gang], shares: dict[str, Shares]) -> list[Gang]:
    """As many of `after` as let `gang` fit, none of whom can stay; released. All of them where that is not enough."""
    state = now.state
    gone: list[Gang] = []
    while not where(state, ask(gang)):
        if len(gone) == len(after):
            return gone
        gone.append(after[len(gone)])
        state.release(gone[-1])
    return [other for other in reversed(gone) if not _given_back(now, other, gang, shares[other.id])]


def _given_back(now: Cycle, other: Gang, gang: Gang, shares: Shares) -> bool:
    """Whether `other` may stay where it is and `gang` still fits; if so it is put back."""
    mark = now.state.undo.mark()
    now.state.take(other, shares)
    if not where(now.state, ask(gang)):
        now.state.undo.back_to(mark)
        return False
    return True
