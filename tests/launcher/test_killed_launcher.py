"""A killed launcher takes everything with it, and the next one finds a clean directory."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.launcher.harness import SH, Server, Task, is_alive
from tests.waiting import wait_until

WITH_CHILDREN = "echo $$ > rank; sleep 600 & echo $! > child; setsid sleep 600 & echo $! > far; wait"


def _reaper_of(launcher: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    reapers = [
        int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ganger-launcher-guard")
    ]
    assert len(reapers) == 1
    return reapers[0]


def _open_files(pid: int) -> list[Path]:
    paths = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            paths.append(descriptor.readlink())
    return paths


def test_ranks_die_with_a_killed_launcher(task: Task) -> None:
    launcher = task.run(["sleep", "600"], ranks=3)
    pids = task.pids()
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not any(map(is_alive, pids.values())), "the ranks die")


def test_processes_of_ranks_are_dead_when_the_lock_is_free(task: Task) -> None:
    launcher = task.run([*SH, WITH_CHILDREN])
    pids = [task.pid_in(name) for name in ("rank", "child", "far")]
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    task.wait_until_unlocked()
    assert [is_alive(pid) for pid in pids] == [False] * 3
    assert task.file("cleared").exists()


def test_next_launcher_kills_what_launcher_and_reaper_left(task: Task, server: Server) -> None:
    launcher = task.run([*SH, WITH_CHILDREN])
    pids = [task.pid_in(name) for name in ("rank", "child", "far")]
    server.wait("started")
    os.kill(_reaper_of(launcher.pid), signal.SIGKILL)
    launcher.kill()
    launcher.wait()
    assert is_alive(pids[2])
    task.start(generation=1)
    server.wait("cleared")
    assert [is_alive(pid) for pid in pids] == [False] * 3
    assert server.kinds() == ["started", "cleared"]  # it is not run a second time


def test_next_launcher_waits_for_the_reaper(task: Task, server: Server) -> None:
    launcher = task.run(["sleep", "600"])
    server.wait("started")
    reaper = _reaper_of(launcher.pid)
    os.kill(reaper, signal.SIGSTOP)
    try:
        launcher.kill()
        launcher.wait()
        task.plan([*SH, "exit 0"], generation=2)
        successor = task.start(generation=2)
        wait_until(lambda: task.path / "lock" in _open_files(successor.pid), "the successor waits for the lock")
        assert successor.poll() is None
        assert not task.file("rank-0.log", 2).exists()
    finally:
        os.kill(reaper, signal.SIGCONT)
    server.wait("cleared", generation=2)
    assert task.file("cleared", 1).exists()


def test_reaper_survives_signals_to_its_launchers_session(task: Task, server: Server) -> None:
    launcher = task.run([sys.executable, "-c", "import time; time.sleep(600)"])
    server.wait("started")
    reaper = _reaper_of(launcher.pid)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(reaper, number)
    assert is_alive(reaper)
    server.stop(1)
    server.wait("cleared")
    server.send("leave")
    launcher.wait()
    wait_until(lambda: not is_alive(reaper), "the reaper ends with its launcher")


def test_cleared_generation_is_not_run_again_by_the_next_launcher(task: Task, server: Server) -> None:
    launcher = task.run([*SH, "echo ran >> ran"])
    server.wait("cleared")
    launcher.kill()
    launcher.wait()
    task.start(generation=1)
    server.wait("cleared", count=2)
    assert (task.work / "ran").read_text() == "ran\n"
