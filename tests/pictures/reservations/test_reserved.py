"""Reservations: what may start before one and what may not."""

import pytest

from ganger.model.decision import ReservationCause
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

HALF = "n1:AA.. n2:.... A,time=1h"

test_reserved_start = scenarios(
    {
        "a job that ends before it may start, a longer one waits": (
            HALF,
            "",
            """S:2x4,time=2h              -> AA.. .... | S no_capacity
               D:1x2,time=30m E:1x2,time=2h -> AADD .... | S no_capacity, E reserved
               +30m; done D               -> AA.. .... | S no_capacity, E reserved, D succeeded
               +30m; done A               -> SSSS SSSS | E no_capacity, A succeeded""",
        ),
        "to the millisecond": (
            HALF,
            "",
            "S:2x4,time=2h D:1x2,time=1h E:1x1,time=61m -> AADD .... | S no_capacity, E reserved",
        ),
        "shortened to fit before it": (
            HALF,
            "",
            """S:2x4,time=2h D:1x2,time=3h,least=30m -> AADD .... | S no_capacity
               +59m                               -> AADD .... | S no_capacity
               +1m; done A                        -> ..DD .... | S no_capacity, D stopping, A succeeded""",
        ),
        "no shorter than necessary": (
            HALF,
            "",
            """S:2x4,time=2h D:1x2,time=3h,least=61m E:1x1,time=3h,least=1h -> AAE. .... | S no_capacity, D reserved""",
        ),
        "its full time where capacity is free": (
            "n1:AA.. n2:.... n3:.. A,time=1h",
            "",
            "S:2x4,time=2h D:1x2,time=3h,least=30m -> AA.. .... DD | S no_capacity",
        ),
        "without a limit it never ends": (
            HALF,
            "",
            "S:2x4,time=2h D:1x2 -> AA.. .... | S no_capacity, D reserved",
        ),
        "beside it any job may start": (
            "n1:AA.. n2:.... n3:.. A,time=1h",
            "",
            "S:2x4,time=2h D:1x2 -> AA.. .... DD | S no_capacity",
        ),
        "a requeued job goes before it": (
            "n1:AAAA A,time=1h",
            "",
            """C:1x4,time=1h           -> AAAA | C no_capacity
               +10m; saves A; fails A -> AAAA | A requeueing, C no_capacity
               gone A                 -> AAAA | C no_capacity""",
        ),
        "reserved quota": (
            "n1:AA...... A,q=q,time=1h",
            "q=4,borrow=0",
            """S:1x4,q=q,time=1h                    -> AA...... | S over_quota
               D:1x1,q=q,time=30m E:1x1,q=q,time=2h -> AAD..... | S over_quota, E reserved""",
        ),
        "quota of the reserved type, though any type would do": (
            "n1:AA......,h100 n2:.,a100 A,q=q,time=1h",
            "q=,h100=3,h100.borrow=0,a100=4",
            """S:1x3,q=q,time=1h     -> AA...... . | S over_quota
               E:1x1h100,q=q,time=2h -> AA...... . | S over_quota, E reserved
               D:1x1h100,q=q,time=1h -> AAD..... . | S over_quota, E over_quota""",
        ),
        "shares of several parts that need more GPUs after a job on one of them ends": (
            "n1:.... n2:BBB B,time=1h",
            "",
            """A:1x0,milli=500,time=1h S:2x3,time=1h -> (A)... BBB | S no_capacity
               C:1x0,milli=500,roles=600,time=2h     -> (A)... BBB | S no_capacity, C reserved
               D:1x0,milli=500,time=2h               -> (AD)... BBB | S no_capacity, C reserved""",
        ),
        "Kueue 6947: a job that can never start was always tried first, and others were preempted for it": (
            HALF,
            "",
            "S:1x8,time=1h D:1x2,time=9h -> AADD .... | S no_node",
        ),
    },
    policy="dynamic",
)


@pytest.mark.parametrize("change", ["reservations.total=0", "order=las"])
def test_a_policy_without_reservations_ends_standing_ones(change: str) -> None:
    """Check what was wrong: no gang could get a new one, but those that had one kept it."""
    film = Film(POLICIES["dynamic"], "n1:AAAA A,time=9h", "")
    film.play("S:1x4,time=1h -> AAAA | S no_capacity")
    assert [*film.state.reservations] == ["S"]
    film.play(f"policy {change} -> AAAA | S no_capacity")
    assert not film.state.reservations


@pytest.mark.parametrize("policy", ["dynamic", "priority", "fair_share"])
def test_a_reservation_does_not_keep_a_job_of_higher_priority_from_starting(policy: str) -> None:
    """Check what was wrong: a job of priority 1000 waited for the reservation of a job of priority 0."""
    film = Film(POLICIES[policy], "n1:AA.. A,time=1h", "")
    film.play("""S:1x4,time=20h            -> AA.. | S no_capacity
                 P:1x2,time=2h,prio=1000   -> AAPP | S no_capacity""")
    reserved = film.state.reservations["S"]
    assert (reserved.start_ms, reserved.cause) == (film.now_ms + 2 * HOUR_MS, ReservationCause.HIGHER_PRIORITY)


