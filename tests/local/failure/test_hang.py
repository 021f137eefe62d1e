"""Hanging gangs: detected, attributed to a rank, and reported as a failure before any process is killed."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.launcher.health.hang_detection import MAX_POLL_GAP_S
from ganger.model.decision import Cause
from ganger.model.event import Failed, Quiet
from ganger.model.job_sections.retry_spec import Limits
from ganger.ports import LiveGeneration
from tests.local.world import Server, make_job, make_start, make_stop
from tests.waiting import wait_until

pytestmark = pytest.mark.serial

Serve = Callable[..., Server]

LINGERS = """\
#!/bin/sh
OMPI_COMM_WORLD_RANK=0 sleep 1000 &
echo $! > {folder}/pid
read line < {folder}/never
"""
"""As Open MPI's mpirun does occasionally: it does not notice that all its processes are gone."""
FREEZES = Path(__file__).parents[3] / "bench" / "hangs" / "freezing.py"
PLAIN = """
import os, sys, time

open(f"{sys.argv[1]}/pid-" + os.environ["GANGER_RANK"], "w").write(str(os.getpid()))
while True:
    print("works", flush=True)
    time.sleep(0.1)
"""
BESIDE = """
import signal, subprocess, sys, time

child = subprocess.Popen([sys.executable, "-c", "sum(range(30_000_000)); input()"], stdin=subprocess.PIPE)
time.sleep(3)
child.send_signal(signal.SIGSTOP)
time.sleep(6)
child.kill()
"""
COLLECTIVE = """
import time

def all_reduce():
    while True:  # some of a processor: the machine has few
        sum(range(200_000)); time.sleep(0.05)
"""
"""As NCCL waits: with a processor. The library of that name is not needed for the stack."""
ONE_ELSEWHERE = """
import os, sys, time
sys.path.insert(0, os.path.dirname(__file__))
from torch.distributed import all_reduce

def load():
    while True:
        time.sleep(0.5) if sys.argv[1] == "idle" else (sum(range(200_000)), time.sleep(0.05))

load() if os.environ["GANGER_RANK"] == "2" else all_reduce()
"""
QUIET = """
import os, sys, time
from ganger import train

for step in range(1000000):
    time.sleep(0.05)
    sum(range(10000))
    if os.environ["GANGER_RANK"] == "0":
        train.report(step=step)
    if step == 3:
        open(f"{sys.argv[1]}/pid-" + os.environ["GANGER_RANK"], "w").write(str(os.getpid()))
"""


def fake_mpirun(folder: Path) -> str:
    path = folder / "mpirun"
    path.write_text(LINGERS.format(folder=folder))
    path.chmod(0o700)
    os.mkfifo(folder / "never")
    return str(path)


class Gang:
    """Two ranks on each node; {folder} in `line` is the gang's own folder."""

    def __init__(self, server: Server, folder: Path, line: str, nodes: int = 2) -> None:
        self.server, self.folder = server, folder
        folder.mkdir()
        self.nodes = nodes
        self.job = make_job(folder, line.format(python=sys.executable, folder=folder), nodes=nodes)
        self.start = make_start(self.job, nodes)
        server.backend.start(self.start, self.job)

    def pid(self, rank: int) -> int:
        path = self.folder / f"pid-{rank}"
        wait_until(lambda: path.exists() and path.read_text(), f"rank {rank} steps")
        return int(path.read_text())

    def steps(self) -> None:
        """Wait until every rank has done some steps."""
        task = self.server.files.task(self.job.id, "n1").generation(1)
        report = task / "rank-0.report"
        wait_until(lambda: report.exists() and report.read_text().count('"step"') > 5, "it steps")

    def fails(self) -> Failed:
        failed = self.server.wait("failed", gang=self.job.id)
        assert isinstance(failed, Failed)
        self.server.backend.stop(make_stop(self.start, failed.cause), self.job)
        self.server.wait("cleared", self.nodes, gang=self.job.id)
        return failed

    def main_threads(self) -> dict[int, tuple[str, ...]]:
        """Return the stack of each rank's main thread."""
        stacks = self.server.backend.stacks(self.job.id, 1)
        assert stacks is not None
        main_groups = [group for group in stacks.groups if group.thread == "MainThread"]
        return {rank: group.frames for group in main_groups for rank in group.ranks}


def test_stopped_blocked_and_dead_ranks_are_found_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    server, line = serve().open(), f"{{python}} {FREEZES} {{folder}} 0.05"
    lines = {"stop": f"exec {line}", "block": f"exec {line}", "die": f"{line}; sleep 1000"}
    gangs = {fault: Gang(server, tmp_path / fault, command) for fault, command in lines.items()}
    for gang in gangs.values():
        gang.steps()
    server.close()
    for fault, gang in gangs.items():
        (gang.folder / "do-2").write_text(fault)
        wait_until((gang.folder / "did-2").exists, f"it was told to {fault}")
    server = serve().open(*(LiveGeneration(job=gang.job, start=gang.start) for gang in gangs.values()))
    expected = {"stop": "has been stopped", "block": "has been blocked in the kernel", "die": "is dead"}
    for fault, gang in gangs.items():
        gang.server = server
        failed = gang.fails()
        assert (failed.cause, failed.rank, failed.node) == (Cause.HUNG, 2, "n2"), (fault, failed)
        assert failed.detail.startswith(f"rank 2 on n2 {expected[fault]}")
        assert failed.since_ms is not None
        places = gang.main_threads()
        assert set(places) == {0, 1, 2, 3}
        if fault != "die":  # its peers notice and exit
            assert all("freezing.py" in frames[-1] for frames in places.values())


