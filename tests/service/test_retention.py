"""What a server forgets by itself: only what is old or too much, and nothing of a job that lives."""

import os
import subprocess
from pathlib import Path

import pytest

from ganger.engine.eventlog.log_retention import Forgotten, Retention
from ganger.model.units import DAY_MS, GIB_BYTES, HOUR_MS
from ganger.ports import LogQuery
from ganger.settings import KEEP_KEYS, Home, Keep, SettingsError, keep
from tests.service.world import Embedded, wait_until

ALWAYS: dict[str, int | None] = dict.fromkeys(Keep.__dataclass_fields__)
TALKS = ["sh", "-c", "seq 1 500"]
TALKS_ON = ["sh", "-c", "seq 1 500; sleep 300"]


def forget(world: Embedded, later_ms: int = 0, **limits: int) -> Forgotten:
    """One run, so much later than now."""
    retention = Retention(world.home, Keep(**(ALWAYS | limits)), world.backend, world.loop.view)
    return retention.once(world.loop.now_ms() + later_ms)


def texts(world: Embedded, name: str) -> list[str]:
    return [line.text for line in world.service.lines(LogQuery(job=name))]


def ended(world: Embedded, command: list[str], **fields: object) -> str:
    name = world.submit(command, **fields)
    world.ended(name)
    return name


def lives(world: Embedded, **fields: object) -> str:
    name = world.submit(TALKS_ON, **fields)
    wait_until(lambda: world.service.job(name).row.generation and len(texts(world, name)) == 500, "it has talked")
    return name


def test_logs_of_jobs_that_ended_long_ago(world: Embedded) -> None:
    over, live = ended(world, TALKS), lives(world)
    assert str(forget(world, 9 * DAY_MS, logs_ms=10 * DAY_MS)) == ""
    gone = forget(world, 11 * DAY_MS, logs_ms=10 * DAY_MS)
    assert (gone.logs, gone.log_bytes > 1000) == (1, True)
    (left,) = texts(world, over)
    assert left.startswith("ganger: this log was taken away: it was older than 10d")
    assert len(texts(world, live)) == 500
    assert world.service.job(over).row.state == "succeeded", "its record stays"
    assert forget(world, 11 * DAY_MS, logs_ms=0).logs == 1, "of another run, which knows nothing of the first"
    assert len(texts(world, over)) == 1


def test_a_log_that_grew_after_a_look_at_it(world: Embedded) -> None:
    name = lives(world)
    run = Retention(world.home, Keep(**(ALWAYS | {"logs_ms": 0})), world.backend, world.loop.view)
    small = world.backend.log_bytes(name)
    assert run.once(world.loop.now_ms()).logs == 0
    (log,) = (world.home.jobs / name).glob("nodes/*/*/rank-0.log")
    with log.open("a") as file:
        file.write("1 o more\n" * 500)
    world.service.stop(name)
    world.ended(name)
    gone = run.once(world.loop.now_ms() + 1)
    assert (gone.logs, gone.log_bytes > small) == (1, True)


def test_a_long_log_goes_with_all_its_parts(world: Embedded) -> None:
    name = ended(world, TALKS)
    (log,) = (world.home.jobs / name).glob("nodes/*/*/rank-0.log")
    log.with_name(f"{log.name}.{log.stat().st_size}").write_text("1 o more\n" * 500)
    assert (len(texts(world, name)), world.backend.log_bytes(name) > 4500) == (1000, True)
    assert forget(world, logs_bytes=0).logs == 1
    assert (len(texts(world, name)), len(list(log.parent.glob("*.log*")))) == (1, 1)


def test_logs_beyond_the_size_go_the_oldest_first(world: Embedded) -> None:
    first, second = ended(world, TALKS), ended(world, TALKS)
    live = lives(world)
    one = world.backend.log_bytes(first)
    assert forget(world, logs_bytes=3 * one + 1000).logs == 0
    assert forget(world, logs_bytes=2 * one + 1000).logs == 1
    assert [len(texts(world, name)) for name in (first, second, live)] == [1, 500, 500]
    assert forget(world, logs_bytes=0).logs == 2
    assert [len(texts(world, name)) for name in (first, second, live)] == [1, 1, 500]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory to run in; `change` of it gives another copy."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)")
    return directory


def copies(world: Embedded) -> set[str]:
    return {path.name for path in world.home.code.iterdir()}


def test_copies_of_code_that_no_job_has(world: Embedded, code: Path) -> None:
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
    assert forget(world, code_ms=HOUR_MS).copies == 0, "they are young"
    assert forget(world, 2 * HOUR_MS, code_ms=HOUR_MS).copies == 1
    assert copies(world) == {hashes["listed"], hashes["live"]}
    assert forget(world, code_bytes=0).copies == 0, "a submission may be about to use them"
    assert forget(world, 2 * HOUR_MS, code_bytes=0).copies == 1
    assert copies(world) == {hashes["live"]}


def test_repositories_are_fetched_again_when_somebody_names_them(world: Embedded, code: Path) -> None:
    git = ["git", "-C", str(code), "-c", "user.name=ada", "-c", "user.email=ada@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    fields = {"code": {"git": f"file://{code}"}, "environment": {"PATH": os.environ["PATH"]}}
    ended(world, ["true"], **fields)
    assert forget(world, 2 * HOUR_MS, code_ms=3 * HOUR_MS).repositories == 0
    assert forget(world, 4 * HOUR_MS, code_ms=3 * HOUR_MS).repositories == 1
    assert list(world.home.git.iterdir()) == []
    assert world.service.job(ended(world, ["true"], **fields)).row.state == "succeeded"


# -- what the settings file says ---------------------------------------------------------------------------------------


def test_settings_are_read_from_a_file(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert keep(home) == Keep()
    home.settings_file.write_text('[keep]\nlogs = "7d"\nlogs_size = "1Gi"\nrank_log_size = "2Gi"\nevents = "always"\n')
    assert keep(home) == Keep(logs_ms=7 * DAY_MS, logs_bytes=GIB_BYTES, rank_log_bytes=2 * GIB_BYTES, events_ms=None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[keep]\nlog = 3", "there is no setting keep.log"),
        ("[kept]", "there is no setting kept"),
        ('[keep]\nlogs = "soon"', "keep.logs: "),
        ("[keep]\nlogs_size = true", "keep.logs_size: "),
        ("keep = 3", "keep is no table"),
        ("[keep", "cannot be read"),
    ],
)
def test_settings_that_cannot_be_are_told(tmp_path: Path, text: str, why: str) -> None:
    home = Home(tmp_path)
    home.settings_file.write_text(text)
    with pytest.raises(SettingsError, match=why):
        keep(home)


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "retention.md").read_text()
    assert [key for key in KEEP_KEYS if f"| `{key}` |" not in page] == []
    assert [
        value for value in ("90d", "20Gi", "30d", "1Gi", "10Gi", "180d", "2Gi") if f"| `{value}` |" not in page
    ] == []
