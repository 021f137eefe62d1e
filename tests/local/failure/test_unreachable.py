"""A node that is unreachable while its processes stand still and later continue: their checkpoints are refused."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ganger.model.job_sections.checkpoint_spec import Checkpoint
from tests.local.world import Server, is_dead, make_job, make_start
from tests.waiting import wait_until

Serve = Callable[..., Server]
SAVES = """
import os, time
from pathlib import Path
from ganger.train import checkpoint, latest

start = latest()
print("job", os.environ["GANGER_JOB_UID"], "from", start and start.step, flush=True)
if os.environ["GANGER_ATTEMPT"] == "1":
    with checkpoint(10) as directory:
        (directory / "model.pt").write_text("first")
with checkpoint(70 if os.environ["GANGER_ATTEMPT"] == "1" else 20) as directory:
    (directory / "model.pt").write_text("second")
    if os.environ["GANGER_ATTEMPT"] == "1":
        Path("writes").touch()
        while not Path("go").exists():
            time.sleep(0.01)
"""


def test_a_rank_of_a_former_attempt_saves_nothing(serve: Serve, tmp_path: Path) -> None:
    server = serve(nodes=2).open()
    run = (sys.executable, "-c", SAVES)
    job = make_job(tmp_path, run, nproc_per_node=1, checkpoint=Checkpoint(dir="ckpt"))
    server.backend.start(make_start(job, names=("n1",)), job)
    wait_until((tmp_path / "writes").exists, "the first attempt writes a checkpoint")
    stopped = server.pids(server.files.jobs)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)

    server.backend.start(make_start(job, generation=2, names=("n2",)), job)
    server.wait("finished", generation=2)
    assert checkpoints(tmp_path) == ["step-000000010", "step-000000020"]

    (tmp_path / "go").touch()
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: all(is_dead(pid) for pid in stopped), "the first attempt ends")
    assert checkpoints(tmp_path) == ["step-000000010", "step-000000020"]
    first, second = (rank_log(server, generation) for generation in (1, 2))
    assert f"job {job.id} from None" in first
    assert f"attempt 2 of {job.id} owns it, and this is attempt 1: end this process" in first
    assert f"job {job.id} from 10" in second


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "ckpt").glob("*/step-*"))


def rank_log(server: Server, generation: int) -> str:
    (log,) = server.files.jobs.glob(f"*/nodes/*/{generation}/rank-0.log")
    return log.read_text()
