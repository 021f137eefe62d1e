"""Gangs that stand still: found, named, and told as a failure before anything is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from ganger.model.decision import Cause
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
