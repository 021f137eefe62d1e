"""A gang that loses a node keeps the others until it has one in its place, no longer than a repair takes.

Slurm's expedited requeue does so; in Volcano a pod group that lost a node queued behind jobs that were submitted later
(its issue 5805).
"""

import pytest

from ganger.core.reservations.reservation_table import ReservationTable
from ganger.engine.eventlog.projection import project
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

TWO = "n1:AA n2:AA n3:.. A,time=9h,save"
THREE = "n1:AA n2:AA n3:AA A,time=9h,save"
RESERVED_BESIDE = "n1:AA n2:AA n3:BB n4:CC A,time=9h,prio=50 B,time=9h,prio=-50 C,time=2h,prio=90"

test_kept_nodes = scenarios(
    {
        "an idle node is its own at once, before its last attempt has left the others": (
            TWO,
            "",
            """lose n1; Y:1x2 -> ..x AA .. | A resizing, Y no_capacity
               gone A         -> ..x AA AA | Y no_capacity""",
        ),
        "a younger job gets none of its nodes before it is back": (
            THREE,
            "",
            """Y:2x2     -> AA AA AA | Y no_capacity
               lose n1   -> ..x AA AA | A resizing, Y no_capacity
               gone A    -> ..x AA AA | A resizing, Y no_capacity
               +5m       -> ..x AA AA | A resizing, Y no_capacity
               return n1 -> AA AA AA | Y no_capacity""",
        ),
        "nor does one of a queue that has used less": (
            THREE,
            "a b",
            """Y:2x2,q=b -> AA AA AA | Y no_capacity
               lose n1   -> ..x AA AA | A resizing, Y no_capacity
               gone A    -> ..x AA AA | A resizing, Y no_capacity""",
        ),
        "the last node that it keeps is cordoned": (
            "n1:AA n2:AA A,time=9h,save",
            "",
            """lose n1           -> ..x AA | A resizing
               cordon n2; gone A -> ..x AA# | A resizing
               return n1         -> .. AA# | A resizing
               uncordon n2       -> AA AA""",
        ),
        "it gives them up when a repair should be over": (
            THREE,
            "",
            """Y:2x2           -> AA AA AA | Y no_capacity
               lose n1; gone A -> ..x AA AA | A resizing, Y no_capacity
               +11m            -> ..x YY YY | A no_node
               return n1       -> .. YY YY | A no_capacity""",
        ),
        "it gives them up in the very cycle in which an owner could take them back": (
            f"{THREE},q=b",
            "a=2 b=",
            """lose n1; gone A       -> ..x AA AA | A resizing
               +11m; Y:1x2,q=a,time=1h -> ..x YY .. | A no_node""",
        ),
        "in another rack, it leaves its old one first": (
            "r1/n1:A r1/n2:A r2/n3:. r2/n4:. A,in=rack,must,time=9h",
            "",
            """lose n1; B:1x1,at=n2 -> .x A . . | A resizing, B no_capacity
               gone A               -> .x B A A""",
        ),
        "one that was closed before is left, and no other job gets it before its processes have ended": (
            "n1:A n2:A n3:A n4:. n5:. A,time=9h",
            "",
            """cordon n2; lose n1     -> .x A# A . . | A resizing
               uncordon n2; Y:1x1     -> .x A A . . | A resizing, Y no_capacity
               gone A                 -> .x Y A A A""",
        ),
        "it starts on none that is closed meanwhile": (
            "n1:AA n2:AA n3:AA n4:.. A,time=9h",
            "",
            """cordon n4; lose n1; gone A -> ..x AA AA ..# | A resizing
               cordon n2; return n1       -> .. AA# AA ..# | A resizing
               uncordon n4                -> AA ..# AA AA""",
        ),
        "more of them are lost meanwhile": (
            THREE,
            "",
            """lose n1; gone A      -> ..x AA AA | A resizing
               lose n2              -> ..x ..x AA | A resizing
               return n1            -> .. ..x AA | A resizing
               return n2            -> AA AA AA""",
        ),
        "all of them are lost": (
            TWO,
            "",
            """lose n3; lose n1; gone A -> ..x AA ..x | A resizing
               lose n2                  -> ..x ..x ..x | A no_node""",
        ),
        "one of them is drained": (
            THREE,
            "",
            """lose n1; gone A -> ..x AA AA | A resizing
               drain n2        -> ..x ..# .. | A no_node""",
        ),
        "a stop": (THREE, "", "lose n1; gone A; stop A -> ..x .. .. | A stopped"),
        "suspended": (
            THREE,
            "",
            """lose n1; gone A      -> ..x AA AA | A resizing
               suspend A            -> ..x .. .. | A suspended
               return n1; resume A  -> AA AA AA""",
        ),
        "a server that starts again goes on to keep them, and finds the node in its list": (
            THREE,
            "",
            """lose n1; gone A; restart -> ..x AA AA | A resizing
               list n1:.. n2:.. n3:..   -> AA AA AA""",
        ),
        "in its rack there is no other node, and another rack has room for all of it": (
            "r1/n1:AA r1/n2:AA r2/n3:.. r2/n4:BB A,time=9h,in=rack,must",
            "",
            """lose n1; gone A -> ..x AA .. BB | A resizing
               done B          -> ..x .. AA AA | B succeeded""",
        ),
        "a job of higher priority may have them": (
            THREE,
            "",
            """lose n1; gone A  -> ..x AA AA | A resizing
               Y:2x2,prio=high  -> ..x YY YY | A no_node""",
        ),
        "it queues if it may have others stopped": (
            "n1:AA n2:AA n3:BB A,time=9h,prio=50 B,time=9h,prio=-50",
            "",
            """+30m; lose n1; gone A -> ..x .. BB | A stopping_others, B requeueing
               gone B                -> ..x AA AA | B no_capacity""",
        ),
        "but not if a younger job, whose reservation would be in its way, then had them stopped": (
            RESERVED_BESIDE,
            "",
            """Y:2x2,time=1h,prio=50; +30m -> AA AA BB CC | Y no_capacity
               lose n1; gone A             -> ..x AA BB CC | A resizing, Y no_capacity
               done B                      -> ..x AA AA CC | Y no_capacity, B succeeded""",
        ),
        "one that fails again and again pauses without nodes": (
            TWO,
            "",
            """lose n1; gone A                   -> ..x AA AA
               up A; return n1                   -> .. AA AA
               lose n2                          -> .. ..x AA | A requeueing
               gone A                           -> .. ..x .. | A backoff""",
        ),
    },
    policy="dynamic",
)