@pytest.mark.long
def test_a_suspended_machine_causes_no_hang(serve: Serve, tmp_path: Path) -> None:
    server = serve().open()
    gang = Gang(server, tmp_path / "sleeps", f"exec {{python}} {FREEZES} {{folder}} 0.05")
    gang.steps()
    asleep = [*server.launchers().values(), *server.pids(server.files.jobs)]
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    report = server.files.task(gang.job.id, "n1").generation(1) / "rank-0.report"
    asleep_s = MAX_POLL_GAP_S + 1
    wait_until(lambda: time.time() - report.stat().st_mtime > asleep_s, "it sleeps for longer than a poll may take")
    for pid in reversed(asleep):
        os.kill(pid, signal.SIGCONT)
    before = report.stat().st_size
    wait_until(lambda: report.stat().st_size > before + 1000, "it steps again")
    assert not server.of("failed")


def test_rank_that_reports_nothing_is_found_stopped(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(QUIET)
    gang = Gang(serve().open(), tmp_path / "quiet", f"{{python}} {tmp_path}/quiet.py {{folder}}; true")
    gang.steps()
    os.kill(gang.pid(3), signal.SIGSTOP)
    failed = gang.fails()
    assert (failed.cause, failed.rank, failed.node) == (Cause.HUNG, 3, "n2")


@pytest.mark.parametrize("nodes", [1, 2])
def test_stopped_rank_of_a_script_without_reports_is_found(serve: Serve, tmp_path: Path, nodes: int) -> None:
    """It is neither waited for a step, of which there is none, nor for a minute of work."""
    (tmp_path / "plain.py").write_text(PLAIN)
    gang = Gang(serve(nodes).open(), tmp_path / "plain", f"{{python}} {tmp_path}/plain.py {{folder}}; true", nodes)
    last = 2 * nodes - 1
    os.kill(gang.pid(last), signal.SIGSTOP)
    failed = gang.fails()
    assert (failed.cause, failed.rank, failed.node) == (Cause.HUNG, last, f"n{nodes}")
    assert failed.detail.startswith(f"rank {last} on n{nodes} has been stopped (state T")


@pytest.mark.long
@pytest.mark.parametrize("line", ["exec {}", "{}; true"])
def test_a_rank_that_stops_a_process_of_its_own_does_not_hang(serve: Serve, tmp_path: Path, line: str) -> None:
    """The stopped one has worked more than all others so far, and nothing of the rank works beside it."""
    (tmp_path / "beside.py").write_text(BESIDE)
    server = serve(1).open()
    job = make_job(tmp_path, line.format(f"{sys.executable} {tmp_path}/beside.py"), nodes=1, nproc_per_node=1)
    server.backend.start(make_start(job, nodes=1), job)
    server.wait("finished")
    assert not server.of("failed")


@pytest.mark.long
def test_the_rank_that_the_others_spin_for_hangs_if_it_is_idle_and_is_named_if_not(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "torch" / "distributed" / "__init__.py").write_text(COLLECTIVE)
    (tmp_path / "train.py").write_text(ONE_ELSEWHERE)
    server = serve().open()
    jobs = {}
    for what in ("idle", "busy"):
        line = f"exec {sys.executable} {tmp_path}/train.py {what}"
        jobs[what] = make_job(tmp_path, line, nodes=2, limits=Limits(hang_time_ms=8_000))
        server.backend.start(make_start(jobs[what]), jobs[what])
    failed = server.wait("failed", gang=jobs["idle"].id)
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.rank, failed.node) == (Cause.HUNG, 2, "n2")
    assert failed.detail.startswith("3 of 4 ranks wait in all_reduce at train.py:")
    quiet = server.wait("quiet", gang=jobs["busy"].id)
    assert isinstance(quiet, Quiet)
    assert quiet.places.startswith("3 of 4 ranks are in all_reduce at train.py:")
    assert ", rank 2 on n2 is in load at train.py:8, " in quiet.places
    assert not [event for event in server.of("failed") if event.gang == jobs["busy"].id]


def test_mpirun_that_outlives_its_processes_fails_the_job(serve: Serve, tmp_path: Path) -> None:
    server = serve(1).open()
    job = make_job(tmp_path, (fake_mpirun(tmp_path), "program"), framework="mpi", nodes=1, nproc_per_node=1)
    start = make_start(job, nodes=1)
    server.backend.start(start, job)
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text().strip(), "the process runs")
    server.wait("started")
    hang = server.backend._runtime.generations[job.id]
    wait_until(lambda: any(report.has_run for report in hang.stall_reports.values()), "the process was seen")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    failed = server.wait("failed")
    assert (failed.cause, failed.node, failed.rank, failed.exit_code) == (Cause.RANK_FAILED, "n1", 0, 1)
    assert "has not ended" in failed.detail
    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared")
    assert not server.of("done")
