"""Which running gangs give way to a waiting one, under a policy that orders running gangs too.

Called by `core.plan` for a gang that only lacks room. Rule: gangs after it in the order leave, the last first, until it
fits; then those that need not leave are given back, the dearest first; what it will stand on is kept from all others
in this round. Gangs that are leaving already count as gone, so nobody is stopped twice for the same room. Searching
for the cheapest victims is a later issue. Source of the fill-back step: Kueue (reference: scheduling, section 2).
"""

from dataclasses import dataclass

from ganger.core.fit import ask, fit
from ganger.core.gang import Gang
from ganger.core.policy import Policy
from ganger.core.state import State
from ganger.model.job import GangState
from ganger.model.reason import Reason, Why

LEAVING = (GangState.REQUEUEING, GangState.FAILING, GangState.STOPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """Gangs to stop, and the answer for the one they stop for; no reason: stopping cannot help it."""

    stop: tuple[Gang, ...] = ()
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """What the round is about; `ending`: gangs that are stopped in it already."""

    state: State
    now_ms: int
    policy: Policy
    ending: dict[str, None]


def victims(now: Round, gang: Gang) -> Victims:
    """Who must leave so that `gang` fits. Its future nodes are held in the state for the rest of the round."""
    state, now_ms, policy = now.state, now.now_ms, now.policy
    mine = policy.key(gang, state, now_ms)
    holding = [other for other, _ in state.holding()]
    leaving = [other for other in holding if other.state in LEAVING or other.id in now.ending]
    # One that this very round placed is still pending: it was before this gang in the order.
    staying = [other for other in holding if other not in leaving and other.state is not GangState.PENDING]
    after = [other for other in staying if policy.key(other, state, now_ms) > mine]
    after.sort(key=lambda other: policy.key(other, state, now_ms), reverse=True)
    mark = state.undo.mark()
    for other in leaving:
        state.release(other)
    gone: list[Gang] = []
    while isinstance(fit(state, ask(gang), now_ms), Reason):
        if len(gone) == len(after):
            state.undo.back_to(mark)
            return Victims()
        gone.append(after[len(gone)])
        state.release(gone[-1])
    stop = [other for other in reversed(gone) if not _given_back(state, other, gang, now_ms)]
    place = fit(state, ask(gang), now_ms)
    assert not isinstance(place, Reason), "fill-back keeps the gang's place"
    state.undo.back_to(mark)
    # The place is kept from later gangs by holding its nodes: what still runs there cannot be given away, what is
    # free there must not be.
    state.nodes.hold(share.node for share in place)
    names = tuple(other.id for other in stop) or tuple(other.id for other in leaving)
    return Victims(stop=tuple(stop), reason=Reason(why=Why.STOPPING_OTHERS, holders=names))


def _given_back(state: State, other: Gang, gang: Gang, now_ms: int) -> bool:
    """Whether `other` may stay where it is and `gang` still fits; if so it is put back."""
    assert other.start is not None, "a gang that holds nodes has a start"
    mark = state.undo.mark()
    state.take(other, other.start.shares)
    if isinstance(fit(state, ask(gang), now_ms), Reason):
        state.undo.back_to(mark)
        return False
    return True
