"""Random pairs of jobs in one directory: none ever begins from what another has saved, unless it says so."""

import random
from pathlib import Path

import pytest

from ganger.engine.service import LogQuery
from tests.service.world import Embedded, python
from tests.waiting import wait_until

SAVES = """
import os, signal, time
from pathlib import Path
from ganger.train import checkpoint, latest

me = os.environ["GANGER_JOB_ID"]
start = latest()
named = os.environ.get("GANGER_RESUME_FROM")
print("latest", start and (start.directory / "owner").read_text(), flush=True)
print("named", named and Path(named, "owner").read_text(), flush=True)
for step in range(start.step + 1 if start else 1, 9):
    with checkpoint(step) as directory:
        (directory / "owner").write_text(me)
    time.sleep(0.01)
    if step == 4 and os.environ["GANGER_ATTEMPT"] == "1" and Path("dies").exists():
        os.kill(os.getpid(), signal.SIGKILL)
"""
RUN = python(SAVES)
WAYS = ("run", "clone", "retry", "array", "asked")


def owners(world: Embedded, name: str) -> set[str]:
    """Return the jobs from whose checkpoints the attempts of a job began."""
    job = world.ended(name)
    assert job.row.state == "succeeded", job.row.sentence
    found = set()
    for attempt in range(1, job.row.generation + 1):
        lines = [
            line.text for line in world.service.lines(LogQuery(job=name, generation=attempt)) if line.stream == "o"
        ]
        found |= {line.partition(" ")[2] for line in lines if line.startswith(("latest ", "named "))}
    return found - {"None"}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_no_job_begins_from_another_ones_checkpoint_unasked(world: Embedded, seed: int) -> None:
    chance = random.Random(seed)
    way, at_once, dies = chance.choice(WAYS), chance.random() < 0.5, chance.random() < 0.5
    if dies:
        (world.work / "dies").touch()
    fields = {
        "checkpoint": {"dir": chance.choice(["checkpoints", str(world.work / "shared")])},
        "retry": {"backoff": 0},
    }
    first = world.submit(RUN, name="train", **fields)
    if at_once and way != "retry":
        wait_until(lambda: world.service.job(first).checkpoint_step, "the first has saved")
    else:
        world.ended(first)
    if way == "clone":
        second = world.service.clone(first, {}, {})[0].row.id
    elif way == "retry":
        second = world.service.retry(first)[0].row.id
    elif way == "asked":
        second = world.submit(RUN, **fields | {"checkpoint": fields["checkpoint"] | {"resume_from": first}})
    else:
        second = world.submit(RUN, name="train", **fields, **({"array": "0-1"} if way == "array" else {}))
    world.ended(second)
    names = [f"{second}[0]", f"{second}[1]"] if way == "array" else [second]
    assert owners(world, first) <= {first}
    for name in names:
        asked = {first} if way in ("retry", "asked") else set()
        assert owners(world, name) <= {name} | asked, (seed, way, at_once, dies)
        if asked and not dies:
            assert owners(world, name) == {first}
    saved = {path.read_text() for path in Path(world.work).rglob(f"{first}/step-*/owner")}
    assert saved == {first}, "nobody else writes there"
