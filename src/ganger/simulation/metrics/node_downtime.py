"""The times at which nodes took no jobs, folded from the rows of a log: lost, held back, cordoned, in maintenance.

A node is lost from its failure, which may be known only later, until it returns; a node that is not listed is lost too.
A spare is a node that `spares` cordoned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.simulation.spare_nodes import BY


class Downtime(StrEnum):
    """Reasons for which a node takes no jobs."""

    SPARE = "spare"
    CORDONED = "cordoned"
    MAINTENANCE = "maintenance"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """A node, by its index, that takes no jobs from `from_ms` to `to_ms`."""

    node: int
    reason: Downtime
    from_ms: int
    to_ms: int


class NodeDowntime:
    """A reader of the rows of a run."""

    def __init__(self, nodes: Sequence[Node], failed_ms: Mapping[tuple[str, int], int] | None = None) -> None:
        """Begin with nodes that take jobs.

        failed_ms: when a node failed, by its name and the time at which its loss became known
        """
        self._index = {node.name: index for index, node in enumerate(nodes)}
        self._failed_ms = failed_ms or {}
        self._since_ms: dict[tuple[str, Downtime], int] = {}
        self._spans: list[NodeSpan] = []
        self._maintenance: dict[str, e.MaintenanceSet] = {}

    def fold(self, row: e.Stamped) -> None:
        """Fold the next row."""
        at_ms = row.at_ms
        match row.event:
            case e.NodeLost(node=name):
                self._begin(name, Downtime.LOST, self._failed_ms.get((name, at_ms), at_ms))
            case e.NodeReturned(node=name):
                self._end(name, Downtime.LOST, at_ms)
            case e.NodesListed(nodes=nodes, lost=lost):
                self._list({node.name for node in nodes} - {*lost}, at_ms)
            case e.NodeCordoned(node=name, by=by):
                self._begin(name, Downtime.SPARE if by == BY else Downtime.CORDONED, at_ms)
            case e.NodeDrained(node=name):
                self._begin(name, Downtime.CORDONED, at_ms)
            case e.NodeUncordoned(node=name):
                for reason in (Downtime.SPARE, Downtime.CORDONED):
                    self._end(name, reason, at_ms)
            case e.MaintenanceSet(id=maintenance):
                self._maintenance[maintenance] = row.event
            case e.MaintenanceCleared(id=maintenance):
                self._clear(maintenance, at_ms)
            case _:
                pass

    def spans(self, from_ms: int, to_ms: int) -> Iterator[NodeSpan]:
        """Yield the spans within a time, the reasons in the order of `Downtime`."""
        open_spans = [
            NodeSpan(self._index[name], reason, since_ms, to_ms) for (name, reason), since_ms in self._since_ms.items()
        ]
        planned = [span for window in self._maintenance.values() for span in self._window(window, window.until_ms)]
        found = [*self._spans, *open_spans, *planned]
        for reason in Downtime:
            for span in found:
                begin_ms, end_ms = max(span.from_ms, from_ms), min(span.to_ms, to_ms)
                if span.reason is reason and begin_ms < end_ms:
                    yield NodeSpan(span.node, reason, begin_ms, end_ms)

    def _list(self, present: set[str], at_ms: int) -> None:
        for name in self._index:
            if name in present:
                self._end(name, Downtime.LOST, at_ms)
            else:
                self._begin(name, Downtime.LOST, at_ms)

    def _begin(self, name: str, reason: Downtime, at_ms: int) -> None:
        if name in self._index:
            self._since_ms.setdefault((name, reason), at_ms)

    def _end(self, name: str, reason: Downtime, at_ms: int) -> None:
        since_ms = self._since_ms.pop((name, reason), None)
        if since_ms is not None:
            self._spans.append(NodeSpan(self._index[name], reason, since_ms, at_ms))

    def _clear(self, maintenance: str, at_ms: int) -> None:
        window = self._maintenance.pop(maintenance, None)
        if window is not None:
            self._spans.extend(self._window(window, min(at_ms, window.until_ms)))

    def _window(self, window: e.MaintenanceSet, until_ms: int) -> Iterable[NodeSpan]:
        return [
            NodeSpan(self._index[name], Downtime.MAINTENANCE, window.from_ms, until_ms)
            for name in window.nodes
            if name in self._index
        ]
