"""Spare nodes: held back until a node is known to be lost, whose place one of them takes at once.

Pure: who is held back follows from the outages alone, so that it is known beforehand. Called by `simulation.run`. A
spare is a node that is cordoned; the last nodes of the cluster are the first spares. A node that comes back is the next
spare, unless one is still missing: a job that has begun on a spare is not moved for it.
"""

from collections.abc import Sequence

from ganger.model import event as e
from ganger.simulation.node_outages import Outage

BY = "spares"
Move = tuple[int, e.Event]
"""When, in ms after the first submission, and what is asked for then."""


def spare_moves(nodes: Sequence[str], outages: Sequence[Outage], spares: int) -> list[Move]:
    """What whoever runs the cluster asks for, in order of time, so that `spares` nodes are in reserve when all are
    there."""
    if not spares:
        return []
    held = dict.fromkeys(nodes[len(nodes) - spares :])
    lost: dict[str, None] = {}
    moves: list[Move] = [(0, e.NodeCordoned(node=node, by=BY)) for node in held]

    def release(at_ms: int) -> None:
        """One spare takes part, if there is any."""
        spare = next((node for node in nodes if node in held and node not in lost), None)
        if spare is not None:
            del held[spare]
            moves.append((at_ms, e.NodeUncordoned(node=spare, by=BY)))

    for at_ms, is_lost, node in sorted(_changes(outages)):
        if is_lost:
            lost[node] = None
            if node not in held:
                release(at_ms)
            continue
        del lost[node]
        missing = len(nodes) - spares - sum(name not in held and name not in lost for name in nodes)
        if node in held and missing > 0:
            release(at_ms)
        elif node not in held and missing < 0:
            held[node] = None
            moves.append((at_ms, e.NodeCordoned(node=node, by=BY)))
    return moves


def _changes(outages: Sequence[Outage]) -> list[tuple[int, bool, str]]:
    """Losses as they become known, and returns, which come first where both are at once; but a loss of no time is
    before its own return."""
    found = []
    for outage in outages:
        if outage.known_ms < outage.until_ms:
            found.append((outage.known_ms, True, outage.node))
            found.append((outage.until_ms, False, outage.node))
    return found
