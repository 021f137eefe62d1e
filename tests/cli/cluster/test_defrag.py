"""`ganger defrag`: the lines of a plan, and what is refused, at a real server."""

from dataclasses import asdict

import pytest

from ganger.cli.cluster.defrag import plan_lines
from ganger.cli.exit_codes import OK, USAGE
from ganger.core.explain.defrag_plan import defrag_plan
from ganger.policies import dynamic
from tests.cli.live import Live, live, place
from tests.pictures.film import Film

__all__ = ["live", "place"]

RACKS = "r1/n1:AAAA r1/n2:.... r2/n3:BBBB r2/n4:.... A,moves=,save=,time=9h B,time=9h"


def test_a_plan_names_what_moves_what_it_wastes_and_what_it_wins() -> None:
    film = Film(dynamic, RACKS, "")
    film.do("step A")
    film.do("+2m")
    film.do("Z:2x4,in=rack,must")
    plan, _ = defrag_plan(film.state, "rack", None, film.now_ms, film.policy)
    assert list(plan_lines(asdict(plan))) == [
        "largest gang that fits in one rack: 1 -> 2 nodes with 4 GPUs",
        "makes room for Z",
        "moves A from n1 to n4 (2m 00s unsaved, 30.0s notice)",
        "1 move, at most 8m 00s of GPU time wasted; no other moves waste less",
    ]
    plan, _ = defrag_plan(film.state, "rack", 60_000, film.now_ms, film.policy)
    assert list(plan_lines(asdict(plan)))[1:] == ["no job could be moved so that a larger one fits"]


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        ("", OK, ""),
        ("apply", OK, ""),
        ("apply --dry-run", USAGE, "either `ganger defrag --dry-run` or `ganger defrag apply`"),
        ("--level hall", USAGE, "the network has no level hall; levels here, outermost first: rack"),
        ("--budget -1h", USAGE, "-1h"),
    ],
)
def test_requests(live: Live, args: str, code: int, expected: str) -> None:
    result = live("defrag", *args.split())
    assert (result.code, expected in result.err) == (code, True), result.err
    assert code != OK or result.out.endswith("no job could be moved so that a larger one fits\n")
