"""Outages drawn from recorded faults, and the spare nodes that replace lost ones."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model import event as e
from ganger.simulation.node_outages import FaultModel, Outage, draw_outages, record_length_ms
from ganger.simulation.spare_nodes import spare_requests
from ganger.simulation.traces.read_trace import read_faults
from ganger.simulation.traces.trace import NodeFault
from tests.simulator.trace_samples import TRACES


def fault(node: str, start_ms: int, end_ms: int) -> NodeFault:
    return NodeFault(node=node, start_ms=start_ms, end_ms=end_ms, level="", category="", detail="")


spans = st.tuples(st.integers(0, 90), st.integers(0, 40)).map(lambda of: (of[0], sum(of)))
records = st.lists(
    st.builds(lambda node, span: fault(str(node), *span), st.integers(0, 5), spans), min_size=1, max_size=12
)
rates = st.fractions(Fraction(1, 10), 4)
clusters = st.integers(1, 14).map(lambda many: [f"n{at}" for at in range(many)])
ways = st.builds(
    FaultModel,
    rate=rates,
    seed=st.integers(0, 3),
    detect_ms=st.integers(0, 9),
    repair_ms=st.one_of(st.none(), st.integers(0, 9)),
)


@given(records, clusters, ways)
def test_outages_of_a_node_are_in_order_and_apart_and_known_before_they_end(
    faults: list[NodeFault], nodes: list[str], how: FaultModel
) -> None:
    found = draw_outages(faults, nodes, how)
    assert found == draw_outages(faults, nodes, how)
    assert [*found] == sorted(found, key=lambda each: (each.from_ms, each.node))
    for node in nodes:
        mine = [each for each in found if each.node == node]
        assert all(before.until_ms < after.from_ms for before, after in pairwise(mine))
    assert {each.node for each in found} <= {*nodes}
    for each in found:
        assert each.known_ms == min(each.from_ms + how.detect_ms, each.until_ms)


@given(records, st.integers(0, 9))
def test_faults_of_existing_nodes_stay_on_their_nodes(faults: list[NodeFault], seed: int) -> None:
    nodes = [str(at) for at in range(6)]
    down = {(each.node, at) for each in faults for at in range(each.start_ms, each.end_ms)}
    found = draw_outages(faults, nodes, FaultModel(seed=seed))
    assert {(each.node, at) for each in found for at in range(each.from_ms, each.until_ms)} == down


@given(st.lists(spans, min_size=1, max_size=4, unique=True), st.integers(0, 9))
def test_a_cluster_of_other_names_has_each_node_of_the_record_once(times: list[tuple[int, int]], seed: int) -> None:
    """With as many nodes as in the record, the same outages are on other nodes, none lost and none twice."""
    faults = [fault(str(at), *span) for at, span in enumerate(times)]
    found = draw_outages(faults, [f"n{at}" for at in range(len(times))], FaultModel(seed=seed))
    assert sorted((each.from_ms, each.until_ms) for each in found) == sorted(times)


@pytest.mark.parametrize(("rate", "nodes"), [("1", 400), ("1", 1200), ("0.25", 1600), ("4", 200), ("2.5", 400)])
def test_a_rate_is_kept_whatever_the_cluster(rate: str, nodes: int) -> None:
    """The number of faults is within four standard deviations; they last no time, so that none hides another."""
    faults = [fault(str(at % 200), 5 * at, 5 * at) for at in range(400)]
    found = draw_outages(faults, [f"n{at}" for at in range(nodes)], FaultModel(rate=Fraction(rate), seed=7, nodes=400))
    expected = len(faults) * nodes / 400 * float(Fraction(rate))
    assert abs(len(found) - expected) <= 4 * expected**0.5


def test_nodes_that_never_failed_are_drawn_too() -> None:
    """A record of 400 nodes names 231 of them; drawn for 400 others, as many nodes have no fault."""
    path = TRACES / "node_faults_348d.csv"
    if not path.exists():
        pytest.skip("the record is not beside this checkout")
    faults = read_faults(path).records
    found = draw_outages(faults, [f"n{at}" for at in range(400)], FaultModel(nodes=400))
    assert len({each.node for each in found}) == len({each.node for each in faults})
    assert max(each.until_ms for each in found) == record_length_ms(faults)


@given(records, clusters, ways, st.integers(0, 5))
def test_all_but_the_spares_are_in_service_unless_too_many_are_lost(
    faults: list[NodeFault], nodes: list[str], how: FaultModel, spares: int
) -> None:
    """The requests are replayed tick by tick, with the nodes that are held back and those that are known to be lost."""
    spares = min(spares, len(nodes) - 1)
    found = draw_outages(faults, nodes, how)
    moves, held = spare_requests(nodes, found, spares), set[str]()
    assert [at_ms for at_ms, _ in moves] == sorted(at_ms for at_ms, _ in moves)
    for now_ms in range(max((each.until_ms for each in found), default=0) + 2):
        for at_ms, event in moves:
            if at_ms == now_ms and isinstance(event, e.NodeCordoned):
                assert event.node not in held
                held.add(event.node)
            elif at_ms == now_ms and isinstance(event, e.NodeUncordoned):
                held.remove(event.node)
        lost = {each.node for each in found if each.known_ms <= now_ms < each.until_ms}
        there = [node for node in nodes if node not in lost]
        assert sum(node not in held for node in there) == min(len(there), len(nodes) - spares)


def test_a_spare_takes_over_and_a_returned_node_is_the_next_spare() -> None:
    down = Outage(node="a", from_ms=5, known_ms=7, until_ms=20)
    assert [(at_ms, type(event), getattr(event, "node", "")) for at_ms, event in spare_requests("abc", [down], 1)] == [
        (0, e.NodeCordoned, "c"),
        (7, e.NodeUncordoned, "c"),
        (20, e.NodeCordoned, "a"),
    ]