@pytest.mark.parametrize("policy", ["dynamic", "priority", "fair_share"])
def test_a_job_of_higher_priority_reserves_before_one_of_lower_priority(policy: str) -> None:
    """Check what was wrong: a job of priority 0 that was first in its queue kept its reservation."""
    film = Film(POLICIES[policy], "n1:AAAA A,time=1h", "")
    film.play("""policy preemption.priority=none -> AAAA
                 S:1x4,time=20h            -> AAAA | S no_capacity
                 P:1x4,time=2h,prio=1000   -> AAAA | S no_capacity, P no_capacity""")
    assert [*film.state.reservations] == ["P"]
    film.play("ends A; gone A -> PPPP | S no_capacity, A succeeded")


def test_a_job_within_a_guarantee_moves_the_reservation_of_one_beyond_it() -> None:
    """Check what was wrong: a queue within its guarantee waited for the reservation of one beyond its own."""
    film = Film(POLICIES["fifo"], "n1:AA.. A,q=r,time=1h", "q=2 r=2")
    film.play("""S:1x4,q=r,time=20h -> AA.. | S no_capacity
                 P:1x2,q=q,time=2h  -> AAPP | S no_capacity""")
    assert film.state.reservations["S"].cause is ReservationCause.GUARANTEE


def test_a_gang_overtaken_by_a_restart_gets_a_reserved_start() -> None:
    film = Film(POLICIES["fifo"], "n1:....", "")
    film.play("""A:1x4,time=5m C:1x4,time=5m -> AAAA | C no_capacity
                 maintain n1 0m 1m           -> AAAA | A requeueing, C no_capacity
                 gone A                      -> .... | A maintenance, C maintenance
                 +1m                         -> AAAA | C no_capacity""")
    reserved = film.state.reservations["C"]
    assert (reserved.start_ms, reserved.cause) == (film.now_ms + 5 * MINUTE_MS, ReservationCause.RESTARTED)


def test_a_share_of_memory_that_one_node_alone_has_is_reserved_beside_one_that_any_has() -> None:
    film = Film(POLICIES["fifo"], "n1:A,gmem=8 n2:... A,time=1h", "")
    film.play("S:1x0,gmem=8,roles=500,time=1h -> A ... | S no_capacity")
    reserved = film.state.reservations["S"]
    assert (reserved.start_ms, reserved.nodes[0]) == (film.now_ms + HOUR_MS, "n1")


def test_a_reservation_whose_node_loses_a_gpu_to_others_moves_to_another() -> None:
    film = Film(POLICIES["fifo"], "n1:AA.. n2:BBBB A,time=1h B,time=3h", "")
    film.play("""S:1x4,time=1h            -> AA.. BBBB | S no_capacity
                 list n1:...@ n2:....     -> AA.@ BBBB | S no_capacity""")
    reserved = film.state.reservations["S"]
    assert (reserved.start_ms, reserved.nodes, reserved.cause) == (
        film.now_ms + 3 * HOUR_MS,
        ("n2",),
        ReservationCause.NODE_UNAVAILABLE,
    )


def test_the_others_keep_their_reservations_when_one_of_them_gives_up() -> None:
    film = Film(POLICIES["conservative"], "n1:AAAA A,time=1h", "")
    film.play("""S:1x4,time=1h,wait=30m T:1x4,time=1h -> AAAA | S no_capacity, T no_capacity
                 +30m                                 -> AAAA | T no_capacity, S stopped""")
    reserved = film.state.reservations["T"]
    assert (reserved.start_ms, reserved.cause) == (film.now_ms + 30 * MINUTE_MS, ReservationCause.EARLIER)


def test_each_is_moved_earlier_in_its_turn_however_many_there_are() -> None:
    film = Film(POLICIES["conservative"], "n1:A,h100 n2:B,a100 A,time=1h B,time=1h", "")
    film.do(" ".join(f"{name}:1x1h100,time=1h" for name in "CDEFGHIJ"))
    film.do("P:1x1a100,time=10h N:1x1a100,time=1h")
    film.run_cycles()
    last = film.state.reservations["N"]
    assert last.start_ms == film.now_ms + 11 * HOUR_MS
    film.do("stop P")
    for _ in range(2):  # the first withdraws P's reservation
        film.run_cycles()
    assert film.state.reservations["N"].start_ms == film.now_ms + HOUR_MS


test_overdue = scenarios(
    {
        "of two that were due while no server ran, the first starts, and none waits for the other": (
            "s1/r2/n0:.... s1/r1/n1:.... s1/r2/n2:....",
            "a=8,borrow=0 b=4,in=a",
            """A:2x4,q=b,time=10m                  -> .... AAAA AAAA
               J:2x4,q=b,time=10m,max=1            -> .... AAAA AAAA | J over_quota
               K:2x4,q=a,prio=-5,in=rack,must; +1h -> .... AAAA AAAA | A stopping, J over_quota, K over_quota
               gone A; +70m                        -> .... JJJJ JJJJ | K over_quota, A stopped
               done J                              -> .... KKKK KKKK | J succeeded""",
        ),
    },
    policy="dynamic",
)
