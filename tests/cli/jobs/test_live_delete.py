"""Checkpoints in a job's copy of its code, which is deleted with the job: only when told."""

from pathlib import Path

from tests.cli.live import Live, live, place

__all__ = ["live", "place"]

SCRIPT = """
import sys
from ganger.train import checkpoint
for step in (1, 2):
    with checkpoint(step) as directory:
        (directory / "model.pt").write_text("weights")
"""


def saved_job(live: Live, *options: str) -> str:
    Path("saves.py").write_text(SCRIPT)
    job = live.submit("--name", "saves", *options, "--", "python", "saves.py")
    live.until(job, "succeeded")
    return job


def test_a_copy_with_checkpoints_is_deleted_only_when_told(live: Live) -> None:
    job = saved_job(live, "--code", ".")
    refused = live("delete", job)
    assert refused.code == 2
    assert f"{job} has 2 checkpoints in its copy of the code, which is deleted with it" in refused.err
    assert f"next: ganger fetch {job} checkpoints, then: ganger delete --checkpoints {job}" in refused.err
    assert live.json("get", job)["checkpoints_in_copy"] == 2
    for arguments in (("--dry-run",), ()):
        pruned = live("prune", "--older-than", "0s", *arguments)
        assert (pruned.code, job in pruned.out) == (0, False)
        assert f"1 job kept, for checkpoints in the copy of the code: {job}; next: --checkpoints" in pruned.err
    assert live("fetch", job, "checkpoints").code == 0
    assert live("delete", "--checkpoints", job).out == f"deleted {job}\n"


def test_pruning_deletes_them_when_told(live: Live) -> None:
    job = saved_job(live, "--code", ".", "--array", "0-1")
    assert "has 4 checkpoints in its copy of the code" in live("delete", job).err
    pruned = live("prune", "--older-than", "0s", "--checkpoints")
    assert f"deleted {job}" in pruned.out


def test_checkpoints_elsewhere_stay(live: Live) -> None:
    job = saved_job(live, "--checkpoint-every", "1m")
    directory = Path("checkpoints").absolute() / job
    assert f"  {directory}, every 1m 00s, 30.0s grace period" in live("get", job).out
    assert live("delete", job).code == 0
    assert (directory / "step-000000002").is_dir()
