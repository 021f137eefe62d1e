"""Retention removes old events, but none that a server or a replay needs."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ganger.engine.eventlog import event_log as logs
from ganger.engine.eventlog import log_retention
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.log_retention import Retention
from ganger.engine.replay import replay
from ganger.settings import Home, RetentionLimits
from tests.crash.scripts import SCRIPTS, Script, world_of
from tests.engine.scenes import POLICIES, played, raw

ALWAYS: dict[str, int | None] = dict.fromkeys(RetentionLimits.__dataclass_fields__)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def seqs(home: Home, sql: str) -> list[int]:
    with closing(sqlite3.connect(home.database)) as database:
        return [seq for (seq,) in database.execute(sql)]


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_the_rest_restores_and_replays(script: Script, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 20)
    monkeypatch.setattr(log_retention, "ROWS_PER_STEP", 7)
    log, world = EventLog(home.database), world_of(script)
    loop = played(world, log, script.policy, script.until_ms)
    before, end = raw(log.restore()), log.last_seq()
    oldest = seqs(home, "SELECT min(seq) FROM snapshot")[0]
    live = [log.rows(gang=gang.array or gang.id, limit=1)[0].seq for gang in loop.copy().gangs.values()]
    needed = min([oldest, *(submitted - 1 for submitted in live)])
    removed = Retention(home, RetentionLimits(**(ALWAYS | {"events_ms": 0})), world, loop.view).run_once(loop.now_ms())
    assert removed.events == needed
    assert seqs(home, "SELECT seq FROM event ORDER BY seq") == list(range(needed + 1, end + 1))
    assert not needed or seqs(home, "SELECT min(seq) FROM about")[0] > needed
    assert raw(log.restore()) == before
    replayed = replay(log, POLICIES)
    assert (replayed.difference, replayed.last) == (None, end)
    assert replayed.first == (oldest + 1 if needed else 1)


def test_events_are_kept_by_age_and_without_a_snapshot(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    script = SCRIPTS[0]
    log, world = EventLog(home.database), world_of(script)
    loop = played(world, log, script.policy, script.until_ms)
    unlimited = Retention(home, RetentionLimits(**(ALWAYS | {"events_ms": 0})), world, loop.view)
    assert unlimited.run_once(loop.now_ms()).events == 0, "there is no snapshot yet"
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 1)
    log.snapshot(loop.copy())
    first_ms = log.rows(limit=1)[0].at_ms
    aged = Retention(
        home, RetentionLimits(**(ALWAYS | {"events_ms": loop.now_ms() - first_ms - 5_000})), world, loop.view
    )
    assert 0 < aged.run_once(loop.now_ms()).events < log.last_seq()
    assert log.rows(limit=1)[0].at_ms > first_ms + 5_000
    large = Retention(home, RetentionLimits(**(ALWAYS | {"events_bytes": 0})), world, loop.view)
    assert large.run_once(loop.now_ms()).events > 0
    assert log.first_replayable() == log.last_seq() + 1


def test_a_run_ends_when_it_is_closed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_EVERY", 20)
    script = SCRIPTS[0]
    log, world = EventLog(home.database), world_of(script)
    loop = played(world, log, script.policy, script.until_ms)
    run = Retention(home, RetentionLimits(**(ALWAYS | {"events_ms": 0})), world, loop.view)
    run.close()
    assert str(run.run_once(loop.now_ms())) == ""
