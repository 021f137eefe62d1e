"""Retention of a server: it removes only what is old or over a limit, and nothing of a live job."""

import os
import subprocess
from pathlib import Path

import pytest

from ganger.engine.eventlog.log_retention import RemovedCounts, Retention
from ganger.model.units import DAY_MS, GIB_BYTES, HOUR_MS
from ganger.ports import LogQuery
from ganger.settings import (
    RETENTION_KEYS,
    BackendSettings,
    Home,
    RetentionLimits,
    SettingsError,
    read_backend_settings,
    read_retention_limits,
)
from tests.service.world import Embedded
from tests.waiting import wait_until

ALWAYS: dict[str, int | None] = dict.fromkeys(RetentionLimits.__dataclass_fields__)
TALKS = ["sh", "-c", "seq 1 500"]
TALKS_ON = ["sh", "-c", "seq 1 500; sleep 300"]


def run_retention(world: Embedded, later_ms: int = 0, **limits: int) -> RemovedCounts:
    """Run the retention once, at so much later than now."""
    retention = Retention(world.home, RetentionLimits(**(ALWAYS | limits)), world.backend, world.loop.view)
    return retention.run_once(world.loop.now_ms() + later_ms)


def texts(world: Embedded, name: str) -> list[str]:
    return [line.text for line in world.service.lines(LogQuery(job=name))]


def ended_job(world: Embedded, command: list[str], **fields: object) -> str:
    name = world.submit(command, **fields)
    world.ended(name)
    return name


def live_job(world: Embedded, **fields: object) -> str:
    name = world.submit(TALKS_ON, **fields)
    wait_until(lambda: world.service.job(name).row.generation and len(texts(world, name)) == 500, "it has talked")
    return name


def test_logs_are_removed_by_age(world: Embedded) -> None:
    ended, live = ended_job(world, TALKS), live_job(world)
    assert str(run_retention(world, 9 * DAY_MS, logs_ms=10 * DAY_MS)) == ""
    removed = run_retention(world, 11 * DAY_MS, logs_ms=10 * DAY_MS)
    assert (removed.logs, removed.log_bytes > 1000) == (1, True)
    (line,) = texts(world, ended)
    assert line.startswith("ganger: this log was removed: it was older than 10d")
    assert len(texts(world, live)) == 500
    assert world.service.job(ended).row.state == "succeeded", "its record stays"
    assert run_retention(world, 11 * DAY_MS, logs_ms=0).logs == 1, "another run does not know of the first"
    assert len(texts(world, ended)) == 1


def test_a_log_that_grew_after_it_was_measured(world: Embedded) -> None:
    name = live_job(world)
    run = Retention(world.home, RetentionLimits(**(ALWAYS | {"logs_ms": 0})), world.backend, world.loop.view)
    small = world.backend.log_bytes(name)
    assert run.run_once(world.loop.now_ms()).logs == 0
    (log,) = (world.home.jobs / name).glob("nodes/*/*/rank-0.log")
    with log.open("a") as file:
        file.write("1 o more\n" * 500)
    world.service.stop(name)
    world.ended(name)
    removed = run.run_once(world.loop.now_ms() + 1)
    assert (removed.logs, removed.log_bytes > small) == (1, True)


def test_a_long_log_is_removed_with_all_its_parts(world: Embedded) -> None:
    name = ended_job(world, TALKS)
    (log,) = (world.home.jobs / name).glob("nodes/*/*/rank-0.log")
    log.with_name(f"{log.name}.{log.stat().st_size}").write_text("1 o more\n" * 500)
    assert (len(texts(world, name)), world.backend.log_bytes(name) > 4500) == (1000, True)
    assert run_retention(world, logs_bytes=0).logs == 1
    assert (len(texts(world, name)), len(list(log.parent.glob("*.log*")))) == (1, 1)


def test_logs_over_the_size_limit_are_removed_oldest_first(world: Embedded) -> None:
    first, second = ended_job(world, TALKS), ended_job(world, TALKS)
    live = live_job(world)
    size = world.backend.log_bytes(first)
    assert run_retention(world, logs_bytes=3 * size + 1000).logs == 0
    assert run_retention(world, logs_bytes=2 * size + 1000).logs == 1
    assert [len(texts(world, name)) for name in (first, second, live)] == [1, 500, 500]
    assert run_retention(world, logs_bytes=0).logs == 2
    assert [len(texts(world, name)) for name in (first, second, live)] == [1, 1, 500]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a directory to run in; a change of it makes another copy."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)")
    return directory


