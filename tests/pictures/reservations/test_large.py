"""Large jobs and their reservations beside that of the first gang of the queue."""

import pytest

from ganger.core.explain.explain import explain
from ganger.model.units import MINUTE_MS
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

CLUSTER = "n1:AA n2:BB A,time=1h B,time=2h"
COME = "S:1x2,time=2h L:2x2,time=1h M:2x2,time=1h T:1x2,time=3h"


def reservations(film: Film) -> str:
    """Return the gangs with a reservation and the minutes until their start."""
    facts = sorted(film.state.reservations.values(), key=lambda fact: (fact.start_ms or 0, fact.gang))
    return " ".join(f"{fact.gang}:{((fact.start_ms or 0) - film.now_ms) // MINUTE_MS}" for fact in facts)


@pytest.mark.parametrize(
    ("policy", "minutes", "expected"),
    [
        ("large.per_queue=5", 29, "S:31"),
        ("large.per_queue=5", 30, "S:30 L:150 M:210"),
        ("large.per_queue=1", 30, "S:30 L:150"),
        ("large.per_queue=all", 30, "S:30 L:150 M:210"),
        ("large.per_queue=0", 30, "S:30"),
        ("large.after=10m", 10, "S:50 L:170 M:230"),
        ("large.after=50m", 30, "S:30"),
        ("large.nodes=3", 30, "S:30"),
        ("large.nodes=1", 30, "S:30 L:150 M:210 T:270"),
        ("total=2", 30, "S:30 L:150"),
        ("per_queue=0", 30, "L:90 M:150"),
        ("per_queue=2", 0, "S:60 L:180"),
        ("per_queue=2", 30, "S:30 L:150 M:210 T:270"),
    ],
    ids=[
        "not before it starves",
        "all that starve, beside the first of the queue",
        "no more than the policy says",
        "all of them",
        "none",
        "sooner than it starves",
        "later than it starves",
        "on more nodes only",
        "all are large: the first is one of them",
        "no more than there may be in all",
        "they alone",
        "without waiting, where it is the next",
        "those that are large now leave room for another",
    ],
)
def test_reservations(policy: str, minutes: int, expected: str) -> None:
    film = Film(POLICIES["fifo"], CLUSTER, "")
    for action in (f"policy reservations.{policy}", COME):
        film.do(action)
    film.run_cycles()
    film.do(f"+{minutes}m")
    film.run_cycles()
    assert reservations(film) == expected


test_what_becomes_of_it = scenarios(
    {
        "a later job does not start before it, though it fits": (
            CLUSTER,
            "",
            """S:1x2,time=2h L:2x2,time=1h -> AA BB | S no_capacity, L no_capacity
               +30m                        -> AA BB | S no_capacity, L no_capacity
               +30m; done A                -> SS BB | L no_capacity, A succeeded
               T:1x2,time=3h U:1x2,time=1h -> SS BB | L no_capacity, T no_capacity, U no_capacity
               +1h; done B                 -> SS UU | L no_capacity, T no_capacity, B succeeded
               +1h; done S; done U         -> LL LL | T no_capacity, S succeeded, U succeeded""",
        ),
        "a due start waits for ending jobs, and later starts wait for it": (
            CLUSTER,
            "",
            """S:1x2,time=2h L:2x2,time=1h -> AA BB | S no_capacity, L no_capacity
               +1h; done A                 -> SS BB | L no_capacity, A succeeded
               T:2x2,time=1h               -> SS BB | L no_capacity, T no_capacity
               +1h; done B                 -> SS .. | L no_capacity, T no_capacity, B succeeded
               +1h                         -> SS .. | S stopping, L no_capacity, T no_capacity
               gone S                      -> LL LL | T no_capacity, S stopped""",
        ),
    },
    policy="fifo",
)


def test_a_job_that_is_due_keeps_its_moment_and_the_next_moves_back() -> None:
    film = Film(POLICIES["fifo"], CLUSTER, "")
    for action in ("S:1x2,time=2h L:2x2,time=1h T:2x2,time=1h", "+1h", "done A", "+1h", "done B"):
        film.do(action)
        film.run_cycles()
    assert reservations(film) == "L:60 T:120"
    film.do("+1h")
    film.run_cycles()
    assert reservations(film) == "L:0 T:61"


@pytest.mark.parametrize("policy", ["dynamic", "fifo"])
def test_explain_says_that_it_is_large(policy: str) -> None:
    film = Film(POLICIES[policy], CLUSTER, "")
    film.do(COME)
    film.run_cycles()
    factors = {name: explain(film.state, name, film.now_ms, film.policy).factors for name in ("S", "L")}
    assert [factor.name for factor in factors["L"]] == [*(factor.name for factor in factors["S"]), "size"]
    assert factors["L"][-1].value == 2
    assert factors["L"][-1].sentence == (
        "it needs 2 nodes: from an age of 30m 00s on it gets a reservation beside the first job of queue default"
    )
