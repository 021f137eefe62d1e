"""The times at which nodes took no jobs, folded from the rows of a log."""

import pytest

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.simulation.metrics.node_downtime import Downtime, NodeDowntime
from ganger.simulation.spare_nodes import BY

WINDOW = e.MaintenanceSet(id="m", nodes=("a",), from_ms=300, until_ms=500)
NODES = [Node(name="a", gpus=8), Node(name="b", gpus=8)]


def found(*rows: tuple[int, e.Event], failed_ms: dict[tuple[str, int], int] | None = None) -> list[tuple[object, ...]]:
    downtime = NodeDowntime(NODES, failed_ms)
    for seq, (at_ms, event) in enumerate(rows, 1):
        downtime.fold(e.Stamped(seq=seq, at_ms=at_ms, event=event))
    return [(NODES[span.node].name, span.reason, span.from_ms, span.to_ms) for span in downtime.spans(100, 900)]


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        ([(200, e.NodeLost(node="a")), (300, e.NodeReturned(node="a"))], [("a", Downtime.LOST, 200, 300)]),
        ([(200, e.NodeLost(node="b"))], [("b", Downtime.LOST, 200, 900)]),
        ([(50, e.NodeLost(node="a")), (90, e.NodeReturned(node="a"))], []),
        ([(150, e.NodesListed(nodes=(NODES[0],))), (250, e.NodesListed(nodes=tuple(NODES)))],
         [("b", Downtime.LOST, 150, 250)]),
        ([(0, e.NodeCordoned(node="b", by=BY)), (400, e.NodeUncordoned(node="b", by=BY))],
         [("b", Downtime.SPARE, 100, 400)]),
        ([(200, e.NodeDrained(node="a", by="ada")), (300, e.NodeCordoned(node="a", by="ada"))],
         [("a", Downtime.CORDONED, 200, 900)]),
        ([(100, e.MaintenanceSet(id="m", nodes=("a", "b", "gone"), from_ms=300, until_ms=500))],
         [("a", Downtime.MAINTENANCE, 300, 500), ("b", Downtime.MAINTENANCE, 300, 500)]),
        ([(100, WINDOW), (400, e.MaintenanceCleared(id="m"))],
         [("a", Downtime.MAINTENANCE, 300, 400)]),
        ([(100, WINDOW), (200, e.MaintenanceCleared(id="m"))],
         []),
        ([(0, e.NodeCordoned(node="b", by=BY)), (200, e.NodeLost(node="b")), (250, e.NodeReturned(node="b"))],
         [("b", Downtime.SPARE, 100, 900), ("b", Downtime.LOST, 200, 250)]),
    ],
)  # fmt: skip
def test_nodes_take_no_jobs(rows: list[tuple[int, e.Event]], spans: list[tuple[object, ...]]) -> None:
    assert found(*rows) == spans


def test_a_node_is_lost_from_its_failure_on() -> None:
    rows = ((250, e.NodeLost(node="a")), (300, e.NodeReturned(node="a")))
    assert found(*rows, failed_ms={("a", 250): 180}) == [("a", Downtime.LOST, 180, 300)]
