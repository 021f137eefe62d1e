"""Contradictory records: two gangs hold the same devices, and one of them started later."""

from dataclasses import replace

from ganger.core.fold.fold import fold
from ganger.core.state.allocations.allocations import reallocated_nodes
from ganger.core.state.state import State
from ganger.engine.query.state_replica import copy_of
from ganger.model import event as e
from ganger.policies import fifo
from tests.pictures.film import Film


def test_who_began_last_has_the_devices_and_the_other_can_leave() -> None:
    film = Film(fifo, "n1:.. n2:..", "")
    film.do("A:2x2")
    film.run_cycles()
    before = copy_of(film.state).gangs["A"]
    film.do("up A")
    film.do("done A")
    film.do("B:1x2")
    film.run_cycles()
    image = film.state.image()
    image = replace(image, gangs=[before, *image.gangs])
    (taken,) = film.state.gangs["B"].nodes
    assert reallocated_nodes(image.gangs) == {"A": {taken: None}}

    state = State(image)
    state.validate()
    assert [share.node for share in state.allocations["B"]] == [taken]
    assert [share.node for share in state.allocations["A"]] == [node for node in before.nodes if node != taken]
    fold(state, e.Stamped(state.seq + 1, state.at_ms, e.StopRequested(gang="A")))
    for node in before.nodes:
        fold(state, e.Stamped(state.seq + 1, state.at_ms, e.Cleared(gang="A", generation=1, nodes=(node,))))
        state.validate()
    assert [share.node for share in state.allocations["B"]] == [taken]
    assert "A" not in state.allocations
