"""The fold of a request to move running gangs. It is refused unless all moves are possible at once.

The cycle that is planned at the same time carries it out (`core.cycle.defrag`); after that it is void.
"""

from collections.abc import Sequence

import numpy as np

from ganger.core.state.allocations.allocations import added_shares
from ganger.core.state.state import State
from ganger.model.decision import Move
from ganger.model.event import DefragRequested
from ganger.model.job import GangState


def refusal(state: State, request: DefragRequested) -> str | None:
    """Return the reason why the moves are not possible, or None."""
    for move in request.moves:
        gang = state.gangs.get(move.gang)
        if gang is None or gang.state is not GangState.RUNNING or gang.attempt.generation != move.generation:
            return f"{move.gang} does not run any more as it did"
        if not gang.job.spec.movable:
            return f"{move.gang} does not have movable: true"
    target = state.gangs.get(request.gang)
    if request.gang and (target is None or target.state is not GangState.PENDING):
        return f"{request.gang} is not pending any more"
    return None if _have_room(state, request.moves) else "what was free for the moves is not free any more"


def _have_room(state: State, moves: Sequence[Move]) -> bool:
    """Return whether what the gangs get on other nodes than theirs is free, for all of them at once."""
    nodes = state.nodes
    with state.trial():
        for move in moves:
            gang = state.gangs[move.gang]
            shares = added_shares(state.allocations[gang.id], move.shares)
            if not all(share.node in nodes.index and nodes.ready[nodes.index[share.node]] for share in shares):
                return False
            try:
                nodes.take(gang.number, gang.shape, shares)
            except ValueError:
                return False
        return all(bool(np.all(amount >= 0)) for amount in nodes.free)
