"""Gangs that stand still: found, named, and told as a failure before anything is killed."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ganger.model.decision import Cause
from ganger.model.event import Failed
from tests.local.world import Server, make_job, make_start, make_stop, wait_until

Serve = Callable[..., Server]

LINGERS = """\
#!/bin/sh
OMPI_COMM_WORLD_RANK=0 sleep 1000 &
echo $! > {folder}/pid
read line < {folder}/never
"""
"""As Open MPI's mpirun does now and then: it does not notice that all it had started is gone."""


def fake_mpirun(folder: Path) -> str:
    path = folder / "mpirun"
    path.write_text(LINGERS.format(folder=folder))
    path.chmod(0o700)
    os.mkfifo(folder / "never")
    return str(path)


STEPS = """
import os, sys, time
from ganger import train

rank, folder = os.environ["GANGER_RANK"], sys.argv[1]
for step in range(1000000):
    time.sleep(0.05)
    train.report(step=step)
    if step == 3:
        open(f"{folder}/{rank}", "w").write(str(os.getpid()))
"""


class Gang:
    """Two ranks on each of two nodes, which report steps as if they waited for each other."""

    def __init__(self, server: Server, folder: Path, *argv: str, **spec: object) -> None:
        self.server, self.folder = server, folder
        (folder / "steps.py").write_text(STEPS)
        self.job = make_job(folder, argv or (sys.executable, "steps.py", str(folder)), **spec)
        self.start = make_start(self.job)
        server.backend.start(self.start, self.job)

    def pid(self, rank: int) -> int:
        path = self.folder / str(rank)
        wait_until(lambda: path.exists() and path.read_text(), f"rank {rank} steps")
        return int(path.read_text())

    def fails(self) -> Failed:
        failed = self.server.wait("failed")
        assert isinstance(failed, Failed)
        self.server.backend.stop(make_stop(self.start, failed.cause), self.job)
        self.server.wait("cleared", 2)
        return failed


def test_stopped_rank_is_named_and_every_rank_shows_its_stack(serve: Serve, tmp_path: Path) -> None:
    gang = Gang(serve().open(), tmp_path)
    pids = [gang.pid(rank) for rank in range(4)]
    os.kill(pids[2], signal.SIGSTOP)
    failed = gang.fails()
    assert (failed.cause, failed.rank, failed.node) == (Cause.HUNG, 2, "n2")
    assert failed.detail.startswith("rank 2 on n2 has been stopped")
    assert failed.since_ms is not None
    found = gang.server.backend.stacks(gang.job.id, 1)
    assert found is not None
    assert {rank for group in found.groups for rank in group.ranks} == {0, 1, 2, 3}
    assert all("steps.py" in group.frames[-1] for group in found.groups if group.thread == "MainThread")


def test_mpirun_that_outlives_its_processes_fails_the_job(serve: Serve, tmp_path: Path) -> None:
    server = serve(1).open()
    job = make_job(tmp_path, (fake_mpirun(tmp_path), "program"), framework="mpi", nodes=1, nproc_per_node=1)
    start = make_start(job, nodes=1)
    server.backend.start(start, job)
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text().strip(), "the process runs")
    server.wait("started")
    hang = server.backend._supervisor._generations[job.id]
    wait_until(lambda: any(standing.has_run for standing in hang.standings.values()), "the process was seen")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    failed = server.wait("failed")
    assert (failed.cause, failed.node, failed.rank, failed.exit_code) == (Cause.RANK_FAILED, "n1", 0, 1)
    assert "has not ended" in failed.detail
    server.backend.stop(make_stop(start, Cause.RANK_FAILED), job)
    server.wait("cleared")
    assert not server.of("done")
