"""MPI on two nodes whose names do not resolve, with two processes each and without sshd."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.model.decision import Cause
from ganger.model.event import Quiet
from ganger.model.job import Job
from ganger.model.job_sections.retry_spec import Limits
from tests.local.world import Server, make_job, make_start, make_stop
from tests.real.environments import python_with

pytestmark = pytest.mark.long

Serve = Callable[..., Server]
BIN = Path(__file__).parents[2] / ".venv-mpi" / "bin"
NAMES = ("a.invalid", "b.invalid")
SCRIPT = """
import json, os, sys
from mpi4py import MPI
from ganger import train

everybody = MPI.COMM_WORLD
total = everybody.allreduce(10 ** everybody.rank)
here = train.world()
found = [everybody.rank, everybody.size, total, here.rank, here.world_size, here.local_rank, here.node_rank]
with open(f"{sys.argv[1]}-{everybody.rank}", "w") as file:
    json.dump([*found, os.environ["GANGER_TASK_DIR"]], file)
for rank in range(everybody.size):  # one after the other: what comes first is what the slowest has done
    if rank == everybody.rank:
        train.report(step=rank)
    everybody.barrier()
while sys.argv[2:] == ["hold"]:
    everybody.barrier()
"""

SPINS = """
import sys, time
from mpi4py import MPI

def load():
    while True:
        time.sleep(0.1)

MPI.COMM_WORLD.barrier()
if MPI.COMM_WORLD.rank == 2:
    load()
