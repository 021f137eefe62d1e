"""Points in time and job states in the notation of sacct."""

from datetime import datetime, timedelta

import pytest

from ganger.cli.times import parse_future_time, parse_states, parse_time

NOW = datetime(2026, 11, 21, 14, 30, 20).astimezone()
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("now-2days", NOW - timedelta(days=2)),
        ("now-90", NOW - timedelta(seconds=90)),
        ("NOW+1hour", NOW + timedelta(hours=1)),
        ("3h ago", NOW - timedelta(hours=3)),
        ("1h30m ago", NOW - timedelta(minutes=90)),
        ("2 weeks ago", NOW - timedelta(weeks=2)),
        ("2d", NOW - timedelta(days=2)),
        ("1w", NOW - timedelta(weeks=1)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("11.20", datetime(2026, 11, 20).astimezone()),
        ("2026-11-21", datetime(2026, 11, 21).astimezone()),
        ("2026-11-21T12:00", datetime(2026, 11, 21, 12).astimezone()),
        ("2026-11-21 12:00:05", datetime(2026, 11, 21, 12, 0, 5).astimezone()),
        ("2026-11-21T12:00:00+00:00", datetime.fromisoformat("2026-11-21T12:00:00+00:00")),
        ("11/20", datetime(2026, 11, 20).astimezone()),
        ("11/20/25", datetime(2025, 11, 20).astimezone()),
        ("11/20-08:15", datetime(2026, 11, 20, 8, 15).astimezone()),
        ("12:00", datetime(2026, 11, 21, 12).astimezone()),
        ("14:30:20", NOW),
        ("4:00 PM", datetime(2026, 11, 20, 16).astimezone()),
        ("12:15am", datetime(2026, 11, 21, 0, 15).astimezone()),
        ("noon", datetime(2026, 11, 21, 12).astimezone()),
        ("teatime", datetime(2026, 11, 20, 16).astimezone()),
        ("today", datetime(2026, 11, 21).astimezone()),
        ("yesterday", datetime(2026, 11, 20).astimezone()),
    ],
)
def test_time(text: str, expected: datetime) -> None:
    assert parse_time(text, NOW_MS) == int(expected.timestamp() * 1000)


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "2026-13-01", "now-2fortnights", "13/45", "ago", "3 ago ago", "2x", "d"]
)
def test_invalid_time(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - what the standard library says of 25:00 is as good
        parse_time(text, NOW_MS)


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("running", ["running"]),
        ("R,PD", ["running", "pending"]),
        ("CANCELLED,TIMEOUT", ["stopped"]),
        ("s", ["suspended", "suspending"]),
        ("cd,f,ca,to", ["succeeded", "failed", "stopped"]),
        ("completed, failed", ["succeeded", "failed"]),
    ],
)
def test_states(text: str, states: list[str]) -> None:
    assert list(parse_states(text)) == states


def test_an_unknown_state_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'completed'"):
        parse_states("compleeted")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", NOW + timedelta(hours=2)),
        ("now", NOW),
        ("12:00", datetime(2026, 11, 22, 12).astimezone()),
        ("23:00", datetime(2026, 11, 21, 23).astimezone()),
        ("2026-11-20", datetime(2026, 11, 20).astimezone()),
        ("tomorrow", datetime(2026, 11, 22).astimezone()),
        ("in 1h", NOW + timedelta(hours=1)),
        ("in 2 hours", NOW + timedelta(hours=2)),
        ("90 min from now", NOW + timedelta(minutes=90)),
        ("2 days ago", NOW - timedelta(days=2)),
        ("now+2hours", NOW + timedelta(hours=2)),
        ("2026-11-20T22:00", datetime(2026, 11, 20, 22).astimezone()),
    ],
)
def test_future_time(text: str, expected: datetime) -> None:
    assert parse_future_time(text, NOW_MS) == int(expected.timestamp() * 1000)


@pytest.mark.parametrize("text", ["soon", "in", "in an hour", "25:00", "2x", "", "2026-13-01"])
def test_an_invalid_future_time_lists_the_legal_forms(text: str) -> None:
    with pytest.raises(ValueError, match="is not a future time: write now, 2h \\(from now\\), 22:00, tomorrow or 2026"):
        parse_future_time(text, NOW_MS)
