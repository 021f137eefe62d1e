"""Recorded faults become outages of another cluster: laws of what is drawn, and who is held back for whom."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model import event as e
from ganger.simulation.node_outages import Faultiness, Outage, outages, period_ms
from ganger.simulation.spare_nodes import spare_moves
from ganger.simulation.traces.read_trace import read_faults
from ganger.simulation.traces.trace import NodeFault
from tests.simulator.recorded import TRACES


def fault(node: str, start_ms: int, end_ms: int) -> NodeFault:
    return NodeFault(node=node, start_ms=start_ms, end_ms=end_ms, level="", category="", detail="")


spans = st.tuples(st.integers(0, 90), st.integers(0, 40)).map(lambda of: (of[0], sum(of)))
records = st.lists(
    st.builds(lambda node, span: fault(str(node), *span), st.integers(0, 5), spans), min_size=1, max_size=12
)
rates = st.fractions(Fraction(1, 10), 4)
clusters = st.integers(1, 14).map(lambda many: [f"n{at}" for at in range(many)])
ways = st.builds(
    Faultiness,
    rate=rates,
    seed=st.integers(0, 3),
    detect_ms=st.integers(0, 9),
    repair_ms=st.one_of(st.none(), st.integers(0, 9)),
)


@given(records, clusters, ways)
def test_outages_of_a_node_are_in_order_and_apart_and_known_before_they_end(
    faults: list[NodeFault], nodes: list[str], how: Faultiness
) -> None:
    found = outages(faults, nodes, how)
    assert found == outages(faults, nodes, how)
    assert [*found] == sorted(found, key=lambda each: (each.from_ms, each.node))
    for node in nodes:
        mine = [each for each in found if each.node == node]
        assert all(before.until_ms < after.from_ms for before, after in pairwise(mine))
    assert {each.node for each in found} <= {*nodes}
    for each in found:
        assert each.known_ms == min(each.from_ms + how.detect_ms, each.until_ms)


@given(records, st.integers(0, 9))
def test_faults_of_nodes_that_there_are_stay_where_they_were(faults: list[NodeFault], seed: int) -> None:
    nodes = [str(at) for at in range(6)]
    down = {(each.node, at) for each in faults for at in range(each.start_ms, each.end_ms)}
    found = outages(faults, nodes, Faultiness(seed=seed))
    assert {(each.node, at) for each in found for at in range(each.from_ms, each.until_ms)} == down


@given(st.lists(spans, min_size=1, max_size=4, unique=True), st.integers(0, 9))
def test_a_cluster_of_other_names_has_each_node_of_the_record_once(times: list[tuple[int, int]], seed: int) -> None:
    """As many nodes as there were: the same outages in other places, none lost and none twice."""
    faults = [fault(str(at), *span) for at, span in enumerate(times)]
    found = outages(faults, [f"n{at}" for at in range(len(times))], Faultiness(seed=seed))
    assert sorted((each.from_ms, each.until_ms) for each in found) == sorted(times)


@pytest.mark.parametrize(("rate", "nodes"), [("1", 400), ("1", 1200), ("0.25", 1600), ("4", 200), ("2.5", 400)])
def test_a_rate_is_kept_whatever_the_cluster(rate: str, nodes: int) -> None:
    """Faults that last no time, so that none is hidden behind another: counted against what was asked for, within four
    standard deviations of a draw."""
    faults = [fault(str(at % 200), 5 * at, 5 * at) for at in range(400)]
    found = outages(faults, [f"n{at}" for at in range(nodes)], Faultiness(rate=Fraction(rate), seed=7, nodes=400))
    expected = len(faults) * nodes / 400 * float(Fraction(rate))
    assert abs(len(found) - expected) <= 4 * expected**0.5


def test_the_nodes_that_never_failed_are_nodes_too() -> None:
    """A record of 400 nodes names 231 of them: drawn for 400 others, as many nodes have no fault."""
    path = TRACES / "node_faults_348d.csv"
    if not path.exists():
        pytest.skip("the record is not beside this checkout")
    faults = read_faults(path).records
    found = outages(faults, [f"n{at}" for at in range(400)], Faultiness(nodes=400))
    assert len({each.node for each in found}) == len({each.node for each in faults})
    assert max(each.until_ms for each in found) == period_ms(faults)


@given(records, clusters, ways, st.integers(0, 5))
def test_so_many_nodes_take_part_as_are_not_spare_unless_too_many_are_lost(
    faults: list[NodeFault], nodes: list[str], how: Faultiness, spares: int
) -> None:
    """Walked over tick by tick, with no more than who is held back and who is known to be lost."""
    spares = min(spares, len(nodes) - 1)
    found = outages(faults, nodes, how)
    moves, held = spare_moves(nodes, found, spares), set[str]()
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


def test_a_spare_takes_over_and_who_comes_back_is_the_next_spare() -> None:
    down = Outage(node="a", from_ms=5, known_ms=7, until_ms=20)
    assert [(at_ms, type(event), getattr(event, "node", "")) for at_ms, event in spare_moves("abc", [down], 1)] == [
        (0, e.NodeCordoned, "c"),
        (7, e.NodeUncordoned, "c"),
        (20, e.NodeCordoned, "a"),
    ]
