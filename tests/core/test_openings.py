"""Earliest starts: when and where a gang can start at the latest, as the gangs before it end one after the other."""

import pytest

from ganger.core.placement.start_check import start_request
from ganger.core.reservations.earliest_start import find_earliest_start
from ganger.model.units import HOUR_MS
from ganger.policies import fifo
from tests.pictures.film import Film

# running jobs on two nodes of two GPUs; maintenance; the pending job; expected hours and the jobs before it
OPENINGS = {
    "now": ("A:1x2,time=1h", "", "C:1x2", (0, ())),
    "when the first leaves": ("A:1x2,time=1h B:1x2,time=3h", "", "C:1x2", (1, ("A",))),
    "when all have left": ("A:1x2,time=1h B:1x2,time=3h", "", "C:2x2", (3, ("A", "B"))),
    "of several on a node": ("A:1x1,time=1h B:1x1,time=2h D:1x2,time=9h", "", "C:1x2", (2, ("A", "B"))),
    "nobody tells when": ("A:1x2,time=1h B:1x2", "", "C:2x2", (None, ("A", "B"))),
    "never": ("A:1x2,time=1h B:1x2,time=3h", "", "C:3x2", None),
    "before maintenance": ("A:1x2,time=1h B:1x2,time=3h", "maintain n1 4h 1h", "C:2x2,time=1h", (3, ("A", "B"))),
    "not before maintenance": ("A:1x2,time=1h B:1x2,time=3h", "maintain n1 4h 1h", "C:2x2,time=61m", (5, ("A", "B"))),
    "in maintenance by then": ("A:1x2,time=1h B:1x2,time=3h", "maintain n1 2h 2h", "C:2x2,time=30m", (4, ("A", "B"))),
    "after a window before any end": ("A:1x2,time=9h", "maintain n2 0h 2h", "C:1x2,time=1h", (2, ())),
    "between two windows": ("A:1x2,time=9h", "maintain n2 0h 2h;maintain n2 4h 2h", "C:1x2,time=2h", (2, ())),
    "after both windows": ("A:1x2,time=9h", "maintain n2 0h 2h;maintain n2 4h 2h", "C:1x2,time=3h", (6, ())),
    "where a job leaves for maintenance": ("A:1x2,time=9h", "maintain n1 1h 1h", "C:2x2,time=1h", (2, ("A",))),
    "after maintenance": ("A:1x2,time=2h B:1x2,time=5h", "maintain n1 2h 2h", "C:2x2,time=9h", (5, ("A", "B"))),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_the_first_opening(name: str) -> None:
    run, maintenance, waits, expected = OPENINGS[name]
    film = Film(fifo, "n1:.. n2:..", "")
    film.do(run)
    film.run_cycles()
    for action in filter(None, maintenance.split(";")):
        film.do(action)
    film.do(waits)
    start = find_earliest_start(film.state, start_request(film.state.gangs["C"]), film.now_ms)
    if expected is None or start is None:
        assert start is expected
        return
    hours, after = expected
    assert start.at_ms == (None if hours is None else film.now_ms + hours * HOUR_MS)
    assert start.after == after
