"""The server is killed at every moment of several rich days, and the next one finishes what it began.

By default a part of the moments is taken, another part of them with each downtime; GANGER_TEST_LONG=1 takes all.
"""

import os
from pathlib import Path

import pytest

from tests.crash.mortal import check, lived
from tests.crash.scripts import SCRIPTS, Script
from tests.engine.scenes import ends

LONG = bool(os.environ.get("GANGER_TEST_LONG"))
STRIDE = 1 if LONG else 127
PARTS = 16 if LONG else 1
DOWN_MS = (0, 300, 4_000, 40_000)
"""How long the server is away: not at all, while ranks start, while they work, longer than most pauses."""

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
every_part = pytest.mark.parametrize("part", range(PARTS))


@every_script
@every_part
def test_killed_at_any_moment(script: Script, part: int, tmp_path: Path) -> None:
    quiet = lived(script, tmp_path / "quiet.db")
    ended_as = ends(quiet.log)
    check(quiet, ended_as)
    for moment in range(1 + part * STRIDE, len(quiet.moments) + 1, STRIDE * PARTS):
        down_ms = DOWN_MS[moment % len(DOWN_MS)]
        day = lived(script, tmp_path / f"{moment}.db", (moment,), down_ms)
        try:
            check(day, ended_as)
        except AssertionError as error:
            error.add_note(f"killed at moment {moment} ({quiet.moments[moment - 1]}), away for {down_ms} ms")
            raise
        day.log.close()
        (tmp_path / f"{moment}.db").unlink()


@every_script
def test_killed_again_and_again(script: Script, tmp_path: Path) -> None:
    """Also while it finds out what runs."""
    ended_as = ends(lived(script, tmp_path / "quiet.db").log)
    for every in range(3, 40) if LONG else (19,):
        day = lived(script, tmp_path / f"{every}.db", tuple(range(every, 600, every)), 100)
        check(day, ended_as)
