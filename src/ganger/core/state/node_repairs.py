"""Times that lost nodes take to come back, and the time for which a gang keeps its other nodes meanwhile.

A gang that frees its healthy nodes when it loses one has to find all of them anew, in a cluster where other jobs wait
for them; one that keeps them needs one node. But what it keeps is idle, so it keeps it no longer than a repair is
expected to take: by then the node is back, or nobody knows when it will be.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Final

from ganger.model.units import MINUTE_MS

FIRST_REPAIR_MS: Final = 10 * MINUTE_MS
"""Expected repair before enough are known: a server with GPUs starts again within that time."""
MIN_REPAIRS: Final = 3
"""Repairs that are enough to expect their median: a single one may be an outlier."""
MAX_REPAIRS: Final = 9
"""Newest repairs that count: what is repaired changes, and an odd number has a median among them."""
MARGIN_PERCENT: Final = 110
"""Time for which a gang keeps nodes, in per cent of the expected repair: half of all repairs take longer than that."""
MIN_KEPT_MS: Final = MINUTE_MS
"""Shortest such time, where nodes come back at once: the processes on the other nodes take some of it to end."""
MAX_KEPT_MS: Final = 30 * MINUTE_MS
"""Longest time for which a gang keeps idle nodes, however long repairs take: a short job would run in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRepairs:
    """Nodes that are lost, each with its time (Unix ms), and for how long the newest that came back had been away."""

    lost: tuple[tuple[str, int], ...] = ()
    took_ms: tuple[int, ...] = ()

    def lose(self, nodes: Iterable[str], at_ms: int) -> "NodeRepairs":
        """Return the repairs after nodes were lost."""
        known = dict(self.lost)
        return replace(self, lost=(*self.lost, *((node, at_ms) for node in nodes if node not in known)))

    def bring_back(self, nodes: Collection[str], at_ms: int) -> "NodeRepairs":
        """Return the repairs after nodes are there again."""
        took_ms = tuple(at_ms - lost_ms for node, lost_ms in self.lost if node in nodes)
        rest = tuple(entry for entry in self.lost if entry[0] not in nodes)
        return NodeRepairs(lost=rest, took_ms=(*self.took_ms, *took_ms)[-MAX_REPAIRS:]) if took_ms else self

    def forget(self, nodes: Collection[str]) -> "NodeRepairs":
        """Return the repairs without nodes that have left the cluster for good."""
        rest = tuple(entry for entry in self.lost if entry[0] not in nodes)
        return replace(self, lost=rest)

    @property
    def kept_ms(self) -> int:
        """The time for which a gang that loses a node now keeps the others."""
        expected_ms = median_low(self.took_ms) if len(self.took_ms) >= MIN_REPAIRS else FIRST_REPAIR_MS
        return max(MIN_KEPT_MS, min(MAX_KEPT_MS, expected_ms * MARGIN_PERCENT // 100))
