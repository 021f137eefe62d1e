"""EASY and conservative backfill on the textbook's example: which job a long small job may delay.

A timeline has a row for each node and a column for each hour from now on: the gang that runs there until its limit, or
has a reservation. Under EASY only the first in the order has a reservation.
"""

import pytest

from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

HOUR_MS = 3_600_000
HOURS = 12
CLUSTER = "n1:A n2:A n3:. n4:. A,time=2h"
COME = "B:3x1,time=1h C:4x1,time=1h D:1x1,time=8h"
EASY = "policy reservations.total=1"
CONSERVATIVE = "policy reservations.total=all,reservations.per_queue=all"


def timeline(film: Film) -> list[str]:
    """Return the gang on each node, hour by hour."""
    state, rows = film.state, {node: ["."] * HOURS for node in film.state.nodes.attributes.names}
    stays = [
        (gang, gang.attempt.began_ms, tuple(gang.attempt.left)) for gang in state.gangs.values() if gang.attempt.start
    ]
    stays += [
        (state.gangs[reserved.gang], reserved.start_ms or 0, reserved.nodes) for reserved in state.reservations.values()
    ]
    for gang, begin_ms, nodes in stays:
        end_ms = begin_ms + (gang.time_ms or 0)
        for hour in range(HOURS):
            if begin_ms <= film.now_ms + hour * HOUR_MS < end_ms:
                for node in nodes:
                    assert rows[node][hour] == ".", f"two are on {node} in hour {hour}"
                    rows[node][hour] = gang.id
    return ["".join(row) for row in rows.values()]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            EASY,
            """
            AAB.........
            AAB.........
            ..B.........
            DDDDDDDD....
            """,
        ),
        (
            CONSERVATIVE,
            """
            AABCDDDDDDDD
            AABC........
            ..BC........
            ...C........
            """,
        ),
    ],
    ids=["easy", "conservative"],
)
def test_reservations(policy: str, expected: str) -> None:
    film = Film(POLICIES["fifo"], CLUSTER, "")
    for action in (policy, COME):
        film.do(action)
    film.run_cycles()
    assert timeline(film) == expected.split()


test_what_becomes_of_it = scenarios(
    {
        "EASY: a job that delays only the second starts, and the second waits for it": (
            CLUSTER,
            "",
            f"""{EASY}; {COME}   -> A A . D | B no_capacity, C no_capacity
                +2h; done A      -> B B B D | C no_capacity, A succeeded
                +1h; done B      -> . . . D | C no_capacity, B succeeded
                +5h; done D      -> C C C C | D succeeded""",
        ),
        "conservative: it waits, and the second starts as reserved": (
            CLUSTER,
            "",
            f"""{CONSERVATIVE}; {COME} -> A A . . | B no_capacity, C no_capacity, D reserved
                +2h; done A            -> B B B . | C no_capacity, D reserved, A succeeded
                +1h; done B            -> C C C C | D no_capacity, B succeeded
                +1h; done C            -> D . . . | C succeeded""",
        ),
        "conservative: a job that ends before the others begin starts at once": (
            CLUSTER,
            "",
            f"""{CONSERVATIVE}; {COME} E:2x1,time=2h -> A A E E | B no_capacity, C no_capacity, D no_capacity
                +2h; done A; done E                 -> B B B . | C no_capacity, D reserved, A succeeded, E succeeded""",
        ),
        "conservative: equal jobs get reservations in their order": (
            "n1:A n2:A n3:. A,time=1h",
            "",
            f"""{CONSERVATIVE}; B:2x1,time=2h C:2x1,time=2h D:1x1,time=5h -> A A D | B no_capacity, C no_capacity
                +1h; done A                                               -> B B D | C no_capacity, A succeeded
                +2h; done B                                               -> C C D | B succeeded""",
        ),
    },
    policy="fifo",
)
