"""When and where a waiting gang could start at the latest, by the limits of what holds its nodes.

Called by `core.plan` to hold nodes for a gang that starves, and by `core.explain` for "until when". Reservations for
many gangs, with run times predicted, come in issue 6.
"""

from dataclasses import dataclass

from ganger.core.fit import Ask, where
from ganger.core.shortage import by_end
from ganger.core.state import State
from ganger.model.decision import NodeShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Where it could start, when (None: somebody in the way has no time limit), and who is in the way there."""

    shares: tuple[NodeShare, ...]
    at_ms: int | None
    after: tuple[str, ...]


def earliest(state: State, wanted: Ask, now_ms: int) -> Opening | None:
    """The first opening when gangs leave in the order of their limits, those without one last; None if there is none.

    Nothing else is assumed to start meanwhile. O(gangs) placements.
    """
    leaving = by_end(state.holding(), now_ms)
    with state.trial():
        at_ms: int | None = now_ms
        for gone in range(len(leaving) + 1):
            if gone:
                gang, _ = leaving[gone - 1]
                state.release(gang)
                at_ms = gang.ends_ms(now_ms)
            found = where(state, wanted)
            if found:
                there = {share.node: None for share in found}
                after = tuple(
                    gang.id for gang, shares in leaving[:gone] if any(share.node in there for share in shares)
                )
                return Opening(shares=found, at_ms=at_ms, after=after)
    return None
