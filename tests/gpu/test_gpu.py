"""A machine with NVIDIA GPUs: its devices, jobs with NCCL, and failures of CUDA as the driver reports them.

The interpreter that runs these tests has torch with CUDA.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.local.machine import machine, read_gpus
from tests.real.cluster import Cluster, end_jobs, until
from tests.real.test_training import losses, pids

pytestmark = pytest.mark.gpu

HOLDS_A_GPU = "import sys, torch\nheld = torch.ones(1, device='cuda')\nprint(flush=True)\nsys.stdin.read()\n"
STEPS = 60


class GpuMachine(Cluster):
    """A server with this machine as its only node."""

    def start(self) -> None:
        ganger = str(Path(sys.executable).with_name("ganger"))
        subprocess.run([ganger, "server", "start"], env=self.environment, check=True, capture_output=True)

    def train(self, name: str, fault: str, steps: int = STEPS, **spec: Any) -> str:
        """Submit `train_nccl.py` with a checkpoint directory of its own, by default on one GPU."""
        shutil.copy(Path(__file__).with_name("train_nccl.py"), self.folder)
        resources = {"framework": "torch", "resources": {"gpu": 1}, "checkpoint": {"dir": name}}
        return self.submit(name, sys.executable, "train_nccl.py", str(steps), fault, **{**resources, **spec})

    def end(self, job: str) -> dict[str, Any]:
        """Wait for the end of a job and return it."""
        until(lambda: self.ended(job), f"the end of {job}")
        return self.client.job(job)


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[GpuMachine]:
    """Yield a started server; stop it at the end with all that runs under it."""
    mine = GpuMachine(tmp_path)
    mine.start()
    yield mine
    client = mine.client.connect()
    end_jobs(client)
    client.shutdown()
    assert [gpu.pids for gpu in read_gpus() if gpu.pids] == []


def test_the_node_has_the_driver_s_gpus_without_those_that_other_programs_use(tmp_path: Path) -> None:
    all_gpus, this = read_gpus(), machine(tmp_path)
    assert this.gpus == tuple(gpu.index for gpu in all_gpus)
    assert this.gpu_memory_bytes == min(gpu.memory_bytes for gpu in all_gpus) > 1 << 30
    assert this.gpu_type in all_gpus[0].name.lower()
    holder = subprocess.Popen([sys.executable, "-c", HOLDS_A_GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert machine(tmp_path).unavailable == {0: f"is used by process {holder.pid}, which is not ganger's"}
    holder.communicate()
    assert machine(tmp_path) == this


def test_a_job_that_loses_its_process_continues_on_the_gpu_from_its_checkpoint(gpus: GpuMachine) -> None:
    job = gpus.train("killed", "none")
    until(lambda: (gpus.client.job(job)["checkpoint_step"] or 0) >= 19, "the second checkpoint")
    (usage,) = [gpu for gpu in gpus.client.samples()["gpus"] if gpu["device"] == 0]
    assert usage["memory_used_bytes"] > 100 << 20
    os.kill(pids(gpus, job)[0], signal.SIGKILL)
    view = gpus.end(job)
    assert (view["row"]["state"], view["row"]["generation"]) == ("succeeded", 2), view["attempts"]
    assert view["attempts"][1]["resumed_step"] >= 19
    undisturbed = gpus.train("undisturbed", "none")
    assert gpus.end(undisturbed)["row"]["state"] == "succeeded"
    assert losses(gpus, job) == losses(gpus, undisturbed)


def test_a_job_of_higher_priority_gets_all_memory_of_the_gpu_from_one_that_saves_at_the_notice(
    gpus: GpuMachine,
) -> None:
    job = gpus.train("preempted", "hold", steps=400, retry={"max": 0})
    until(lambda: (gpus.client.job(job)["progress"] or {}).get("step", 0) > 12, "steps that hold the memory")
    step = gpus.client.job(job)["progress"]["step"]
    urgent = gpus.train("urgent", "hold", priority="high")
    view = gpus.end(urgent)
    assert (view["row"]["state"], view["row"]["generation"]) == ("succeeded", 1), view["attempts"]
    view = gpus.end(job)
    assert (view["row"]["state"], view["row"]["generation"]) == ("succeeded", 2), view["attempts"]
    first, second = view["attempts"]
    assert (first["outcome"], urgent in first["sentence"]) == ("stopped", True), first
    assert second["resumed_step"] >= step, "it saved at the notice"
    undisturbed = gpus.train("undisturbed", "none", steps=400)
    assert gpus.end(undisturbed)["row"]["state"] == "succeeded"
    assert losses(gpus, job) == losses(gpus, undisturbed)


@pytest.mark.parametrize(
    ("fault", "processes", "message"),
    [
        ("memory", 1, "OutOfMemoryError: CUDA out of memory"),
        ("assert", 1, "device-side assert"),
        ("ordinal", 1, "invalid device ordinal"),
        ("address", 1, "illegal memory access"),
        ("none", 2, "Duplicate GPU detected"),
    ],
)
def test_an_error_of_the_program_on_the_gpu_fails_the_job_with_its_message(
    gpus: GpuMachine, fault: str, processes: int, message: str
) -> None:
    view = gpus.end(gpus.train(fault, fault, nproc_per_node=processes, retry={"max": 0}))
    (attempt,) = view["attempts"]
    assert (view["row"]["state"], attempt["blame"]) == ("failed", "user")
    assert message in attempt["sentence"]


def test_a_kernel_that_does_not_end_is_a_hang_and_the_next_attempt_has_the_gpu(gpus: GpuMachine) -> None:
    job = gpus.train("hang", "hang")
    view = gpus.end(job)
    assert (view["row"]["state"], view["row"]["generation"]) == ("succeeded", 2), view["attempts"]
    assert "no rank has made a step" in view["attempts"][0]["sentence"]
    frames = str(gpus.client.stacks(job, 1)["groups"])
    assert "sleep_on_the_gpu" in frames


def test_two_shares_run_on_one_device_at_once(gpus: GpuMachine) -> None:
    share = {"resources": {"gpu": {"milli": 500, "memory": "4Gi"}}}
    jobs = [gpus.train(name, "none", steps=1000, **share) for name in ("first", "second")]
    until(lambda: all((gpus.client.job(job)["progress"] or {}).get("step", 0) > 0 for job in jobs), "steps of both")
    ranks = [rank for rank in gpus.client.samples()["ranks"] if rank["job"] in jobs]
    assert sorted((rank["job"], tuple(rank["devices"])) for rank in ranks) == sorted((job, (0,)) for job in jobs)
    third = gpus.train("third", "none", **share)
    assert gpus.client.explain(third)["reason"]["code"] == "no_capacity"
