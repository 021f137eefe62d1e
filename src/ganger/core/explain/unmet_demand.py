"""Unmet demand: the pending gangs that more nodes would start, by their published reasons.

The metrics show it, and a controller requests nodes for it from the autoscaler of its cluster.
"""

from collections.abc import Iterator
from typing import Final

from ganger.core.state.gang import Gang, class_text
from ganger.core.state.state import State
from ganger.model.pending_reason import PendingReason, ReasonCode

MORE_NODES_HELP: Final = (ReasonCode.NO_CAPACITY, ReasonCode.NO_NODE)
"""Reasons of gangs that wait for nodes and not for quota, an order or a pause."""


def short_of_nodes(state: State, since_ms: int) -> list[tuple[Gang, PendingReason]]:
    """Return the gangs that more nodes would start and that are pending since `since_ms` or before, oldest first."""
    return sorted(_short_of_nodes(state, since_ms), key=lambda found: (found[0].since_ms, found[0].number))


def _short_of_nodes(state: State, since_ms: int) -> Iterator[tuple[Gang, PendingReason]]:
    for key, gangs in state.pending.classes.items():
        reason = state.pending.reasons.get(class_text(key))
        if reason is not None and reason.code in MORE_NODES_HELP:
            yield from ((gang, reason) for gang in gangs if gang.since_ms <= since_ms)
