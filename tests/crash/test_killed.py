"""The server is killed at every point of several rich days, and the next one finishes its work.

By default only some of the points are tried, others with each downtime; GANGER_TEST_LONG=1 tries all.
"""

import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest

from tests.crash.mortal import check, live_day
from tests.crash.scripts import SCRIPTS, SHORT, Script
from tests.engine.scenes import listed_states
from tests.examples import one_in_gate

LONG = bool(os.environ.get("GANGER_TEST_LONG"))
STRIDE = 1 if LONG else 251
SHORT_STRIDE = 1 if LONG else 11
PARTS = 16 if LONG else 1
DOWN_MS = (0, 300, 4_000, 40_000)
"""Downtime of the server: none, while ranks start, while they work, longer than most pauses."""

every_script = pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=script.name, marks=pytest.mark.long if script.name == "busy day" else ())
        for script in SCRIPTS
    ],
)
"""The busy day is the dearest by far: `make test-long` has it."""
every_part = pytest.mark.parametrize("part", range(PARTS))


def check_killed_at(script: Script, points: Iterable[int], path: Path) -> None:
    """Simulate the day once for each of these points, with a downtime that depends on the point."""
    quiet = live_day(script, path / "quiet.db")
    ended_as = listed_states(quiet.log)
    check(quiet, ended_as)
    for point in points:
        if point > len(quiet.points):
            return
        down_ms = DOWN_MS[point % len(DOWN_MS)]
        day = live_day(script, path / f"{point}.db", (point,), down_ms)
        try:
            check(day, ended_as)
        except AssertionError as error:
            error.add_note(f"killed at moment {point} ({quiet.points[point - 1]}), away for {down_ms} ms")
            raise
        day.log.close()
        (path / f"{point}.db").unlink()


def test_killed_at_points_of_a_short_day(folder: Path) -> None:
    check_killed_at(SHORT, count(1, SHORT_STRIDE), folder)


@every_script
@every_part
def test_killed_at_some_points(script: Script, part: int, folder: Path) -> None:
    check_killed_at(script, count(1 + part * STRIDE, STRIDE * PARTS), folder)


@pytest.mark.parametrize("script", one_in_gate(reversed(SCRIPTS)), ids=lambda script: script.name)
def test_killed_repeatedly(script: Script, folder: Path) -> None:
    """Kill it also while it finds out what runs."""
    ended_as = listed_states(live_day(script, folder / "quiet.db").log)
    for interval in range(3, 40) if LONG else (19,):
        day = live_day(script, folder / f"{interval}.db", tuple(range(interval, 600, interval)), 100)
        check(day, ended_as)
