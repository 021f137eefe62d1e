"""The server is killed at every moment of several rich days, and the next one finishes what it began.

By default a part of the moments is taken, another part of them with each downtime; GANGER_TEST_LONG=1 takes all.
"""

import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest

from tests.crash.mortal import check, lived
from tests.crash.scripts import SCRIPTS, SHORT, Script
from tests.engine.scenes import ends

LONG = bool(os.environ.get("GANGER_TEST_LONG"))
STRIDE = 1 if LONG else 127
PARTS = 16 if LONG else 1
DOWN_MS = (0, 300, 4_000, 40_000)
"""How long the server is away: not at all, while ranks start, while they work, longer than most pauses."""

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
every_part = pytest.mark.parametrize("part", range(PARTS))


def killed_at(script: Script, moments: Iterable[int], path: Path) -> None:
    """The day once for each of these moments, the server away for a while that depends on which."""
    quiet = lived(script, path / "quiet.db")
    ended_as = ends(quiet.log)
    check(quiet, ended_as)
    for moment in moments:
        if moment > len(quiet.moments):
            return
        down_ms = DOWN_MS[moment % len(DOWN_MS)]
        day = lived(script, path / f"{moment}.db", (moment,), down_ms)
        try:
            check(day, ended_as)
        except AssertionError as error:
            error.add_note(f"killed at moment {moment} ({quiet.moments[moment - 1]}), away for {down_ms} ms")
            raise
        day.log.close()
        (path / f"{moment}.db").unlink()


def test_killed_at_every_moment_of_a_short_day(folder: Path) -> None:
    killed_at(SHORT, count(1), folder)


@every_script
@every_part
def test_killed_at_any_moment(script: Script, part: int, folder: Path) -> None:
    killed_at(script, count(1 + part * STRIDE, STRIDE * PARTS), folder)


@every_script
def test_killed_again_and_again(script: Script, folder: Path) -> None:
    """Also while it finds out what runs."""
    ended_as = ends(lived(script, folder / "quiet.db").log)
    for every in range(3, 40) if LONG else (19,):
        day = lived(script, folder / f"{every}.db", tuple(range(every, 600, every)), 100)
        check(day, ended_as)
