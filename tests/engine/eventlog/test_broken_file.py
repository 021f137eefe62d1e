"""A log file that is damaged or something else is refused with the next step to take, and left as it is."""

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import project
from ganger.errors import RequestError
from ganger.model import event as e
from tests.engine.scenes import job

UNPRIVILEGED_UID = 65534


def write_log(path: Path) -> None:
    """Write and close a log of about 100 events on more than 20 pages."""
    log, state = EventLog(path), State()
    rows = [e.Stamped(seq, 1_000, e.Submitted(job=job(f"job-{seq}", user=f"u{seq}"))) for seq in range(1, 101)]
    log.append(rows, [project(gang, 1_000) for row in rows for gang in fold(state, row)])
    log.close()


def cut_short(path: Path) -> None:
    write_log(path)
    os.truncate(path, path.stat().st_size // 2)


def cut_to_half_a_page(path: Path) -> None:
    write_log(path)
    os.truncate(path, 2_000)


def random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(50_000))


def damaged_inside(path: Path) -> None:
    write_log(path)
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(random.Random(2).randbytes(4096 * 8))


def text_file(path: Path) -> None:
    path.write_text("dear diary\n" * 1_000)


def database_of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.executescript("CREATE TABLE event (what TEXT); PRAGMA user_version = 1")
    database.close()


def log_of_format(path: Path, version: int) -> None:
    write_log(path)
    with sqlite3.connect(path, isolation_level=None) as database:
        database.execute(f"PRAGMA user_version = {version}")
    database.close()


BROKEN = [
    cut_short,
    cut_to_half_a_page,
    random_bytes,
    damaged_inside,
    text_file,
    database_of_another_program,
]


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.__name__ for broken in BROKEN])
def test_refused_and_left_as_it_is(broken: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    broken(path)
    before = path.read_bytes()
    with pytest.raises(RequestError) as refused:
        EventLog(path)
    assert refused.value.code == "corrupt_log"
    assert str(path) in refused.value.detail
    assert f"mv {path} {path}.broken" in refused.value.next
    assert path.read_bytes() == before


@pytest.mark.parametrize(("version", "age"), [(15, "an older"), (1000, "a newer")])
def test_a_log_of_another_version(version: int, age: str, tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    log_of_format(path, version)
    before = path.read_bytes()
    with pytest.raises(RequestError) as refused:
        EventLog(path)
    assert (refused.value.code, refused.value.status) == ("unsupported_log_format", 500)
    assert f"{path} was written by {age} version of ganger: it has format {version}" in refused.value.detail
    assert "use the version of ganger that wrote it" in refused.value.next
    assert f"mv {path} {path}.format-{version}" in refused.value.next
    assert path.read_bytes() == before


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        EventLog(tmp_path)
    assert refused.value.code == "log_failed"
    assert str(tmp_path) in refused.value.detail
    assert refused.value.next


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        EventLog(tmp_path / "nowhere" / "g.db")
    assert refused.value.code == "log_failed"
    assert refused.value.next


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[None]:
    """Run as the user of the tests, without the privileges of root, for whom no file is read-only."""
    if os.geteuid() != 0:
        yield
        return
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and "pytest" in str(folder):
            folder.chmod(0o755)
    os.chown(tmp_path, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    os.seteuid(UNPRIVILEGED_UID)
    yield
    os.seteuid(0)


@pytest.mark.usefixtures("unprivileged")
def test_a_file_that_is_not_writable(tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    write_log(path)
    path.chmod(0o400)
    before = path.read_bytes()
    with pytest.raises(RequestError) as refused:
        EventLog(path)
    assert refused.value.code == "log_failed"
    assert f"{path} is not writable" in refused.value.detail
    assert refused.value.next
    assert path.read_bytes() == before
    path.chmod(0o600)
    assert EventLog(path).last_seq() == 100


def test_an_empty_file_is_a_new_log(tmp_path: Path) -> None:
    """A crash at the very first start leaves an empty file."""
    (tmp_path / "g.db").touch()
    assert EventLog(tmp_path / "g.db").last_seq() == 0


def test_a_crash_while_the_tables_are_made_leaves_no_half_of_them(tmp_path: Path) -> None:
    """They are made in one transaction: otherwise the next start would find the file of another program."""
    half = sqlite3.connect(tmp_path / "half.db", isolation_level=None)
    half.execute("PRAGMA journal_mode = WAL")
    half.execute("BEGIN")
    half.execute("CREATE TABLE event (seq)")
    half.close()
    assert EventLog(tmp_path / "half.db").last_seq() == 0


def test_a_row_that_is_missing_is_named(tmp_path: Path) -> None:
    """Damage that SQLite does not detect is found when the row is read; the rows around it are still readable."""
    write_log(tmp_path / "g.db")
    log = EventLog(tmp_path / "g.db")
    log._writer.execute("DELETE FROM event WHERE seq = 50")
    with pytest.raises(RequestError, match=r"event 51 follows event 49") as refused:
        log.restore()
    assert refused.value.code == "corrupt_log"
    assert [row.seq for row in log.rows(after=51)] == [*range(52, 101)]
    assert [row.seq for row in log.rows(limit=49)] == [*range(1, 50)]


def test_a_job_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_log(tmp_path / "g.db")
    log = EventLog(tmp_path / "g.db")
    log._writer.execute("UPDATE job SET job = '{}' WHERE id = 'job-7'")
    with pytest.raises(RequestError, match="job job-7 cannot be read") as refused:
        log.job("job-7")
    assert refused.value.code == "corrupt_log"
