"""Unusable or damaged state directories: the server does not start and reports why.

Meanwhile a job runs that an earlier server started. After the suggested repair it is adopted, and finishes.
"""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ganger.server.state_directory import lost_log
from ganger.settings import Home
from tests.badinput.yard import GANGER, SERVE, Worked, Yard, worked

pytestmark = pytest.mark.long

LS = (GANGER, "ls")


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault that is present while `happens` is open, and the error of a command."""

    happens: Callable[[Yard], AbstractContextManager[None]]
    expected: str
    next: str
    command: tuple[str, ...] = LS
    code: int = 5


@contextmanager
def another_listens(yard: Yard, name: str) -> Iterator[None]:
    """Let another program have the socket, which never answers."""
    path = yard.home.path / name
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        yield
    path.unlink()


@contextmanager
def file_in_the_way(yard: Yard) -> Iterator[None]:
    """Put a file at the path of the socket."""
    path = yard.home.path / "server.sock"
    path.write_text("mine")
    yield
    assert path.read_text() == "mine"
    path.unlink()


@contextmanager
def overwritten(yard: Yard, content: bytes) -> Iterator[None]:
    """Overwrite the beginning of the database. The server must leave it as it is, byte for byte."""
    database = yard.home.database
    good = database.read_bytes()
    broken = content + good[len(content) :]
    database.write_bytes(broken)
    yield
    assert database.read_bytes() == broken
    database.write_bytes(good)


@contextmanager
def lost(yard: Yard, *, is_empty: bool) -> Iterator[None]:
    """Delete the database, or leave an empty file in its place."""
    database = yard.home.database
    aside = yard.home.path / "aside.db"
    database.rename(aside)
    if is_empty:
        database.touch()
    yield
    assert database.exists() == is_empty
    doctor = yard.ganger("doctor")
    assert doctor.code == 1
    assert "the event log was deleted" in doctor.out
    aside.rename(database)


@contextmanager
def topology(yard: Yard, text: str) -> Iterator[None]:
    """Write a file for --topology; the one in use must stay in use."""
    yard.put("bad.yaml", text)
    before = yard.home.topology.read_bytes()
    yield
    assert yard.home.topology.read_bytes() == before


@contextmanager
def closed(yard: Yard, mode: int) -> Iterator[None]:
    """Give the state directory another mode."""
    yard.home.path.chmod(mode)
    yield
    yard.home.path.chmod(0o700)


START = (GANGER, "server", "start", "--topology", "bad.yaml")
TROUBLES = {
    "server socket in use": Trouble(
        lambda yard: another_listens(yard, "server.sock"), "server.sock is in use by another program", "ss -xlp"
    ),
    "launcher socket in use": Trouble(
        lambda yard: another_listens(yard, "launcher.sock"), "launcher.sock is in use by another program", "ss -xlp"
    ),
    "file where the socket belongs": Trouble(file_in_the_way, "server.sock is in the way: it is not a socket", "mv "),
    "database that is none": Trouble(
        lambda yard: overwritten(yard, b"no database at all"), "cannot be read as an event log", "ganger.db.broken"
    ),
    "corrupt database": Trouble(
        lambda yard: overwritten(yard, yard.home.database.read_bytes()[:100] + b"\xa5" * 8000),
        "cannot be read as an event log",
        "ganger.db.broken",
    ),
    "deleted database": Trouble(
        lambda yard: lost(yard, is_empty=False), "ganger.db does not exist, but ", "with an empty log"
    ),
    "empty database": Trouble(lambda yard: lost(yard, is_empty=True), "ganger.db is empty, but ", "with an empty log"),
    "topology that is not YAML": Trouble(lambda yard: topology(yard, "nodes: [\n"), "bad.yaml:2:1: ", "", START),
    "topology with an unknown key": Trouble(
        lambda yard: topology(yard, "nodes:\n  - {name: n1, gpsu: 4}\n"),
        "bad.yaml:2:16: unknown key",
        "mean gpu?",
        START,
    ),
    "topology of a wrong type": Trouble(
        lambda yard: topology(yard, "nodes: [{name: n1, gpus: many}]\n"), "gpus must be an integer", "4", START
    ),
    "no such topology": Trouble(
        lambda yard: topology(yard, ""), "does not exist", "--help", (*START[:-1], "none.yaml"), code=2
    ),
    "topology is a directory": Trouble(
        lambda yard: topology(yard, ""), "is a directory", "--help", (*START[:-1], "."), code=2
    ),
    "directory open to others": Trouble(lambda yard: closed(yard, 0o755), "is open to other users", "chmod 700 "),
    "unreadable directory": Trouble(lambda yard: closed(yard, 0o000), "Permission denied", "GANGER_HOME"),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """Run jobs in a yard with a topology."""
    with Yard(tmp_path_factory.mktemp("state")) as yard:
        yard.fine("server", "start", "--topology", "topology.yaml")
        with worked(yard) as jobs:
            yield jobs


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES.keys())
def test_a_server_that_cannot_start_reports_why_and_loses_nothing(trouble: Trouble, jobs: Worked) -> None:
    yard = jobs.yard
    yard.fine("server", "stop")
    with trouble.happens(yard):
        yard.type(*trouble.command).refuses(trouble.code, trouble.expected, trouble.next)
    assert [node["name"] for node in json.loads(yard.fine("node", "-o", "json"))] == ["n1", "n2"]
    jobs.are_safe()


def test_a_second_server_names_the_first_and_exits(jobs: Worked) -> None:
    jobs.yard.fine("ls")
    first = jobs.yard.pid
    result = jobs.yard.type(*SERVE, "--home", str(jobs.yard.home.path))
    assert result.code == 5
    assert f"another server is running for {jobs.yard.home.path}: pid {first}" in result.err
    assert "next: ganger server status" in result.err
    assert jobs.yard.pid == first
    jobs.are_safe()


def test_concurrent_starts_yield_one_server(jobs: Worked) -> None:
    yard = jobs.yard
    yard.fine("ls")
    yard.fine("server", "stop")
    command = [GANGER, "server", "start", "-o", "json"]
    starts = [subprocess.Popen(command, env=yard.environment, stdout=subprocess.PIPE) for _ in range(3)]
    assert {json.loads(start.communicate()[0])["pid"] for start in starts} == {yard.pid}
    jobs.are_safe()


def test_endless_topology_file(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.ganger("server", "start", "--topology", "/dev/zero").refuses(2, "longer than 16 MiB", "another file")
    assert not yard.home.topology.exists()


UNUSABLE = {
    "a file": ("ok.py", "a file is in the way"),
    "below a file": ("ok.py/state", "a file is in the way"),
    "where nobody may write": ("locked/state", "Permission denied"),
    "where nothing can be": ("/proc/state", "No such file or directory"),
}


@pytest.mark.parametrize(("home", "expected"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_state_directory(home: str, expected: str, tmp_path: Path) -> None:
    yard = Yard(tmp_path, tmp_path / home)
    (tmp_path / "locked").mkdir(mode=0o500)
    for args in (("ls",), ("submit", "ok.py"), ("server", "start", "--topology", "topology.yaml")):
        yard.ganger(*args).refuses(5, expected, "set GANGER_HOME to a directory of yours")
    doctor = yard.ganger("doctor")
    assert doctor.code == 1
    assert f"FAULT  home      {yard.home.path} " in doctor.out
    assert "next: set GANGER_HOME to a directory of yours" in doctor.out
    (tmp_path / "locked").rmdir()
    assert (tmp_path / "ok.py").read_text() == "print('ok')\n"


def test_a_log_that_was_moved_aside_on_advice_is_not_missed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.jobs / "a-1").mkdir(parents=True)
    assert lost_log(home)
    home.database.with_name("ganger.db.before-restore-20260101T000000").touch()
    assert lost_log(home)
    home.database.with_name("ganger.db.broken").touch()
    assert not lost_log(home)
