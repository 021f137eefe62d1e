"""Spare nodes: held back until a node is known to be lost, in whose place one of them is released at once.

Which nodes are held back follows from the outages alone, so it is known before the run. A spare is a node that is
cordoned; the last nodes of the cluster are the first spares. A node that returns becomes the next spare, unless one is
still missing: a job that has begun on a spare is not moved.
"""

from collections.abc import Sequence

from ganger.model import event as e
from ganger.simulation.node_outages import Outage

BY = "spares"
"""Author of the requests."""
TimedRequest = tuple[int, e.Event]
"""(ms after the first submission, request)."""


def spare_requests(nodes: Sequence[str], outages: Sequence[Outage], spares: int) -> list[TimedRequest]:
    """Return the cordons, in order of time, that keep `spares` nodes in reserve when all nodes are up."""
    if not spares:
        return []
    held_back = dict.fromkeys(nodes[len(nodes) - spares :])
    lost: dict[str, None] = {}
    requests: list[TimedRequest] = [(0, e.NodeCordoned(node=node, by=BY)) for node in held_back]

    def release_spare(at_ms: int) -> None:
        spare = next((node for node in nodes if node in held_back and node not in lost), None)
        if spare is not None:
            del held_back[spare]
            requests.append((at_ms, e.NodeUncordoned(node=spare, by=BY)))

    for at_ms, is_loss, node in sorted(_changes(outages)):
        if is_loss:
            lost[node] = None
            if node not in held_back:
                release_spare(at_ms)
            continue
        del lost[node]
        missing = len(nodes) - spares - sum(name not in held_back and name not in lost for name in nodes)
        if node in held_back and missing > 0:
            release_spare(at_ms)
        elif node not in held_back and missing < 0:
            held_back[node] = None
            requests.append((at_ms, e.NodeCordoned(node=node, by=BY)))
    return requests


def _changes(outages: Sequence[Outage]) -> list[tuple[int, bool, str]]:
    """Return (ms, is a loss, node) of losses that become known, and of returns; of equal times returns sort first.

    An outage that is over before it is known is left out: its return would precede its loss.
    """
    changes = []
    for outage in outages:
        if outage.known_ms < outage.until_ms:
            changes.append((outage.known_ms, True, outage.node))
            changes.append((outage.until_ms, False, outage.node))
    return changes
