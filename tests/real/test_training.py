"""The demo's job for real: four torch gloo ranks on two nodes lose a worker and come back from their checkpoint."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from ganger.launcher.health.stacks import Stacks
from ganger.launcher_server.health.hang_suspect import waits_for_others
from ganger.launcher_server.health.stall_messages import format_frame
from ganger.model.views.service_views import PARTS
from tests.real.cluster import ROOT, Cluster, until

pytestmark = pytest.mark.long

STEPS = 120
NOISE = 1e-4
MISSING = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
"""
PY_SPY = str(Path(sys.executable).with_name("py-spy"))


def pids(cluster: Cluster, job: str) -> dict[int, int]:
    """Rank to process of the newest attempt, from the launchers' own records."""
    start_files = (cluster.folder / "home" / "jobs" / job / "nodes").glob("*/*/started")
    newest = sorted(start_files, key=lambda path: int(path.parent.name))
    return {int(rank): pid for path in newest for rank, (pid, _) in json.loads(path.read_text())["pids"].items()}


def losses(cluster: Cluster, job: str) -> dict[int, float]:
    """Loss by step, as it was computed last."""
    return {row["step"]: row["metrics"]["loss"] for row in cluster.client.reports(job) if "loss" in row["metrics"]}


def train(cluster: Cluster, python: str, name: str, *, warm: bool = False) -> str:
    shutil.copy(ROOT / "examples" / "train.py", cluster.folder)
    command = [python, "train.py", "--steps", str(STEPS), "--checkpoint-steps", "20"]
    shape = {"framework": "torch", "nodes": 2, "nproc_per_node": 2, "checkpoint": {}}
    return cluster.submit(name, *command, **shape, warm=warm)


def test_a_killed_worker_costs_no_step_and_changes_no_loss(cluster: Cluster, torch_python: str) -> None:
    job = train(cluster, torch_python, "killed", warm=True)
    until(lambda: (cluster.client.job(job)["checkpoint_step"] or 0) >= 39, "the second checkpoint")
    os.kill(pids(cluster, job)[3], signal.SIGKILL)
    until(lambda: cluster.ended(job), "the end of the job")

    view = cluster.client.job(job)
    assert (view["row"]["state"], view["row"]["generation"]) == ("succeeded", 2)
    first, second = view["attempts"]
    assert first["outcome"] == "failed"
    assert "signal 9" in first["sentence"]
    assert second["resumed_step"] >= 39
    ledger = view["ledger"]
    assert sum(ledger[f"{part}_ms"] for part in PARTS) == ledger["total_ms"]
    assert ledger["recovery_ms"] > 0
    logs = (cluster.folder / "home" / "jobs" / job / "nodes").glob("*/*/rank-*.log")
    assert [log for log in logs if "ganger: warm:" in log.read_text()] == [], "every rank was forked"

    undisturbed = train(cluster, torch_python, "undisturbed")
    until(lambda: cluster.ended(undisturbed), "the end of the undisturbed job")
    survived, expected = losses(cluster, job), losses(cluster, undisturbed)
    assert sorted(survived) == sorted(expected) == list(range(STEPS))
    assert all(abs(survived[step] - expected[step]) <= NOISE * abs(expected[step]) for step in expected)
    assert survived[STEPS - 1] < survived[0]


def test_fsdp_ranks_save_their_shards_together_and_come_back_to_the_same_losses(
    cluster: Cluster, torch_python: str
) -> None:
    shutil.copy(ROOT / "examples" / "train_fsdp.py", cluster.folder)
    command = [torch_python, "train_fsdp.py", "--steps", "40", "--checkpoint-steps", "5"]
    shape = {"framework": "fsdp", "nodes": 2, "nproc_per_node": 2}
    job = cluster.submit("killed", *command, **shape, checkpoint={})
    until(lambda: (cluster.client.job(job)["checkpoint_step"] or 0) >= 9, "the second checkpoint")
    os.kill(pids(cluster, job)[3], signal.SIGKILL)
    until(lambda: cluster.ended(job), "the end of the job")
    view = cluster.client.job(job)
    assert (view["row"]["state"], view["row"]["generation"]) == ("succeeded", 2)
    assert view["attempts"][1]["resumed_step"] >= 9
    shards = sorted(path.name for path in (cluster.folder / "checkpoints" / job / "step-000000039").glob("*.distcp"))
    assert shards == [f"__{rank}_0.distcp" for rank in range(4)]

    undisturbed = cluster.submit("undisturbed", *command, **shape, checkpoint={})
    until(lambda: cluster.ended(undisturbed), "the end of the undisturbed job")
    survived, expected = losses(cluster, job), losses(cluster, undisturbed)
    assert sorted(survived) == sorted(expected) == list(range(40))
    assert all(abs(survived[step] - expected[step]) <= NOISE * abs(expected[step]) for step in expected)


def test_stacks_show_which_ranks_of_a_plain_script_wait_in_a_collective(cluster: Cluster, torch_python: str) -> None:
    (cluster.folder / "missing.py").write_text(MISSING)
    job = cluster.submit("missing", torch_python, "missing.py", framework="torch", nodes=2)
    until(lambda: len(pids(cluster, job)) == 2, "the ranks")

    def waiting() -> dict[int, bool]:
        stacks = Stacks(str(cluster.folder), {rank: [pid] for rank, pid in pids(cluster, job).items()}, PY_SPY, 0.0)
        until(lambda: stacks.is_done(0.5), "the stacks")
        return {
            rank: waits_for_others(tuple(format_frame(*frame) for frame in frames))
            for rank, frames in stacks.main_frames.items()
            if frames
        }

    until(lambda: waiting() == {0: True, 1: False}, "rank 0 waits for rank 1")


def test_a_gang_that_does_not_fit_beside_another_waits_whole_and_its_reason_names_the_other(
    cluster: Cluster, torch_python: str
) -> None:
    Path(cluster.folder, "hold.py").write_text("import time\ntime.sleep(600)\n")
    holder = cluster.submit("holder", torch_python, "hold.py", nodes=2, nproc_per_node=2, limits={"time": "20m"})
    until(lambda: cluster.state(holder) == "running", "the holder")
    waiting = train(cluster, torch_python, "waiting")
    cluster.client.stop(waiting)
    until(lambda: cluster.ended(waiting), "the end of the one that fits")
    larger = cluster.submit("larger", torch_python, "hold.py", nodes=2, nproc_per_node=3)
    explained = cluster.client.explain(larger)
    assert explained["state"] == "pending"
    assert explained["reason"]["code"] == "no_capacity"
    assert holder in explained["reason"]["holders"]
    assert explained["earliest_ms"] is not None
    assert not (cluster.folder / "home" / "jobs" / larger / "nodes").exists()
