"""Somebody deletes files of a server that runs, one after the other, or all of them. Jobs run on, and are found."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.badinput.yard import Worked, Yard, wait_for, worked

FILES = ("server.sock", "launcher.sock", "ganger.db")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """Jobs in a yard."""
    with Yard(tmp_path_factory.mktemp("deleted")) as yard, worked(yard) as jobs:
        yield jobs


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_server_comes_back_and_nothing_is_lost(name: str, jobs: Worked) -> None:
    yard, path = jobs.yard, jobs.yard.home.path / name
    pid = yard.pid
    for each in yard.home.path.glob(f"{name}*"):
        each.unlink()
    wait_for(path.exists, f"{name} is there again")
    new = yard.fine("submit", "ok.py")
    yard.until(new, "succeeded")
    assert yard.pid == pid, "it is the same process"
    assert f"{path} was deleted: the server runs itself anew" in yard.home.server_log.read_text()
    yard.fine("delete", new)
    jobs.are_safe()


def test_where_all_of_it_is_deleted_nothing_is_left_running(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    runs = yard.fine("submit", "wait.py", "never")
    yard.until(runs, "running")
    server = psutil.Process(yard.pid)
    place = str(yard.home.path)
    shutil.rmtree(yard.home.path)
    server.wait(60)
    wait_for(lambda: not any(place in word for word in _commands()), "its launcher is gone")
    assert not yard.home.path.exists()


def _commands() -> list[str]:
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
