"""Followers of a real server that is killed or stopped while they follow."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.rest.serving import ServerHome
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.long

SCRIPT = """
import pathlib, time
print("before", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
print("after", flush=True)
"""


@pytest.fixture
def place(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerHome]:
    """Run a server of its own for a test, in whose directory `job.py` writes a line, waits for `go`, and another."""
    Path("job.py").write_text(SCRIPT)
    server_place = ServerHome(tmp_path)
    server_place.client.connect()
    monkeypatch.setenv("GANGER_HOME", str(tmp_path))
    yield server_place
    Path("go").touch()
    server_place.close()


def _follow(shell: Shell, place: ServerHome, words: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Start a follower and wait until it has printed the first line of the job."""
    if words[0] != "run":
        assert shell("submit", "--name", "job", "job.py").code == 0
    follower = shell.start(*words)
    assert follower.stdout is not None
    if words[0] == "wait":
        wait_until(lambda: "before" in shell("logs", "job").out, "the job has begun")
    else:
        assert follower.stdout.readline() == b"before\n"
    return follower


FOLLOWERS = [("run", "--name", "job", "job.py"), ("attach", "job"), ("logs", "-f", "job"), ("wait", "job")]


@pytest.mark.parametrize("words", FOLLOWERS, ids=lambda words: words[0])
def test_a_follower_outlives_a_killed_server(shell: Shell, place: ServerHome, words: tuple[str, ...]) -> None:
    follower, killed = _follow(shell, place, words), place.pid
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: place.servers() not in ([], [killed]), "the follower starts a server")
    Path("go").touch()
    out, err = follower.communicate(timeout=DEADLINE_S)
    assert (follower.returncode, err.count(b"error")) == (0, 0), err
    assert b"succeeded" in out if words[0] == "wait" else out == b"after\n"


def test_a_follower_of_a_stopped_server_says_that_the_job_continues(shell: Shell, place: ServerHome) -> None:
    follower = _follow(shell, place, ("run", "--name", "job", "job.py"))
    place.client.shutdown()
    _, err = follower.communicate(timeout=DEADLINE_S)
    assert follower.returncode == 5
    assert re.search(r"job-\w+ continues without the server\n *next: ganger attach job-\w+\n", err.decode()), err


def test_a_follower_outlives_a_server_that_is_stopped_and_started(shell: Shell, place: ServerHome) -> None:
    follower = _follow(shell, place, ("attach", "job"))
    place.client.shutdown()
    place.client.connect()
    Path("go").touch()
    assert follower.communicate(timeout=DEADLINE_S)[0] == b"after\n"
    assert follower.returncode == 0