def test_what_it_keeps_is_no_run_time_of_it_but_held_by_it() -> None:
    film = Film(POLICIES["dynamic"], f"{THREE[:-5]},max=9", "")
    film.play(
        """step A; +1h; lose n1; gone A -> ..x AA AA | A resizing
           +5m; return n1                      -> AA AA AA"""
    )
    gang = film.state.gangs["A"]
    assert gang.ran_ms == 60 * 60_000
    assert gang.held_node_ms(film.now_ms) == (60 * 3 + 5 * 2) * 60_000
    assert gang.account.ledger(film.now_ms).held_ms == 65 * 60_000


def test_how_long_is_learned_from_the_newest_repairs() -> None:
    film = Film(POLICIES["dynamic"], "n1:AA n2:AA n3:.. n4:.. A,time=9h", "")
    for minutes in (2, 4, 6):
        film.do("lose n4")
        film.do(f"+{minutes}m")
        film.do("return n4")
    film.play(
        """lose n3; lose n4; lose n1; gone A -> ..x AA ..x ..x | A resizing
           +4m                               -> ..x AA ..x ..x | A resizing
           +24s                              -> ..x .. ..x ..x | A no_node"""
    )


def test_it_says_what_it_keeps_and_what_it_waits_for() -> None:
    film = Film(POLICIES["dynamic"], THREE, "")
    film.play("lose n1; gone A; +5m -> ..x AA AA | A resizing")
    says = "A lost n1: it keeps n2, n3 for 6m 00s more, and starts as soon as there is another node"
    assert film.explanation("A").sentence == says
    sentence = project(film.state.gangs["A"], film.now_ms).row.sentence
    assert sentence == "n1 failed: a node was lost; it keeps its other nodes, and starts again with 1 more"


def test_what_it_would_leave_is_looked_at_apart_from_the_forecast_of_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check what was wrong: where a reservation has moved, the forecast was made while the gang counted as gone."""
    monkeypatch.setattr(ReservationTable, "_add_to_near_profile", lambda *_: False)
    film = Film(POLICIES["dynamic"], RESERVED_BESIDE, "")
    film.play(
        """Y:2x2,time=1h,prio=50; +30m -> AA AA BB CC | Y no_capacity
           lose n1; gone A             -> ..x AA BB CC | A resizing, Y no_capacity"""
    )
