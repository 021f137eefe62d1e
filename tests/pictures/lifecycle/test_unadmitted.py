"""A gang whose pods the cluster did not admit starts again in free room only: no other gang is preempted for it."""

import pytest

from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

CLUSTER = "n1:AAAA A,time=90h n2:BBBB B,time=90h"
REFUSED_ONCE = """
    +5h                          -> AAAA BBBB
    H:1x4,user=bob,time=1h; +5m  -> AAAA BBBB | B requeueing, H stopping_others
    gone B                       -> AAAA HHHH | B no_capacity
    fails H quota; gone H        -> AAAA BBBB | H namespace_quota
    up B                         -> AAAA BBBB | H namespace_quota
"""


@pytest.mark.parametrize("policy", ["las", "tiresias", "srtf"])
def test_no_other_gang_is_preempted_for_it(policy: str) -> None:
    film = Film(POLICIES[policy], CLUSTER, "")
    film.play(
        f"""{REFUSED_ONCE}
        +10s                   -> AAAA BBBB | H namespace_quota
        +10m                   -> AAAA BBBB | H namespace_quota
        +9h                    -> AAAA BBBB | H namespace_quota
        done A                 -> HHHH BBBB | A succeeded
        fails H quota; gone H  -> .... BBBB | H namespace_quota
        +20s                   -> HHHH BBBB
        up H; +30m; done H     -> .... BBBB | H succeeded"""
    )
    assert film.state.gangs["B"].attempt.generation == 2, "it gave way once, before anything was known"


def test_the_user_reads_the_refusal_while_no_room_is_free() -> None:
    film = Film(POLICIES["las"], CLUSTER, "")
    film.play(REFUSED_ONCE)
    assert film.reason("H").until_ms == film.now_ms + 10_000
    film.play("+10m -> AAAA BBBB | H namespace_quota")
    assert film.reason("H").until_ms is None
    assert "retried automatically" in film.reason("H").remedy
    assert film.explanation("H").earliest_ms == film.state.gangs["A"].ends_ms(film.now_ms)


ONE_NODE = "n1:AAAA A,time=90h"
REFUSED = """
    +5h; H:1x4             -> AAAA | A requeueing, H stopping_others
    gone A                 -> HHHH | A no_capacity
    fails H quota; gone H  -> AAAA | H namespace_quota
    up A; +1h              -> AAAA | H namespace_quota
"""

test_it_is_like_any_other_again = scenarios(
    {
        "when the cluster has admitted it": (
            ONE_NODE,
            "",
            f"""{REFUSED}
                done A            -> HHHH | A succeeded
                up H; B:1x4       -> HHHH | B no_capacity
                +5h               -> HHHH | H requeueing, B stopping_others
                gone H            -> BBBB | H no_capacity
                up B; +5h         -> BBBB | H stopping_others, B requeueing""",
        ),
        "when it gets another priority": (
            ONE_NODE,
            "",
            f"""{REFUSED}
                priority H 1 -> AAAA | A requeueing, H stopping_others""",
        ),
        "when it was suspended and is resumed": (
            ONE_NODE,
            "",
            f"""{REFUSED}
                suspend H    -> AAAA | H suspended
                resume H     -> AAAA | A requeueing, H stopping_others""",
        ),
        "and so is an accepted job of its class": (
            ONE_NODE,
            "",
            f"""{REFUSED}
                C:1x4        -> AAAA | A requeueing, H namespace_quota, C stopping_others""",
        ),
    },
    policy="las",
)

test_it_does_not_keep_back_those_after_it = scenarios(
    {
        "that would block under strict order": (
            "n1:AAAA A,time=90h n2:....",
            "",
            """H:1x4                  -> AAAA HHHH
               fails H quota; gone H  -> AAAA .... | H namespace_quota
               C:1x2                  -> AAAA CC.. | H namespace_quota
               +1h                    -> AAAA CC.. | H namespace_quota
               D:1x2                  -> AAAA CCDD | H namespace_quota""",
        ),
    },
    policy="strict_fifo",
)

test_it_takes_no_reservation = scenarios(
    {
        "from a later job, nor gets one": (
            "n1:AAAA A,time=1h n2:....",
            "",
            """H:1x4                  -> AAAA HHHH
               fails H quota; gone H  -> AAAA .... | H namespace_quota
               B:1x2,time=2h          -> AAAA BB.. | H namespace_quota
               C:2x4,time=1h; +1m     -> AAAA BB.. | H namespace_quota, C no_capacity
               done A                 -> .... BB.. | H namespace_quota, C no_capacity, A succeeded
               done B                 -> CCCC CCCC | H namespace_quota, B succeeded""",
        ),
    },
    policy="conservative",
)
