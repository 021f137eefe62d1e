"""A warm gang that gets another node runs on until the modules are imported there, and is then forked everywhere."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ganger.model.decision import Cause, NodeShare, Start, Stop
from ganger.model.job import Job
from tests.local.world import Server, is_dead, make_job, make_start
from tests.waiting import wait_until

TELLS = "import sys\nprint('forked' if 'xmlrpc.client' in sys.modules else 'started')\nimport xmlrpc.client\n"
WAITS = "import os, time\nopen('runs', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
BOTH = (NodeShare("n1", (0,)), NodeShare("n2", (1,)))


@pytest.fixture
def grown(serve: Callable[..., Server], tmp_path: Path) -> Iterator[tuple[Server, Job, Start]]:
    """Yield a job that runs on one node; end it and its launchers."""
    (tmp_path / "train.py").write_text(TELLS + WAITS)
    server = serve().open()
    job = make_job(tmp_path, (sys.executable, "train.py"), nproc_per_node=1, warm=True)
    start = make_start(job, nodes=1)
    server.backend.start(start, job)
    server.wait("started")
    wait_until((tmp_path / "runs").exists, "the rank has read its script, which a test may replace")
    yield server, job, start
    server.backend.forget(job.id)


def zygotes(server: Server, job: Job, node: str) -> list[int]:
    return server.pids(server.files.task(job.id, node).path / "zygote")


def resize(server: Server, job: Job) -> None:
    server.backend.stop(Stop(gang=job.id, generation=1, cause=Cause.RESIZED, shares=BOTH), job)


def test_the_new_node_is_warm_before_the_old_ranks_stop(grown: tuple[Server, Job, Start], tmp_path: Path) -> None:
    server, job, _ = grown
    resize(server, job)
    server.wait("cleared")
    assert zygotes(server, job, "n2"), "it has imported the modules"
    server.backend.start(make_start(job, nodes=2, generation=2), job)
    server.wait("started", 2, generation=2)
    (tmp_path / "go").touch()
    server.wait("cleared", 2, generation=2)
    logs = [server.files.task(job.id, node).generation(2) / f"rank-{rank}.log" for node, rank in (("n1", 0), ("n2", 1))]
    assert [log.read_text().split(" ", 2)[2] for log in logs] == ["forked\n", "forked\n"]


def test_a_rank_that_fails_meanwhile_is_not_waited_for(grown: tuple[Server, Job, Start], tmp_path: Path) -> None:
    server, job, _ = grown
    (rank,) = server.pids(server.files.task(job.id, "n1").generation(1))
    (tmp_path / "train.py").unlink()
    os.mkfifo(tmp_path / "train.py")  # to be read for its imports: blocks the new node's zygote
    resize(server, job)
    wait_until(lambda: zygotes(server, job, "n2"), "the zygote of the new node is started")
    assert not is_dead(rank)
    os.kill(rank, signal.SIGKILL)
    server.wait("cleared")
