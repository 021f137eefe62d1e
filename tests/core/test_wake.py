"""Time of the next cycle when no event arrives."""

import pytest

from ganger.core.cycle.cycle import plan
from ganger.model.units import MINUTE_MS, SECOND_MS
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

HOUR_MS = 60 * MINUTE_MS


@pytest.mark.parametrize(
    ("policy", "cluster", "happens", "in_ms"),
    [
        ("priority", "n1:....", "", None),
        ("priority", "n1:AAAA", "", None),
        ("priority", "n1:AAAA A,time=1h", "", HOUR_MS),
        ("priority", "n1:AAAA A,time=1h", "+20m", 40 * MINUTE_MS),
        ("priority", "n1:AAAA A,time=1h", "+20m; saves A; fails A; gone A", 40 * MINUTE_MS),
        ("priority", "n1:AAAA", "C:1x4", None),
        ("priority", "n1:AAAA", "C:1x4,wait=10m", 10 * MINUTE_MS),
        ("priority", "n1:AAAA", "C:1x4,wait=10m; +3m", 7 * MINUTE_MS),
        ("priority", "n1:....", "C:1x4,time=2h", 2 * HOUR_MS),
        ("priority", "n1:....", "C:1x4,time=2h; +1m", 2 * HOUR_MS),
        ("priority", "n1:AAAA", "fails A signal; gone A", SECOND_MS),
        ("priority", "n1:AAAA A,time=1h", "C:1x4,wait=10m", 10 * MINUTE_MS),
        ("las", "n1:AAAA", "", 15 * MINUTE_MS),
        ("las", "n1:AAA.", "", 20 * MINUTE_MS),
        ("las", "n1:A......", "+7m", 53 * MINUTE_MS),
        ("las", "n1:AAAA", "+15m", None),
        ("las", "n1:a", "+1m", 59 * MINUTE_MS),
        ("las", "n1:....", "C:1x4", 15 * MINUTE_MS),
        ("las", "n1:AA n2:AA", "", 15 * MINUTE_MS),
        ("las", "n1:.......", "C:1x7", 514_286),
    ],
)
def test_wake(policy: str, cluster: str, happens: str, in_ms: int | None) -> None:
    """Count a start that the cycle itself decides, although it is not recorded yet."""
    film = Film(POLICIES[policy], cluster, "")
    for action in filter(None, map(str.strip, happens.split(";"))):
        film.do(action)
    wake_ms = plan(film.state, film.now_ms, film.policy).next_wake_ms
    assert (wake_ms is None) == (in_ms is None)
    assert wake_ms is None or wake_ms - film.now_ms == in_ms


def test_wake_when_enough_of_a_period_has_passed() -> None:
    """Nothing wakes it while nobody waits, nor on the hour as long as nothing leaves the period."""
    film = Film(POLICIES["priority"], "n1:..", "root=,user_used=4/12h")
    film.play("C:1x1,time=4h -> C.")
    film.play("+3h; done C -> .. | C succeeded")
    assert plan(film.state, film.now_ms, film.policy).next_wake_ms is None
    film.play("D:1x1,time=2h -> .. | D user_node_time_used")
    hour, reason = film.now_ms // HOUR_MS, film.reason("D")
    assert plan(film.state, film.now_ms, film.policy).next_wake_ms == (hour - 3 + 13) * HOUR_MS, "C's first hour leaves"
    assert reason.until_ms == film.explanation("D").earliest_ms == (hour - 2 + 13) * HOUR_MS
    figures = "1 node-hours left, 2 node-hours needed"
    assert reason.sentence == f"your jobs may use 4 node-hours in 12h in queue root: {figures}"


def test_nothing_is_due_before_the_nodes_are_listed() -> None:
    film = Film(POLICIES["priority"], "n1:AAAA A,time=1h", "")
    film.do("restart")
    assert plan(film.state, film.now_ms, film.policy).next_wake_ms is None
