"""An elastic job of plain Python processes on virtual nodes: 2, 3 and 2 nodes, no step lost and none done twice."""

import json
import sys
from pathlib import Path

import pytest

from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.units import GIB_BYTES
from tests.service.world import Embedded
from tests.waiting import wait_until

SCRIPT = """
import json, os, sys, time
from ganger import train

newest = train.latest()
step = newest.step if newest else 0
names = ("NODES", "MIN_NODES", "MAX_NODES", "BATCH_PER_RANK", "LR_SCALE")
size = {name: os.environ[f"GANGER_{name}"] for name in names}
out = open(f"steps-{os.environ['GANGER_RANK']}", "a", buffering=1)
while not os.path.exists("end"):
    if train.should_checkpoint():
        with train.checkpoint(step) as directory:
            (directory / "state").write_text(str(step))
        if train.notice():
            sys.exit(0)
    step += 1
    print(json.dumps({"step": step, "attempt": os.environ["GANGER_ATTEMPT"], **size}), file=out)
    train.report(step=step)
    time.sleep(0.02)
"""
NODES = tuple(Node(name=f"n{n}", domains=("r1",), cpu_milli=2_000, memory_bytes=GIB_BYTES) for n in (1, 2, 3))
FIELDS = {
    "name": "grows",
    "nodes": "2..3",
    "elastic": {"batch": {"global": 12, "policy": "constant_global"}},
    "resources": {"cpu": 2},
    "checkpoint": {"grace": "25s"},
    "retry": {"max": 0},
}


def _steps(world: Embedded, rank: int = 0) -> list[dict[str, str]]:
    path = Path(world.work, f"steps-{rank}")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _stepping(world: Embedded, job: str, attempt: int, nodes: int) -> None:
    def steps() -> bool:
        row = world.service.job(job).row
        is_there = (row.generation, row.state, len(row.nodes)) == (attempt, "running", nodes)
        return is_there and _steps(world)[-1]["attempt"] == str(attempt)

    wait_until(steps, f"attempt {attempt} steps on {nodes} nodes")


def test_two_three_two_nodes(tmp_path: Path, zipapp: Path) -> None:
    world = Embedded(tmp_path, zipapp, NODES)
    try:
        blocker = world.submit(["sleep", "300"], name="blocks", resources={"cpu": 2})
        world.until(blocker, "running")
        (world.work / "train.py").write_text(SCRIPT)
        job = world.submit([sys.executable, "train.py"], **FIELDS)
        wait_until(lambda: len(_steps(world)) > 3, "it steps with its minimum")
        world.service.stop(blocker)
        world.ended(blocker)
        with pytest.raises(RequestError, match="2 to 3 nodes; it has 2 now"):
            world.service.scale(job, "+2")
        world.service.scale(job, "+1")
        _stepping(world, job, attempt=2, nodes=3)
        world.service.scale(job, "2")
        _stepping(world, job, attempt=3, nodes=2)
        (world.work / "end").touch()
        view = world.ended(job)
    finally:
        world.close()
    assert view.row.state == "succeeded"
    assert [len(attempt.nodes) for attempt in view.attempts] == [2, 3, 2]
    nodes = [{*attempt.nodes} for attempt in view.attempts]
    assert nodes[0] < nodes[1] > nodes[2], "it keeps the nodes that it has"
    steps = _steps(world)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1)), "no step is lost, and none done twice"
    sizes = {(step["NODES"], step["BATCH_PER_RANK"], step["LR_SCALE"]) for step in steps}
    assert sizes == {("2", "6", "1"), ("3", "4", "1")}
    assert {(step["MIN_NODES"], step["MAX_NODES"]) for step in steps} == {("2", "3")}
