"""Spare nodes: a gang holds them beside those of its ranks, and its next attempt takes one over for each node it loses.

They are placed with the gang, as if it had that many nodes more, and are charged like them. One that is lost or taken
over is replaced when a node is free in the domain.

Until they are needed they are lent to gangs that give way at once. What is lent remains the lender's, for the nodes and
in the accounts: the borrower's start takes nothing from the nodes, and nothing is free there when it ends.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ganger.core.state.gang import ACTIVE, Gang
from ganger.core.state.state import Shares, State
from ganger.core.state.timers import may_lend


def split(gang: Gang, shares: Shares) -> tuple[Shares, Shares]:
    """Return what the ranks of a gang get of its shares, and its spares: the last ones in the order of the topology."""
    count = len(shares) - (gang.job.spec.spares or 0)
    return shares[:count], tuple(replace(share, ranks=()) for share in shares[count:])


def takeover(state: State, gang: Gang, lost: Collection[str]) -> Shares:
    """Return the shares of the next attempt of a running gang that loses nodes, with a spare for each of them.

    There are none if it has too few spares that accept gangs, or is being stopped.
    """
    start = gang.attempt.start
    if start is None or not start.spares or gang.state not in ACTIVE:
        return ()
    closed = (*lost, *state.maintenance.affected_nodes(state.at_ms))
    spares = [share for share in start.spares if is_usable(state, share.node) and share.node not in closed]
    missing = {share.node: None for share in start.shares if share.node in lost}
    if len(spares) < len(missing) or any(share.node not in (*gang.attempt.left, *missing) for share in start.shares):
        return ()
    spare_for = dict(zip(missing, spares, strict=False))
    return tuple(
        replace(spare_for[share.node], ranks=share.ranks) if share.node in spare_for else share
        for share in start.shares
    )


def give_up(state: State, gang: Gang, nodes: Collection[str], at_ms: int) -> bool:
    """Free the spares of a gang on these nodes, which it cannot take over any more; return whether there are any."""
    start = gang.attempt.start
    if start is None or not any(share.node in nodes for share in start.spares):
        return False
    kept = tuple(share for share in start.spares if share.node not in nodes)
    gang.attempt.start = replace(start, spares=kept)
    gang.attempt.lost_spares += tuple(share.node for share in start.spares if share.node in nodes)
    state.reallocate(gang, at_ms)
    return True


def recall(state: State, at_ms: int) -> tuple[Gang, ...]:
    """Have gangs leave the nodes that others do not lend them any more, and return those gangs.

    Until it has left, a gang holds itself what its lender has given up.
    """
    changed: dict[str, Gang] = {}
    for gang in (gang for gang in state.timers.borrowers.values() if gang.attempt.lent):
        attempt, lent = gang.attempt, still_lent(state.gangs, gang)
        if lent != attempt.lent:
            shares = state.allocations[gang.id]
            state.end_allocation(gang, at_ms)
            attempt.lent, attempt.began_ms = lent, at_ms
            state.take(gang, shares)
            state.begin_usage(gang)
            changed[gang.id] = gang
        if not attempt.recalled_by and gang.state in ACTIVE and (lender := recalling(state.gangs, gang)):
            attempt.recalled_by = lender
            changed[gang.id] = gang
    return tuple(changed.values())


def still_lent(gangs: Mapping[str, Gang], gang: Gang) -> tuple[str, ...]:
    """Return the nodes of a gang, on spares of others, that these still hold."""
    lender_of = lenders(gang)
    held_by = {name: gangs[name].attempt.held for name in lender_of.values() if name in gangs}
    held = {name: {share.node: None for share in shares} for name, shares in held_by.items()}
    return tuple(node for node in gang.attempt.lent if node in held.get(lender_of[node], ()))


def recalling(gangs: Mapping[str, Gang], gang: Gang) -> str:
    """Return a gang that needs a spare which another one is on, or does not hold it any more; empty if none does."""
    for node, name in lenders(gang).items():
        lender = gangs.get(name)
        is_lent = lender is not None and may_lend(lender) and node in (share.node for share in lender.attempt.spares)
        if not is_lent:
            return name
    return ""


def lenders(gang: Gang) -> dict[str, str]:
    """Return, by node, the gangs whose spares a gang has started on."""
    start = gang.attempt.start
    return dict(zip((share.node for share in start.shares), start.lenders, strict=False)) if start else {}


def is_clear(state: State, gang: Gang) -> bool:
    """Return whether no gang is left on the spares that the next attempt of another one takes over."""
    borrowers = [other for other in state.timers.borrowers.values() if other.id in state.allocations]
    return not any(
        share.node in other.attempt.lent and gang.is_bound_for(share.node)
        for other in borrowers
        for share in state.allocations[other.id]
    )


def missing(gang: Gang) -> int:
    """Return how many spares a gang lacks: it has lost them, or taken them over."""
    return (gang.job.spec.spares or 0) - len(gang.attempt.spares)


def is_usable(state: State, node: str) -> bool:
    """Return whether a node exists and accepts gangs."""
    return node in state.nodes.index and bool(state.nodes.ready[state.nodes.index[node]])
