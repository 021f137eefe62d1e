"""Checkpoints that are saved on the node and copied to the shared directory: kills, a lost node, resumption."""

import json
from pathlib import Path
from typing import Any

import pytest

from ganger.engine.service import LogQuery
from tests.service.world import Embedded, python


@pytest.fixture
def checkpoint(tmp_path: Path) -> dict[str, Any]:
    return {"dir": "ckpt", "local": str(tmp_path / "nvme")}


def shared(world: Embedded, name: str) -> list[str]:
    """Return the names in the shared directory but for the markers of attempts: neither drafts nor other markers."""
    return sorted(path.name for path in (world.work / "ckpt" / name).iterdir() if not path.name.startswith(".attempt"))


def written(world: Embedded, name: str, generation: int) -> list[str]:
    lines = world.service.lines(LogQuery(job=name, generation=generation, everything=True))
    return [line.text for line in lines if line.stream == "o"]


SAVES = """
import os, shutil, signal, time
from ganger.train import checkpoint, latest, report, world
from ganger.train.tiers import local_tier

me, start = world(), latest()
print("from", start and start.directory, flush=True)
for step in range(start.step + 1 if start else 1, 6):
    report(step=step)
    with checkpoint(step) as directory:
        (directory / "model.pt").write_text(str(step) * 1000)
    if step == 3 and me.attempt == 1:
        LOSES_NODE
        os.kill(os.getpid(), signal.SIGKILL)
"""
LOSES_NODE = """
        while not (me.checkpoint_dir / "step-000000003").exists():
            time.sleep(0.01)
        local_tier.mark_pending(str(me.checkpoint_dir), 4, os.environ["GANGER_JOB_UID"], "n7")  # as a copier begins
        shutil.rmtree(os.environ["GANGER_CHECKPOINT_LOCAL"])
"""


def test_an_attempt_goes_on_from_what_is_on_its_node(
    world: Embedded, tmp_path: Path, checkpoint: dict[str, Any]
) -> None:
    name = world.submit(python(SAVES.replace("LOSES_NODE", "")), checkpoint=checkpoint, retry={"backoff": 0})
    job = world.ended(name)
    assert job.row.state == "succeeded"
    assert [attempt.resumed_step for attempt in job.attempts] == [None, 3]
    node = job.attempts[1].nodes[0]
    assert written(world, name, 2) == [f"from {tmp_path}/nvme/ganger-{name}/{node}/step-000000003"]
    assert (world.work / "ckpt" / name / "step-000000005" / "model.pt").read_text() == "5" * 1000
    assert not any(entry.startswith(".") for entry in shared(world, name))
    assert list((tmp_path / "nvme").iterdir()) == [], "nothing stays on the node of a job that has finished"


def test_a_checkpoint_lost_with_its_node_is_named_and_the_one_before_it_taken(
    world: Embedded, checkpoint: dict[str, Any]
) -> None:
    script = SAVES.replace("\n        LOSES_NODE", LOSES_NODE)
    name = world.submit(python(script), checkpoint=checkpoint, retry={"backoff": 0})
    job = world.ended(name)
    assert job.row.state == "succeeded"
    assert written(world, name, 2) == [f"from {world.work}/ckpt/{name}/step-000000003"]
    lost = f"it was only on n7, and was not copied to {world.work}/ckpt/{name} in time"
    assert job.attempts[1].skipped == (f"the checkpoint of step 4 is skipped: {lost}",)
    assert not any(entry.startswith(".") for entry in shared(world, name))


SHARDED = """
import json, os, signal, time
from ganger.train import checkpoint, latest, report, world

me, start = world(), latest()
me.checkpoint_dir.mkdir(parents=True, exist_ok=True)
mine = f"rank-{me.rank}.json"
value = json.loads((start.directory / mine).read_text()) if start else me.rank
print("from", start and start.directory.name, start and not (start.directory / mine).is_symlink(), flush=True)
for step in range(start.step + 1 if start else 1, 6):
    value = (value * 31 + step) % 1_000_003
    report(step=step, loss=value)
    with checkpoint(step, sharded=True) as directory:
        (directory / mine).write_text(json.dumps(value))
        if step == 3 and me.rank == 2 and me.attempt == 1 and DIES == "within":
            os.kill(os.getpid(), signal.SIGKILL)
    (me.checkpoint_dir / f"left-{step}-{me.rank}").touch()
    while me.attempt == 1 and len(list(me.checkpoint_dir.glob(f"left-{step}-*"))) < me.world_size:
        time.sleep(0.01)  # as a collective does
    if step == 3 and me.rank == 2 and me.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("dies", "resumes"), [("within", 2), ("after", 3)])
def test_all_nodes_go_on_from_the_newest_checkpoint_that_each_has_a_part_of(
    world: Embedded, checkpoint: dict[str, Any], dies: str, resumes: int
) -> None:
    script = SHARDED.replace("DIES", repr(dies))
    name = world.submit(
        python(script), checkpoint=checkpoint, retry={"backoff": 0}, nodes=2, nproc_per_node=2, stop_when="all"
    )
    job = world.ended(name)
    assert job.row.state == "succeeded", job.row.sentence
    assert [attempt.resumed_step for attempt in job.attempts] == [None, resumes]
    # Each rank reads its own file from its node.
    assert written(world, name, 2) == [f"from step-{resumes:09d} True"] * 4
    values = list(range(4))
    for step in range(1, 6):
        values = [(value * 31 + step) % 1_000_003 for value in values]
    last = world.work / "ckpt" / name / "step-000000005"
    assert [json.loads((last / f"rank-{rank}.json").read_text()) for rank in range(4)] == values
    assert job.checkpoint_step == 5
