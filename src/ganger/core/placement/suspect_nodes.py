"""Suspect nodes in placement: large gangs avoid them, small ones take them so that large ones can, each user a share.

A fault of one node ends all of a gang, so that it costs the more the larger the gang is. While gangs of at least
`suspicion.large` nodes run, smaller ones therefore take suspect nodes before others that are as good for them. They are
spread fairly: once a user's gangs are on as many of the suspect nodes as is the user's share of the GPUs in use,
further ones avoid them where they can.
"""

from ganger.core.queues.quota import NO_CHARGE, need
from ganger.core.state.gang import Gang
from ganger.core.state.state import State


def takes_suspects(state: State, gang: Gang) -> bool:
    """Return whether a gang takes suspect nodes before others that are as good for it."""
    large = state.document.node_health.suspicion.large
    return bool(state.health.suspicions) and gang.shape.all_nodes < large and state.allocations.has_gang_of(large)


def suspects_to_avoid(state: State, gang: Gang) -> tuple[str, ...]:
    """Return the nodes that a gang avoids where it can because of their faults, the least suspect first."""
    suspicions = state.health.suspicions
    is_large = gang.shape.all_nodes >= state.document.node_health.suspicion.large
    if not suspicions or not (is_large or _has_its_share(state, gang)):
        return ()
    return tuple(sorted(suspicions, key=lambda name: (suspicions[name], name)))


def share_of_suspects(state: State, gang: Gang) -> int:
    """Return on how many suspect nodes the gangs of a gang's user may be, this one included, rounded up.

    Users of nodes without GPUs may be on any number.
    """
    suspects, own = len(state.health.suspicions), need(gang.shape)[0]
    of_user = state.tree.users.get((0, gang.job.user), NO_CHARGE).gpu_milli + own
    in_use = state.fair_shares.queues[0].held[0] + own
    return -(-suspects * of_user // in_use) if in_use else suspects


def _has_its_share(state: State, gang: Gang) -> bool:
    """Return whether the gangs of a gang's user are on the user's share of the suspect nodes. O(suspect nodes)."""
    share, held = share_of_suspects(state, gang), 0
    for node in state.health.suspicions:
        names = state.allocations.gangs_on_node.get(node, ())
        held += any(state.gangs[name].job.user == gang.job.user for name in names)
        if held >= share:
            return True
    return False
