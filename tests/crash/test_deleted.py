"""Deletion of a running server's files, one after the other, or all of them: jobs continue, and are found."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ganger.server.state_directory import missing_file
from ganger.settings import Home
from tests.badinput.yard import Worked, Yard, wait_for, worked

pytestmark = pytest.mark.long

FILES = ("server.sock", "launcher.sock", "ganger.db")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """Start jobs in a yard."""
    with Yard(tmp_path_factory.mktemp("deleted")) as yard, worked(yard) as jobs:
        yield jobs


def test_deleted_files_are_recreated_and_nothing_is_lost(jobs: Worked) -> None:
    yard, pid = jobs.yard, jobs.yard.pid
    for name in FILES:
        for path in yard.home.path.glob(f"{name}*"):
            path.unlink()
    wait_for(lambda: all((yard.home.path / name).exists() for name in FILES), "they exist again")
    new = yard.fine("submit", "ok.py")
    yard.until(new, "succeeded")
    assert yard.pid == pid, "it is the same process"
    assert "was deleted: restarting the server" in yard.home.server_log.read_text()
    yard.fine("delete", new)
    jobs.are_safe()


@pytest.mark.parametrize("name", FILES)
def test_each_missing_file_is_detected(name: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    for file in FILES:
        (tmp_path / file).touch()
    assert missing_file(home) is None
    (tmp_path / name).unlink()
    assert missing_file(home) == tmp_path / name


def test_read_only_directory_refuses_new_jobs(jobs: Worked) -> None:
    jobs.yard.home.jobs.chmod(0o500)
    jobs.yard.ganger("submit", "ok.py").refuses(4, "Permission denied", f"ls -ld {jobs.yard.home.jobs}")
    jobs.yard.home.jobs.chmod(0o700)
    jobs.are_safe()


def test_nothing_runs_after_everything_was_deleted(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    job = yard.fine("submit", "wait.py", "never")
    yard.until(job, "running")
    server = psutil.Process(yard.pid)
    directory = str(yard.home.path)
    shutil.rmtree(yard.home.path)
    server.wait(60)
    wait_for(lambda: not any(directory in word for word in _commands()), "its launcher is gone")
    assert not yard.home.path.exists()


def _commands() -> list[str]:
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