def copies(world: Embedded) -> set[str]:
    return {path.name for path in world.home.code.glob("[!.]*")}


def test_unused_copies_of_code_are_removed(world: Embedded, code: Path) -> None:
    hashes: dict[str, str] = {}
    for name, command in (("listed", ["true"]), ("unlisted", ["true"]), ("live", ["sleep", "300"])):
        (code / "train.py").write_text(f"print({name!r})")
        before = copies(world) if world.home.code.exists() else set()
        job = world.submit(command, code=str(code), directory=str(code))
        (hashes[name],) = copies(world) - before
        if name != "live":
            world.ended(job)
        if name == "unlisted":
            world.service.delete(job)
    for digest in hashes.values():
        os.utime(world.home.code / digest)
    assert run_retention(world, code_ms=HOUR_MS).copies == 0, "they are young"
    assert run_retention(world, 2 * HOUR_MS, code_ms=HOUR_MS).copies == 1
    assert copies(world) == {hashes["listed"], hashes["live"]}
    assert run_retention(world, code_bytes=0).copies == 0, "a submission may be about to use them"
    assert run_retention(world, 2 * HOUR_MS, code_bytes=0).copies == 1
    assert copies(world) == {hashes["live"]}


def test_removed_repositories_are_fetched_again(world: Embedded, code: Path) -> None:
    git = ["git", "-C", str(code), "-c", "user.name=ada", "-c", "user.email=ada@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    fields = {"code": {"git": f"file://{code}"}, "environment": {"PATH": os.environ["PATH"]}}
    ended_job(world, ["true"], **fields)
    assert run_retention(world, 2 * HOUR_MS, code_ms=3 * HOUR_MS).repositories == 0
    assert run_retention(world, 4 * HOUR_MS, code_ms=3 * HOUR_MS).repositories == 1
    assert list(world.home.git.iterdir()) == []
    assert world.service.job(ended_job(world, ["true"], **fields)).row.state == "succeeded"


# -- the settings file ---------------------------------------------------------------------------------------


def test_settings_are_read_from_a_file(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert read_retention_limits(home) == RetentionLimits()
    home.settings_file.write_text('[keep]\nlogs = "7d"\nlogs_size = "1Gi"\nrank_log_size = "2Gi"\nevents = "always"\n')
    assert read_retention_limits(home) == RetentionLimits(
        logs_ms=7 * DAY_MS, logs_bytes=GIB_BYTES, rank_log_bytes=2 * GIB_BYTES, events_ms=None
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[keep]\nlog = 3", "there is no setting keep.log"),
        ("[kept]", "there is no setting kept"),
        ('[keep]\nlogs = "soon"', "keep.logs: "),
        ("[keep]\nlogs_size = true", "keep.logs_size: "),
        ("keep = 3", "keep is not a table"),
        ("[keep", "cannot be read"),
    ],
)
def test_invalid_settings_are_errors(tmp_path: Path, text: str, message: str) -> None:
    home = Home(tmp_path)
    home.settings_file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_retention_limits(home)


def test_a_backend_has_a_table_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert read_backend_settings(home) is None
    home.settings_file.write_text('backend = "ssh"\n[ssh]\nlost_after = "5s"\n[keep]\nlogs = "always"\n')
    assert read_backend_settings(home) == BackendSettings(name="ssh", table={"lost_after": "5s"})
    assert read_retention_limits(home).logs_ms is None
    home.settings_file.write_text("backend = 3")
    with pytest.raises(SettingsError, match="backend is not a name"):
        read_backend_settings(home)


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "retention.md").read_text()
    assert [key for key in RETENTION_KEYS if f"| `{key}` |" not in page] == []
    assert [
        value for value in ("90d", "20Gi", "30d", "1Gi", "10Gi", "180d", "2Gi") if f"| `{value}` |" not in page
    ] == []
