"""Consolidation: running jobs that go on elsewhere so that a larger one fits."""

import pytest

from ganger.core.cycle.cycle import plan
from ganger.core.explain.defrag_plan import defrag_plan
from ganger.core.fold.fold import refusal
from ganger.model import event as e
from ganger.model.decision import Cause, Move, Stop
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

RACKS = "r1/n1:AAAA r1/n2:.... r2/n3:BBBB r2/n4:.... A,moves=,save=,time=9h B,time=9h"

test_consolidation = scenarios(
    {
        "two racks are half free, and a job for a whole one waits: without a request for as long as both run": (
            RACKS,
            "",
            "Z:2x4,in=rack,must,time=1h -> AAAA .... BBBB .... | Z no_capacity",
        ),
        "the movable job goes on in the other rack, and the larger one starts": (
            RACKS,
            "",
            """Z:2x4,in=rack,must,time=1h -> AAAA .... BBBB .... | Z no_capacity
               defrag                     -> AAAA .... BBBB AAAA | A resizing, Z stopping_others
               gone A                     -> ZZZZ ZZZZ BBBB AAAA""",
        ),
        "nothing else gets what is free for the moved job, nor what it leaves": (
            RACKS,
            "",
            """Z:2x4,in=rack,must,time=1h -> AAAA .... BBBB .... | Z no_capacity
               defrag; Y:1x4,time=9h      -> AAAA .... BBBB AAAA | A resizing, Z stopping_others, Y reserved
               gone A                     -> ZZZZ ZZZZ BBBB AAAA | Y no_capacity""",
        ),
        "by the schedule of the policy": (
            RACKS,
            "",
            """Z:2x4,in=rack,must,time=1h -> AAAA .... BBBB .... | Z no_capacity
               policy defrag.every=1h     -> AAAA .... BBBB AAAA | A resizing, Z stopping_others
               gone A                     -> ZZZZ ZZZZ BBBB AAAA""",
        ),
        "by schedule the largest free rack becomes larger once, and then nothing moves": (
            RACKS,
            "",
            """policy defrag.every=1h -> AAAA .... BBBB AAAA | A resizing
               gone A                 -> .... .... BBBB AAAA
               up A; +1h              -> .... .... BBBB AAAA
               +1h                    -> .... .... BBBB AAAA""",
        ),
        "a move that wastes more than the budget is not made": (
            RACKS,
            "",
            """step A; +1h                                   -> AAAA .... BBBB ....
               policy defrag.every=1h,defrag.budget=3h       -> AAAA .... BBBB ....
               saves A; +1h                                  -> AAAA .... BBBB ....
               saves A; +1m; policy defrag.every=1m          -> AAAA .... BBBB AAAA | A resizing""",
        ),
        "the node that it was to get is lost: it queues again, and what it leaves still is the larger job's": (
            RACKS,
            "",
            """Z:2x4,in=rack,must,time=1h -> AAAA .... BBBB .... | Z no_capacity
               defrag                     -> AAAA .... BBBB AAAA | A resizing, Z stopping_others
               lose n4                    -> AAAA .... BBBB ....x | A requeueing, Z stopping_others
               gone A                     -> ZZZZ ZZZZ BBBB ....x | A no_capacity""",
        ),
    },
    policy="dynamic",
)


def test_a_plan_says_what_moves_and_what_it_wastes() -> None:
    film = Film(POLICIES["dynamic"], RACKS, "")
    film.do("step A")
    film.do("+2m")
    shown, _ = defrag_plan(film.state, "rack", None, film.now_ms, film.policy)
    (move,) = shown.moves
    assert (move.job, move.leaves, move.gets) == ("A", ("n1",), ("n4",))
    assert (move.unsaved_ms, move.notice_ms) == (120_000, 30_000)
    assert (shown.largest[0].nodes, shown.nodes_after, shown.gpu_ms) == (1, (2,), 4 * 120_000)
    assert shown.is_cheapest


def test_a_request_is_refused_when_its_place_is_taken_and_void_afterwards() -> None:
    film = Film(POLICIES["dynamic"], RACKS, "")
    request = film.defrag_request()
    film.play("Y:2x4,time=9h -> AAAA YYYY BBBB YYYY")
    assert refusal(film.state, request) == "what was free for the moves is not free any more"
    film = Film(POLICIES["dynamic"], RACKS, "")
    film.apply(request)
    film.do("+1s")
    film.run_cycles()
    assert not [d for d in plan(film.state, film.now_ms, film.policy).decisions if isinstance(d, Stop)]


def test_while_a_job_leaves_for_one_that_waits_no_other_is_moved_for_it() -> None:
    film = Film(POLICIES["dynamic"], f"r0/n5:CCCC r0/n6:.... {RACKS.replace('B,', 'B,moves=,save=,')} C,time=9h", "")
    film.play("Z:2x4,in=rack,must,time=1h -> CCCC .... AAAA .... BBBB .... | Z no_capacity")
    shown, _ = defrag_plan(film.state, "rack", None, film.now_ms, film.policy)
    assert shown.job == "Z"
    film.do("defrag")
    film.run_cycles()
    shown, _ = defrag_plan(film.state, "rack", None, film.now_ms, film.policy)
    assert shown.job != "Z"


def test_a_job_that_did_not_opt_in_is_not_moved() -> None:
    film = Film(POLICIES["dynamic"], RACKS.replace("A,moves=", "A"), "")
    shown, found = defrag_plan(film.state, "rack", None, film.now_ms, film.policy)
    assert (shown.moves, found) == ((), None)
    (share,) = film.state.allocations["B"]
    moves = (Move(gang="B", generation=1, shares=(share,)),)
    assert refusal(film.state, e.DefragRequested(moves=moves)) == "B does not have movable: true"


@pytest.mark.parametrize("notice", ["", ",save="])
def test_a_move_spends_no_retry_and_gives_the_notice_of_the_job(notice: str) -> None:
    film = Film(POLICIES["dynamic"], RACKS.replace(",save=", notice), "")
    film.apply(film.defrag_request())
    (stop,) = [d for d in plan(film.state, film.now_ms, film.policy).decisions if isinstance(d, Stop)]
    assert (stop.cause, stop.notice_ms) == (Cause.MOVED, 30_000 if notice else 0)
    film.play("; -> AAAA .... BBBB AAAA | A resizing")
    film.play("gone A -> .... .... BBBB AAAA")
    gang = film.state.gangs["A"]
    assert (gang.attempt.generation, gang.retries.used) == (2, 0)


@pytest.mark.parametrize("ends", ["20s", "30s", "1m"])
def test_what_is_cleared_is_held_for_the_job_even_if_another_one_ends_as_soon(ends: str) -> None:
    cluster = f"r1/n1:AAAA r1/n2:.... r2/n3:BBBB r2/n4:BBBB r3/n5:.... A,moves=,save=,time=9h B,time={ends}"
    film = Film(POLICIES["dynamic"], cluster, "")
    film.play("Z:2x4,in=rack,must,time=1h -> AAAA .... BBBB BBBB .... | Z no_capacity")
    film.do("defrag")
    film.run_cycles()
    cleared = ("n1", "n2")
    assert film.state.allocations["A"][-1].node not in cleared
    assert film.state.reservations["Z"].nodes == cleared
    film.do("+1s")
    film.run_cycles()
    assert film.state.reservations["Z"].nodes == cleared, "until the moved job has left"
