"""Observations of real processes: their rank, their state, and their stacks, by py-spy or faulthandler."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.health import stacks
from ganger.launcher.health.proc_stats import ProcStats, rank_in
from ganger.launcher.health.stacks import Stacks
from tests.waiting import wait_until

PY_SPY = str(Path(sys.executable).with_name("py-spy"))
REPORTS = """
import threading, time
from ganger import train

def deep():
    time.sleep(1000)

train.report(step=0)
threading.Thread(target=deep, daemon=True).start()
deep()
"""
Begin = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Return a function that starts a process of the generation in this test's directory."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "GANGER_TASK_DIR": str(tmp_path), **variables}
        processes.append(subprocess.Popen(argv, env=environment))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def training_rank(begin: Begin, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Start a rank that has reported, and sleeps in two threads."""
    process = begin(sys.executable, "-c", REPORTS, GANGER_RANK="3")
    report = tmp_path / "rank-3.report"
    wait_until(lambda: report.exists() and report.read_text(), "it reports")
    wait_until(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 2, "its second thread runs")
    return process


def take_stacks(folder: Path, pid: int, py_spy: str | None) -> dict[str, Any]:
    collection = Stacks(str(folder), {3: [pid]}, py_spy, time.monotonic())
    wait_until(lambda: collection.is_done(time.monotonic()), "the stacks are taken")
    process: dict[str, Any] = json.loads((folder / "rank-3.stacks").read_text())["processes"][0]
    return process


def test_ranks_are_identified_by_environment_variables(begin: Begin, tmp_path: Path) -> None:
    stats, ranks = ProcStats(str(tmp_path)), []
    ranks += [
        begin("sleep", "1000", OMPI_COMM_WORLD_RANK="1"),
        begin("sleep", "1000"),
        begin("sleep", "1000", RANK="4"),
    ]
    foreign = begin("sleep", "1000", GANGER_TASK_DIR="/another", RANK="5")

    def pids_by_rank() -> dict[int | None, list[int]]:
        stats.scan()
        groups = {**stats.of_ranks, None: stats.processes_without_rank}
        return {rank: [process.pid for process in processes] for rank, processes in groups.items()}

    expected = {1: [ranks[0].pid], None: [ranks[1].pid], 4: [ranks[2].pid]}
    wait_until(lambda: pids_by_rank() == expected, "all processes are found")
    os.kill(ranks[0].pid, signal.SIGSTOP)
    wait_until(lambda: stats.read([ranks[0].pid])[ranks[0].pid].state == "T", "it is stopped")
    ranks[0].kill()
    wait_until(lambda: not stats.read([ranks[0].pid])[ranks[0].pid].lives, "it is a zombie")
    assert stats.any_rank_lives()
    ranks[2].kill()
    wait_until(lambda: not stats.any_rank_lives(), "none lives")
    assert foreign.pid not in {process.pid for process in stats.processes_without_rank}


def test_a_child_that_has_cleared_its_environment_is_of_its_rank(begin: Begin, tmp_path: Path) -> None:
    """Else a rank that waits for its work seems to do nothing."""
    stats = ProcStats(str(tmp_path))
    rank = begin("sh", "-c", "env -i sleep 1000 & wait", GANGER_RANK="2")

    def names() -> list[str]:
        stats.scan()
        return [process.name for process in stats.of_ranks.get(2, ())]

    wait_until(lambda: names() == ["sh", "sleep"], "both are of the rank")
    child = stats.of_ranks[2][1].pid
    rank.kill()
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(("py_spy", "source"), [(PY_SPY, "py-spy"), (None, "faulthandler")])
def test_stacks_of_all_threads_are_written(
    py_spy: str | None, source: str, training_rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    def names() -> list[list[str]]:
        process = take_stacks(tmp_path, training_rank.pid, py_spy)
        assert (process["source"], process["state"]) == (source, "S") or process["state"] == "R"
        threads = sorted(process["threads"], key=lambda thread: thread["name"] != "MainThread")
        return [[frame[0] for frame in thread["frames"]] for thread in threads]

    wait_until(lambda: [frames[:1] for frames in names()] == [["deep"]] * 2, "both threads sleep")
    assert names()[0] == ["deep", "<module>"]
    assert training_rank.poll() is None


def test_stack_of_a_stopped_rank_needs_py_spy(training_rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    training_rank.send_signal(signal.SIGSTOP)
    wait_until(lambda: ProcStats("").read([training_rank.pid])[training_rank.pid].state == "T", "it is stopped")
    assert take_stacks(tmp_path, training_rank.pid, PY_SPY)["threads"]
    without = take_stacks(tmp_path, training_rank.pid, None)
    assert (without["threads"], without["state"]) == ([], "T")


def test_other_programs_have_no_python_stack(begin: Begin, tmp_path: Path) -> None:
    process = begin("sleep", "1000")
    wait_until(lambda: ProcStats("").read([process.pid])[process.pid].name == "sleep", "it sleeps")
    stack = take_stacks(tmp_path, process.pid, PY_SPY)
    assert (stack["threads"], stack["source"]) == ([], "")
    assert process.poll() is None, "a signal that it does not handle would have ended it"


def test_ended_process_has_no_stack(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    stack = take_stacks(tmp_path, process.pid, PY_SPY)
    assert (stack["state"], stack["threads"]) == ("?", [])


def test_handler_of_the_script_is_kept(begin: Begin, tmp_path: Path) -> None:
    code = f"import signal; signal.signal({int(stacks.TRACE_SIGNAL)}, lambda *_: print('mine', flush=True))\n{REPORTS}"
    process = begin(sys.executable, "-c", code, GANGER_RANK="3")
    report = tmp_path / "rank-3.report"
    wait_until(lambda: report.exists() and report.read_text(), "it reports")
    assert not (tmp_path / "rank-3.trace").exists()
    assert process.poll() is None


@pytest.mark.parametrize("rank", ["1000000", "9" * 5_000])
def test_variable_with_too_many_digits_is_ignored(rank: str) -> None:
    assert rank_in(f"\0RANK={rank}\0".encode()) is None
    assert rank_in(b"\0RANK=999999\0") == 999_999


@pytest.mark.parametrize(("line", "expected"), [(-1, 0), (1 << 60, (1 << 53) - 1), (float("inf"), (1 << 53) - 1)])
def test_frames_are_cut_to_the_servers_limits(tmp_path: Path, line: float, expected: int) -> None:
    frame = {"name": "f" * 12_000, "filename": "x" * 12_000, "line": line}
    text = json.dumps([{"pid": 7, "os_thread_id": 7, "thread_name": None, "frames": [frame]}])
    assert stacks._parse_py_spy(text.encode()) == [
        {"name": "MainThread", "frames": [["f" * 1_000, "x" * 1_000, expected]]}
    ]
    assert stacks._parse_py_spy(b"[" * 100_000) == []
    trace = tmp_path / "rank-0.trace"
    trace.write_text(f'Thread 0x0001 (most recent call first):\n  File "x.py", line {"9" * 5_000} in f\n')
    assert stacks._parse_faulthandler(str(trace), 0)[0]["frames"] == [["f", "x.py", 999_999_999]]
