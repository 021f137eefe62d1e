"""Reservations on a cluster of 600 nodes, where a cycle considers the first gang of one queue only."""

import pytest

from ganger.core.cycle.cycle import plan
from ganger.core.explain.hypothetical import hypothetical_gang
from ganger.core.fold.fold import fold
from ganger.core.reservations import queue_rotation
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import Decision, ReservedStart, Wait
from ganger.model.units import HOUR_MS
from tests.laws.policies import POLICIES
from tests.laws.safety import copy_of
from tests.pictures import picture
from tests.pictures.film import Film

QUEUES = "q= r="
JOBS = "S:2x1,q=q,time=1h T:2x1,q=r,time=1h"


@pytest.fixture
def film() -> Film:
    """Return a scenario in which a gang holds all nodes for an hour."""
    nodes = " ".join(f"n{number}:A" for number in range(600))
    return Film(POLICIES["dynamic"], f"{nodes} A,time=1h", QUEUES)


def acts(state: State, film: Film) -> list[Decision]:
    """Return the decisions of a cycle now, without pending reasons."""
    return [decision for decision in plan(state, film.now_ms, film.policy).decisions if not isinstance(decision, Wait)]


def test_each_queue_has_a_reservation_though_nothing_happens_after_the_submissions(film: Film) -> None:
    film.do(JOBS)
    film.run_cycles()
    assert [*film.state.reservations] == ["S", "T"]


def test_a_dry_run_is_what_the_next_cycle_does_however_many_events_there_were(film: Film) -> None:
    film.do("S:2x1,q=q,time=1h")
    job = picture.job("T:2x1,q=r,time=1h")
    for _ in range(4):
        film.do("step A")
        with hypothetical_gang(film.state, job, film.now_ms):
            foretold = acts(film.state, film)
        state = copy_of(film.state)
        fold(state, e.Stamped(state.seq + 1, film.now_ms, e.Submitted(job=job)))
        assert acts(state, film) == foretold
        assert [decision.gang for decision in foretold if isinstance(decision, ReservedStart)] == ["S"], (
            "the oldest is the first"
        )


def test_a_reservation_moves_earlier_after_eight_early_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_rotation, "LARGE_CLUSTER_NODES", 0)
    nodes = " ".join(f"n{name.lower()}:{name} {name},time=2h" for name in "BCDEFGHI")
    film = Film(POLICIES["dynamic"], f"na:A A,time=1h {nodes}", "")
    film.do("S:9x1,time=1h")
    film.run_cycles()
    assert film.state.reservations["S"].start_ms == film.now_ms + 2 * HOUR_MS
    for name in "BCDEFGHI":
        film.do(f"done {name}")
        film.run_cycles()
    assert film.state.reservations["S"].start_ms == film.now_ms + HOUR_MS
