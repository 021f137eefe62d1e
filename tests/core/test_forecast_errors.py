"""Errors of forecast starts: recorded with a cycle, learned when the gang starts, and the ranges that follow."""

import pytest

from ganger.core.forecast.start_forecast import WaitRatios
from ganger.core.state.runtime_estimate import FORECAST_EVENTS, MAX_ERRORS
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import Plan, StartForecast
from ganger.model.units import MINUTE_MS
from ganger.policies import fifo
from tests.pictures.film import Film

HOUR = 60


def _film_with_forecast() -> Film:
    """Return a cluster on which B waits for A, and is forecast to start in an hour."""
    film = Film(fifo, "n1:AA A,time=2h", "")
    film.do("B:1x2,time=1h C:1x2,time=1h")
    forecast = StartForecast(gang="B", start_ms=film.now_ms + HOUR * MINUTE_MS)
    film.apply(e.Decided(plan=Plan(as_of=film.state.seq, forecasts=(forecast,)), policy="fifo", version="0"))
    return film


def _waits(film: Film) -> list[tuple[int, int]]:
    """Return (forecast, actual) waits in minutes, as a restart restores them."""
    restored = State(film.state.image()).pending.forecast_errors
    assert restored.image() == film.state.pending.forecast_errors.image()
    waits_ms = restored.waits(film.now_ms)
    return [(forecast_ms // MINUTE_MS, actual_ms // MINUTE_MS) for forecast_ms, actual_ms in waits_ms]


def test_a_start_shows_how_wrong_its_forecast_was() -> None:
    film = _film_with_forecast()
    film.do("+30m")
    assert _waits(film) == []
    for action in ("done A", "+10m"):
        film.do(action)
        film.run_cycles()
    assert _waits(film) == [(HOUR, 30)]


def test_a_job_that_is_late_counts_before_it_starts() -> None:
    film = _film_with_forecast()
    film.do("+90m")
    assert _waits(film) == [(HOUR, 90)]


@pytest.mark.parametrize("action", ["stop B", "priority B 100"])
def test_a_job_that_ends_or_changes_while_pending_shows_nothing(action: str) -> None:
    film = _film_with_forecast()
    film.do("+90m")
    film.do(action)
    film.run_cycles()
    assert _waits(film) == []


def test_forecasts_are_recorded_now_and_then() -> None:
    film = Film(fifo, "n1:AA A,time=2h", "")
    errors, seq = film.state.pending.forecast_errors, film.state.pending.forecast_errors.image().seq
    assert not errors.is_due(seq + FORECAST_EVENTS - 1, 0)
    assert errors.is_due(seq + FORECAST_EVENTS, 0)
    assert not errors.is_due(seq + FORECAST_EVENTS, 1)
    film.do("B:1x2,time=1h")
    for _ in range(FORECAST_EVENTS):
        film.do("step A")
    film.do("C:1x2,time=1h")
    film.run_cycles()
    awaited = film.state.pending.forecast_errors.image().awaited
    in_hours = [(name, (start_ms - film.now_ms) // (HOUR * MINUTE_MS)) for name, _, start_ms in awaited]
    assert in_hours == [("B", 2), ("C", 3)]


def test_only_the_newest_errors_are_kept() -> None:
    errors = State().pending.forecast_errors
    for number in range(MAX_ERRORS + 5):
        errors.record([StartForecast(gang=f"g{number}", start_ms=1)], number + 1, 0)
        errors.score(f"g{number}", number)
    assert [actual_ms for _, actual_ms in errors.waits(0)] == [*range(5, MAX_ERRORS + 5)]


RANGES = {
    "nothing is known": ([], (14, HOUR, 2 * HOUR + 1)),
    "always as forecast": ([(HOUR, HOUR)] * 60, (HOUR, HOUR, HOUR)),
    "mostly later": ([(HOUR, HOUR)] * 50 + [(HOUR, 2 * HOUR)] * 50, (HOUR, HOUR, 2 * HOUR)),
    "limits are far too long": ([(HOUR, 10)] * 40 + [(HOUR, 20)] * 40, (10, 20, 20)),
    "short waits say nothing about long ones": (
        [(1, 9)] * 128 + [(HOUR, HOUR)] * 128,
        (HOUR, HOUR, HOUR),
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_the_range_has_the_errors_of_such_waits(name: str) -> None:
    waits, expected = RANGES[name]
    ratios = WaitRatios([(forecast * MINUTE_MS, actual * MINUTE_MS) for forecast, actual in waits])
    assert tuple(ms // MINUTE_MS for ms in ratios.range_ms(HOUR * MINUTE_MS)) == expected