MPI.COMM_WORLD.barrier()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the working directory of the job."""
    assert python_with("mpi") == str(BIN / "python")
    (tmp_path / "reduce.py").write_text(SCRIPT)
    return tmp_path


def mpi_job(directory: Path, *run: str, line: str | None = None, **spec: object) -> Job:
    """Return an MPI job with HOME, which Open MPI requires."""
    home = {"HOME": str(directory)}
    return make_job(directory, line or run, framework="mpi", nodes=2, env=home, **spec)


def begin(server: Server, job: Job) -> None:
    server.backend.start(make_start(job, names=NAMES), job)


def finish(server: Server, job: Job, cause: Cause = Cause.USER) -> None:
    server.backend.stop(make_stop(make_start(job, names=NAMES), cause), job)
    server.wait("cleared", 2)


def reduced(directory: Path, name: str) -> list[list[object]]:
    """Return the results of the processes, without their task directories."""
    return [json.loads((directory / f"{name}-{rank}").read_text())[:-1] for rank in range(4)]


def test_names_do_not_resolve() -> None:
    for name in NAMES:
        with pytest.raises(socket.gaierror):
            socket.getaddrinfo(name, None)


@pytest.mark.parametrize("run", ["written", "line", "given"])
def test_all_processes_of_both_nodes_add_up(run: str, serve: Serve, directory: Path) -> None:
    """Mpirun may be written by the user or added by ganger."""
    server = serve(names=NAMES).open()
    mpirun, program = str(BIN / "mpirun"), (str(BIN / "python"), "reduce.py", run)
    job = {
        "written": lambda: mpi_job(directory, mpirun, "-n", "4", *program),
        "line": lambda: mpi_job(directory, line=" ".join(("cd . &&", mpirun, *program))),
        "given": lambda: mpi_job(directory, *program),
    }[run]()
    begin(server, job)
    server.wait("done")
    finish(server, job)
    assert not server.of("failed")
    # rank, size, sum; the rank, size, local rank and node rank that ganger.train gives
    assert reduced(directory, run) == [
        [0, 4, 1111, 0, 4, 0, 0],
        [1, 4, 1111, 1, 4, 1, 0],
        [2, 4, 1111, 2, 4, 0, 1],
        [3, 4, 1111, 3, 4, 1, 1],
    ]


def test_each_process_belongs_to_its_node_and_reports_there(serve: Serve, directory: Path) -> None:
    server = serve(names=NAMES).open()
    job = mpi_job(directory, str(BIN / "python"), "reduce.py", "out", "hold")
    begin(server, job)
    assert server.wait("progressed").step == 0
    tasks = [server.files.task(job.id, name).generation(1) for name in NAMES]
    for rank in range(4):
        assert json.loads((directory / f"out-{rank}").read_text())[-1] == str(tasks[rank // 2])
        assert (tasks[rank // 2] / f"rank-{rank}.report").exists()
    assert [len(server.pids(task)) >= 2 for task in tasks] == [True, True]
    finish(server, job)
    assert server.pids(server.files.jobs) == []
    assert not server.of("failed")


def test_process_that_fails_fails_the_job(serve: Serve, directory: Path) -> None:
    server = serve(names=NAMES).open()
    code = "from mpi4py import MPI; MPI.COMM_WORLD.rank == 3 and MPI.COMM_WORLD.Abort(7); MPI.COMM_WORLD.barrier()"
    job = mpi_job(directory, str(BIN / "python"), "-c", code)
    begin(server, job)
    failed = server.wait("failed")
    assert (failed.cause, failed.node, failed.rank) == (Cause.RANK_FAILED, "a.invalid", 0)
    # Open MPI's mpirun sometimes does not notice, and sometimes ends with a code of its own.
    assert failed.exit_code
    finish(server, job, Cause.RANK_FAILED)
    assert not server.of("done")


def test_wrong_token_is_refused(serve: Serve, directory: Path) -> None:
    server = serve(names=NAMES).open()
    setup = 'echo wrong > "$GANGER_TASK_DIR/agent-token"'
    job = mpi_job(directory, str(BIN / "mpirun"), str(BIN / "python"), "reduce.py", "out", setup=setup)
    begin(server, job)
    failed = server.wait("failed")
    assert (failed.cause, failed.node) == (Cause.RANK_FAILED, "a.invalid")
    logs = [server.files.task(job.id, name).launcher_log for name in NAMES]
    assert any("refused a connection without this generation's token" in log.read_text() for log in logs)
    finish(server, job, Cause.RANK_FAILED)
    assert not list(directory.glob("out-*"))


def test_plans_do_not_leak_the_token(serve: Serve, directory: Path) -> None:
    """No environment or command line contains it, and its files are private."""
    server = serve(names=NAMES).open()
    job = mpi_job(directory, str(BIN / "python"), "reduce.py", "out", "hold")
    begin(server, job)
    server.wait("progressed")
    tasks = [server.files.task(job.id, name) for name in NAMES]
    token = (tasks[0].generation(1) / "agent-token").read_bytes()
    assert token == (tasks[1].generation(1) / "agent-token").read_bytes()
    pids = [pid for task in tasks for pid in server.pids(task.path)]
    for pid in pids:
        for name in ("environ", "cmdline"):
            assert token not in Path(f"/proc/{pid}/{name}").read_bytes()
    files = [path for task in tasks for path in task.path.rglob("*") if path.is_file() and _holds(path, token)]
    assert {path.name for path in files} == {"plan-1.json", "agent-token"}
    assert [path.stat().st_mode & 0o077 for path in files] == [0] * 4
    finish(server, job)


def _holds(path: Path, token: bytes) -> bool:
    return token in path.read_bytes()


def test_the_rank_that_the_others_spin_for_is_reported(serve: Serve, directory: Path) -> None:
    """Open MPI waits with a processor, and `mpi4py` has no frames of its own: no proof that the others wait."""
    (directory / "spins.py").write_text(SPINS)
    run = (str(BIN / "mpirun"), str(BIN / "python"), str(directory / "spins.py"))
    server, job = serve(names=NAMES).open(), mpi_job(directory, *run, limits=Limits(hang_time_ms=8_000))
    begin(server, job)
    quiet = server.wait("quiet")
    assert isinstance(quiet, Quiet)
    expected = "3 of 4 ranks are at spins.py:12, rank 2 on b.invalid is in load at spins.py:7, in each of "
    assert quiet.places.startswith(expected)
    assert not server.of("failed")
    finish(server, job)
