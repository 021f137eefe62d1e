"""A launcher that is killed takes everything with it, and whoever comes after it finds the place clean."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.launcher.harness import Server, Task, eventually, is_alive

SH = ["/bin/sh", "-c"]
WITH_CHILDREN = "echo $$ > rank; sleep 600 & echo $! > child; setsid sleep 600 & echo $! > far; wait"


def _guard_of(launcher: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    named = [
        int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ganger-launcher-guard")
    ]
    assert len(named) == 1
    return named[0]


def _open_files(pid: int) -> list[Path]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(descriptor.readlink())
    return found


def test_ranks_die_with_a_killed_launcher(task: Task) -> None:
    launcher = task.run(["sleep", "600"], ranks=3)
    pids = task.pids()
    launcher.kill()
    launcher.wait()
    eventually(lambda: not any(map(is_alive, pids.values())), "the ranks die")


def test_what_ranks_started_dies_too_and_the_place_is_clean_when_the_lock_is_free(task: Task) -> None:
    launcher = task.run([*SH, WITH_CHILDREN])
    pids = [task.pid_in(name) for name in ("rank", "child", "far")]
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    task.wait_until_unlocked()
    assert [is_alive(pid) for pid in pids] == [False] * 3
    assert task.file("cleared").exists()


def test_next_launcher_clears_what_launcher_and_guard_left(task: Task, server: Server) -> None:
    launcher = task.run([*SH, WITH_CHILDREN])
    pids = [task.pid_in(name) for name in ("rank", "child", "far")]
    server.wait("started")
    os.kill(_guard_of(launcher.pid), signal.SIGKILL)
    launcher.kill()
    launcher.wait()
    assert is_alive(pids[2])
    task.start(generation=1)
    server.wait("cleared")
    assert [is_alive(pid) for pid in pids] == [False] * 3
    assert server.kinds() == ["started", "cleared"]  # it is not run a second time


def test_next_launcher_waits_for_the_guard(task: Task, server: Server) -> None:
    launcher = task.run(["sleep", "600"])
    server.wait("started")
    guard = _guard_of(launcher.pid)
    os.kill(guard, signal.SIGSTOP)
    try:
        launcher.kill()
        launcher.wait()
        task.plan([*SH, "exit 0"], generation=2)
        successor = task.start(generation=2)
        eventually(lambda: task.path / "lock" in _open_files(successor.pid), "the successor stands at the lock")
        assert successor.poll() is None
        assert not task.file("rank-0.log", 2).exists()
    finally:
        os.kill(guard, signal.SIGCONT)
    server.wait("cleared", generation=2)
    assert task.file("cleared", 1).exists()


def test_guard_survives_what_stops_its_launchers_session(task: Task, server: Server) -> None:
    launcher = task.run([sys.executable, "-c", "import time; time.sleep(600)"])
    server.wait("started")
    guard = _guard_of(launcher.pid)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(guard, number)
    assert is_alive(guard)
    server.stop(1)
    server.wait("cleared")
    server.send("leave")
    launcher.wait()
    eventually(lambda: not is_alive(guard), "the guard leaves with its launcher")


def test_cleared_generation_is_not_run_again_by_the_next_launcher(task: Task, server: Server) -> None:
    launcher = task.run([*SH, "echo ran >> ran"])
    server.wait("cleared")
    launcher.kill()
    launcher.wait()
    task.start(generation=1)
    server.wait("cleared", count=2)
    assert (task.work / "ran").read_text() == "ran\n"
