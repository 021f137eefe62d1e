"""What is seen of real processes: whose rank they are, what they do, and where they are, by py-spy or faulthandler."""

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
from tests.launcher.harness import eventually

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
    """Starts a process of the generation in this test's directory."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "GANGER_TASK_DIR": str(tmp_path), **variables}
        begun.append(subprocess.Popen(argv, env=environment))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


@pytest.fixture
def trains(begin: Begin, tmp_path: Path) -> subprocess.Popen[bytes]:
    """A rank that has reported, and sleeps in two threads."""
    process = begin(sys.executable, "-c", REPORTS, GANGER_RANK="3")
    report = tmp_path / "rank-3.report"
    eventually(lambda: report.exists() and report.read_text(), "it reports")
    eventually(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 2, "its second thread runs")
    return process


def taken(folder: Path, pid: int, py_spy: str | None) -> dict[str, Any]:
    looks = Stacks(str(folder), {3: [pid]}, py_spy, time.monotonic())
    eventually(lambda: looks.is_done(time.monotonic()), "the stacks are taken")
    found: dict[str, Any] = stacks.json.loads((folder / "rank-3.stacks").read_text())["processes"][0]
    return found


def test_processes_are_told_apart_by_their_variables(begin: Begin, tmp_path: Path) -> None:
    seen, begun = ProcStats(str(tmp_path)), []
    begun += [
        begin("sleep", "1000", OMPI_COMM_WORLD_RANK="1"),
        begin("sleep", "1000"),
        begin("sleep", "1000", RANK="4"),
    ]
    other = begin("sleep", "1000", GANGER_TASK_DIR="/another", RANK="5")

    def found() -> dict[int, list[int]]:
        seen.find()
        return {rank: [vital.pid for vital in vitals] for rank, vitals in seen.of_ranks.items()}

    wanted = {1: [begun[0].pid], 4: [begun[2].pid]}
    eventually(lambda: found() == wanted, "the ranks are found")
    assert [vital.pid for vital in seen.others] == [begun[1].pid]
    os.kill(begun[0].pid, signal.SIGSTOP)
    eventually(lambda: seen.look([begun[0].pid])[begun[0].pid].state == "T", "it is stopped")
    begun[0].kill()
    eventually(lambda: not seen.look([begun[0].pid])[begun[0].pid].lives, "it is a zombie")
    assert seen.any_rank_lives()
    begun[2].kill()
    eventually(lambda: not seen.any_rank_lives(), "none lives")
    assert other.pid not in {vital.pid for vital in seen.others}


@pytest.mark.parametrize(("py_spy", "by"), [(PY_SPY, "py-spy"), (None, "faulthandler")])
def test_threads_of_a_rank_are_written_down(
    py_spy: str | None, by: str, trains: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    def names() -> list[list[str]]:
        found = taken(tmp_path, trains.pid, py_spy)
        assert (found["by"], found["state"]) == (by, "S") or found["state"] == "R"
        threads = sorted(found["threads"], key=lambda thread: thread["name"] != "MainThread")
        return [[frame[0] for frame in thread["frames"]] for thread in threads]

    eventually(lambda: [each[:1] for each in names()] == [["deep"]] * 2, "both threads sleep")
    assert names()[0] == ["deep", "<module>"]
    assert trains.poll() is None


def test_stopped_rank_shows_its_stack_to_py_spy_alone(trains: subprocess.Popen[bytes], tmp_path: Path) -> None:
    trains.send_signal(signal.SIGSTOP)
    eventually(lambda: ProcStats("").look([trains.pid])[trains.pid].state == "T", "it is stopped")
    assert taken(tmp_path, trains.pid, PY_SPY)["threads"]
    without = taken(tmp_path, trains.pid, None)
    assert (without["threads"], without["state"]) == ([], "T")


def test_what_is_no_python_shows_where_the_kernel_has_it(begin: Begin, tmp_path: Path) -> None:
    process = begin("sleep", "1000")
    eventually(lambda: ProcStats("").look([process.pid])[process.pid].name == "sleep", "it sleeps")
    found = taken(tmp_path, process.pid, PY_SPY)
    assert (found["threads"], found["by"]) == ([], "")
    assert process.poll() is None, "a signal that it does not handle would have ended it"


def test_process_that_is_gone_is_told_as_such(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    found = taken(tmp_path, process.pid, PY_SPY)
    assert (found["state"], found["threads"]) == ("?", [])


def test_scripts_own_handler_stays(begin: Begin, tmp_path: Path) -> None:
    code = f"import signal; signal.signal({int(stacks.TRACE_SIGNAL)}, lambda *_: print('mine', flush=True))\n{REPORTS}"
    process = begin(sys.executable, "-c", code, GANGER_RANK="3")
    report = tmp_path / "rank-3.report"
    eventually(lambda: report.exists() and report.read_text(), "it reports")
    assert not (tmp_path / "rank-3.trace").exists()
    assert process.poll() is None


@pytest.mark.parametrize("rank", ["1000000", "9" * 5_000])
def test_a_variable_with_more_digits_than_a_rank_has_is_none(rank: str) -> None:
    assert rank_in(f"\0RANK={rank}\0".encode()) is None
    assert rank_in(b"\0RANK=999999\0") == 999_999


@pytest.mark.parametrize(("line", "told"), [(-1, 0), (1 << 60, (1 << 53) - 1), (float("inf"), (1 << 53) - 1)])
def test_frames_are_cut_to_what_the_server_takes(tmp_path: Path, line: float, told: int) -> None:
    frame = {"name": "f" * 12_000, "filename": "x" * 12_000, "line": line}
    text = stacks.json.dumps([{"thread_name": "MainThread", "frames": [frame]}])
    assert stacks._spied(text.encode()) == [{"name": "MainThread", "frames": [["f" * 1_000, "x" * 1_000, told]]}]
    assert stacks._spied(b"[" * 100_000) == []
    trace = tmp_path / "rank-0.trace"
    trace.write_text(f'Thread 0x0001 (most recent call first):\n  File "x.py", line {"9" * 5_000} in f\n')
    assert stacks._dumped(str(trace), 0)[0]["frames"] == [["f", "x.py", 999_999_999]]
