"""The report of `ganger doctor` on used space, compared with the settings."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ganger.server.doctor import Check, examine, restore_to
from ganger.settings import Home
from tests.engine.eventlog.test_damaged_rows import write_day


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home with 3 KiB of logs of two jobs, one an array, 2 KiB of code, 1 KiB of a repository."""
    tmp_path.chmod(0o700)
    for name, kib in (
        ("jobs/a-1/nodes/n1/1/rank-0.log", 1),
        ("jobs/a-1/code/own.log", 9),
        ("jobs/b-2/elements/7/nodes/n1/1/rank-0.log", 2),
        (f"code/{'0' * 64}/train.py", 2),
        (f"git/{'0' * 32}/HEAD", 1),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 1024 * kib)
    return Home(tmp_path)


def space_checks(home: Home) -> list[Check]:
    return [check for check in examine(home) if check.name in ("storage", "settings")]


def test_it_reports_used_space(home: Home) -> None:
    logs, code, repositories, events = space_checks(home)
    assert logs.detail.startswith("logs of 2 jobs: 3Ki of at most 20Gi; kept 90d")
    (home.jobs / "somebody's own").mkdir()
    assert space_checks(home)[0].detail.startswith("logs of 3 jobs: 3Ki")
    assert code.detail.startswith("copies of code: 2Ki of at most 10Gi")
    assert repositories.detail.startswith("repositories: 1Ki; kept 30d")
    assert events.detail.startswith("the event log: 0 of at most 2Gi")
    assert all(check.ok for check in space_checks(home))


def test_it_suggests_pruning_over_a_limit(home: Home) -> None:
    home.settings_file.write_text('[keep]\nlogs_size = "2Ki"\ncode = "always"\n')
    logs, code, _, _ = space_checks(home)
    assert (logs.ok, logs.next.startswith("ganger prune")) == (False, True)
    assert code.detail.endswith("kept always")


def test_it_finds_invalid_settings(home: Home) -> None:
    home.settings_file.write_text("[keep]\nlogs_sise = 3\n")
    (wrong,) = space_checks(home)
    assert (wrong.name, wrong.ok) == ("settings", False)
    assert "there is no setting keep.logs_sise" in wrong.detail


def log_of(home: Home) -> Check:
    (check,) = [check for check in examine(home) if check.name == "log"]
    return check


def test_it_reports_that_no_server_starts_on_a_log_with_a_missing_row(home: Home) -> None:
    write_day(home.database)
    with closing(sqlite3.connect(home.database, isolation_level=None)) as database:
        database.execute("DELETE FROM event WHERE seq = 5")
    check = log_of(home)
    assert not check.ok
    assert "no server can start" in check.detail
    assert "event 6 follows event 4" in check.detail
    assert "event 5: missing" in check.detail
    assert "no repair needed" not in check.next
    assert "ganger doctor --restore-to 4" in check.next
    restore_to(home, 4)
    assert log_of(home).ok
