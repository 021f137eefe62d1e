"""Hostile ranks: they detach processes, leave zombies, ignore signals, close their outputs, or flood them."""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ganger.launcher import runtime
from ganger.launcher.health import leftovers
from ganger.launcher.health.procfs import start_ticks
from tests.launcher.harness import SH, Server, Task, is_alive
from tests.waiting import wait_until

PYTHON = [sys.executable, "-I", "-S", "-c"]
DAEMON = "env -i setsid sh -c 'echo $$ > {0}/far; exec sleep 1000' & while [ ! -s {0}/far ]; do sleep 0.01; done"
"""Detached in every way: its own session, an orphan, an empty environment."""
ORPHANS = """
import os, sys, time
for number in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.01)
        os._exit(0)
    os.wait()
open(sys.argv[1], "w").write("1")
time.sleep(1000)
"""
LINE_BYTES = 20_000_000


def _children(pid: int) -> list[str]:
    """Return the states of a process's children; one that ends meanwhile is left out."""
    states = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            states.append(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
    return states


def test_a_daemon_with_an_empty_environment_ends_with_the_generation(task: Task, server: Server) -> None:
    task.run([*SH, DAEMON.format(task.work)])
    server.wait("cleared")
    assert server.kinds() == ["started", "finished", "cleared"]
    assert not is_alive(task.pid_in("far"))


def test_a_daemon_ends_when_the_generation_is_stopped(task: Task, server: Server) -> None:
    launcher = task.run([*SH, f"{DAEMON.format(task.work)}; sleep 1000"])
    far = task.pid_in("far")
    server.stop(1)
    server.wait("cleared")
    assert not is_alive(far)
    wait_until(lambda: len(_children(launcher.pid)) == 1, "the ended daemon is reaped and the reaper is not killed")


def test_a_signal_never_hits_another_process_with_the_pid(task: Task, server: Server) -> None:
    task.run(["sleep", "1000"])
    pid = task.pids()["0"]
    leftovers.send([(pid, start_ticks(pid) + 1), (2**22, 1)], signal.SIGKILL)
    server.stop(1)
    server.wait("cleared")
    assert task.json("rank-0.exit")["signal"] == signal.SIGTERM


def test_orphans_of_a_rank_leave_no_zombie(task: Task, server: Server) -> None:
    launcher = task.run([*PYTHON, ORPHANS, f"{task.work}/all"])
    task.pid_in("all")
    wait_until(lambda: len(_children(launcher.pid)) == 2, "only the rank and the reaper remain")
    server.stop(1)
    server.wait("cleared")


def test_a_rank_that_ignores_signals_is_killed_when_its_time_is_over(task: Task, server: Server) -> None:
    code = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print('deaf', flush=True)"
    task.run([*PYTHON, f"{code}; time.sleep(1000)"])
    server.wait("started")
    wait_until(lambda: "deaf" in task.texts("o"), "it ignores signals")
    server.stop(1, kill_after_ms=200)
    server.wait("cleared")
    assert task.json("rank-0.exit")["signal"] == signal.SIGKILL


def test_a_rank_that_closes_its_outputs_continues_and_its_end_is_reported(task: Task, server: Server) -> None:
    task.run([*SH, f"echo last; exec >&- 2>&-; until [ -s {task.work}/go ]; do sleep 0.01; done; exit 3"])
    server.wait("started")
    wait_until(lambda: task.texts("o") == ["last"], "it writes")
    (task.work / "go").write_text("1")
    assert server.wait("rank_failed")["tail"] == ["last"]
    server.stop(1)
    server.wait("cleared")


def test_an_endless_line_is_written_in_pieces(task: Task, server: Server) -> None:
    """All bytes are in the log, in pieces; the launcher stays small, and responsive."""
    launcher = task.run([*PYTHON, f"import os; [os.write(1, b'x' * 100_000) for _ in range({LINE_BYTES // 100_000})]"])
    server.wait("cleared")
    pieces = [text for _, letter, text in task.records() if letter in "oO"]
    assert sum(map(len, pieces)) == LINE_BYTES
    assert max(map(len, pieces)) <= 16 * 1024
    peak_kb = int(Path(f"/proc/{launcher.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    assert peak_kb < 64 * 1024
    os.kill(launcher.pid, 0)


def test_a_limited_log_keeps_its_beginning_and_its_end(task: Task, server: Server) -> None:
    """Whatever a rank writes: this one writes bytes that are not text."""
    flood = f"[os.write(1, bytes(range(256)) * 400) for _ in range({LINE_BYTES // 102_400})]"
    code = f"import os; print('first', flush=True); {flood}; print(); print('last')"
    task.run([*PYTHON, code], log_bytes=1 << 20)
    server.wait("cleared")
    files = {int(path.suffix[1:]): path for path in task.file("rank-0.log").parent.glob("rank-0.log.*")}
    assert sum(path.stat().st_size for path in files.values()) < 1 << 20
    assert task.texts("o")[0] == "first"
    assert files[max(files)].read_text().splitlines()[-1].endswith(" o last")
    assert max(files) > LINE_BYTES


def test_a_launcher_whose_directory_was_deleted_continues_with_its_server(task: Task, server: Server) -> None:
    task.run([*SH, f"until [ -s {task.work}/go ]; do sleep 0.01; done"])
    server.wait("started")
    shutil.rmtree(task.path)
    (task.work / "go").write_text("1")
    server.wait("cleared")
    assert server.kinds() == ["started", "finished", "cleared"]
    assert not task.path.exists()


def test_a_missing_token_is_logged_once(task: Task, server: Server) -> None:
    task.run(["sleep", "1000"])
    server.wait("hello")
    (task.path / "token").unlink()
    for count in (2, 3):
        server.hang_up()
        assert server.wait("hello", count)["token"] == ""
    assert task.own_log().count("cannot read the token for the server") == 1
    server.stop(1)
    server.wait("cleared")


def test_without_directory_and_server_it_ends_its_ranks(task: Task, server: Server) -> None:
    launcher = task.run(["sleep", "1000"])
    server.wait("started")
    rank = task.pids()["0"]
    shutil.rmtree(task.path)
    server.close()
    launcher.wait(60)
    assert not is_alive(rank)
    assert not task.path.exists()


@pytest.mark.parametrize(
    ("error", "deleted"), [(FileNotFoundError, True), (NotADirectoryError, True), (PermissionError, False)]
)
def test_a_directory_that_is_closed_for_a_while_is_not_deleted(
    error: type[OSError], deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher without its server ends its ranks if its directory was deleted, and only then."""

    def fail(_: str) -> os.stat_result:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        is_deleted = runtime._is_deleted("/x")
    assert is_deleted is deleted
