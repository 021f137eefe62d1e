"""Checkpoints that the next node of the gang has a copy of: a node is lost with its disk before they are in `dir`."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ganger.errors import RequestError
from ganger.train import complete_checkpoints
from tests.service.world import Embedded, python
from tests.waiting import wait_until

pytestmark = pytest.mark.long

STEPS, LAST = 6, 4
SAVES = """
import json, time
from pathlib import Path
from ganger.train import checkpoint, latest, report, world

me, start = world(), latest()
source = me.rank if SHARDED else 0
name = f"rank-{source}.json"
value = json.loads((start.directory / name).read_text()) if start else source
while not Path("go").exists():
    time.sleep(0.01)
for step in range(start.step + 1 if start else 1, 7):
    value = (value * 31 + step) % 1_000_003
    report(step=step)
    if SHARDED or me.rank == 0:
        with checkpoint(step, sharded=SHARDED) as directory:
            (directory / name).write_text(json.dumps(value))
    Path(f"left-{step}-{me.rank}").touch()
    while len(list(Path().glob(f"left-{step}-*"))) < me.world_size or (step == 4 and me.attempt == 1):
        time.sleep(0.01)  # as a collective does
"""


@pytest.fixture
def nvme(tmp_path: Path) -> Path:
    return tmp_path / "nvme"


def submit(world: Embedded, nvme: Path, *, sharded: bool, **fields: Any) -> str:
    """Submit a job that stands still after its fourth save; nothing can be copied to its `dir`."""
    checkpoint = {"dir": "ckpt", "local": str(nvme), "peer": True, "grace": 0}
    run = python(SAVES.replace("SHARDED", str(sharded)))
    name = world.submit(run, checkpoint=checkpoint, retry={"backoff": 0}, nodes=3, stop_when="all", **fields)
    (world.work / "ckpt").touch()
    return name


def launcher_pid(world: Embedded, name: str, node: str) -> int:
    pid: int = json.loads((world.home.path / "jobs" / name / "nodes" / node / "launcher.json").read_text())["pid"]
    return pid


def lose(world: Embedded, nvme: Path, name: str, node: str) -> None:
    """Kill the launcher of a node, and with it its ranks, after its disk is gone."""
    pid = launcher_pid(world, name, node)
    os.kill(pid, signal.SIGSTOP)
    shutil.rmtree(nvme / f"ganger-{name}" / node)
    (world.work / "ckpt").unlink()
    os.kill(pid, signal.SIGKILL)


def held(nvme: Path, name: str, node: str, step: int) -> list[str]:
    """Return the nodes of which another node has a whole copy of a step."""
    places = (nvme / f"ganger-{name}" / node / "held").glob("*/[sp]*-00*")
    return [
        path.parent.name
        for path in places
        if path.name.endswith(f"{step:09d}") and not complete_checkpoints.examine(str(path), step)[1]
    ]


def expected(rank: int) -> int:
    value = rank
    for step in range(1, STEPS + 1):
        value = (value * 31 + step) % 1_000_003
    return value


@pytest.mark.parametrize("sharded", [True, False])
def test_a_node_lost_with_its_disk_costs_no_step_that_its_peer_has(world: Embedded, nvme: Path, sharded: bool) -> None:
    name = submit(world, nvme, sharded=sharded)
    (world.work / "go").touch()
    nodes = ["n1", "n2", "n3"] if sharded else ["n1"]
    peers = {"n1": "n2", "n2": "n3", "n3": "n1"}
    for node in nodes:
        wait_until(lambda: held(nvme, name, peers[node], LAST) == [node], f"{peers[node]} has a copy of {node}")  # noqa: B023
        assert len(list((nvme / f"ganger-{name}" / peers[node] / "held" / node).iterdir())) <= 2
    lose(world, nvme, name, "n1")
    job = world.ended(name)
    assert job.row.state == "succeeded", job.row.sentence
    assert [attempt.resumed_step for attempt in job.attempts] == [None, LAST]
    newest = world.work / "ckpt" / name / f"step-{STEPS:09d}"
    ranks = range(3) if sharded else range(1)
    assert [json.loads((newest / f"rank-{rank}.json").read_text()) for rank in ranks] == list(map(expected, ranks))
    assert not any(".step" in path.name or ".local" in path.name for path in (world.work / "ckpt" / name).iterdir())


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        pytest.param("frozen", "it has taken nothing for 10 s", marks=pytest.mark.long),
        ("full", "it cannot write .*/held/n1: .*"),
    ],
)
def test_ranks_do_not_wait_for_a_peer_that_takes_nothing(
    world: Embedded, nvme: Path, problem: str, reason: str
) -> None:
    name = submit(world, nvme, sharded=False)
    wait_until(lambda: world.service.job(name).row.state == "running", "it runs")
    if problem == "frozen":
        os.kill(launcher_pid(world, name, "n2"), signal.SIGSTOP)
    else:
        (nvme / f"ganger-{name}" / "n2").mkdir(parents=True, exist_ok=True)
        (nvme / f"ganger-{name}" / "n2" / "held").touch()
    (world.work / "go").touch()
    wait_until((world.work / f"left-{LAST}-2").exists, "the ranks go on")
    wait_until(lambda: world.service.job(name).attempts[0].dropped_copy, "the copy was dropped")
    sentence = rf"the checkpoint of step \d on n1 was not copied to n2: {reason}"
    assert re.fullmatch(sentence, world.service.job(name).attempts[0].dropped_copy)
    assert held(nvme, name, "n2", 1) == []
    os.kill(launcher_pid(world, name, "n2"), signal.SIGCONT)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"checkpoint": {"peer": True}, "nodes": 2}, "checkpoint.peer: it copies what is saved on a node: add local"),
        ({"checkpoint": {"peer": True, "local": "/nvme"}}, "checkpoint.peer: the job has one node, and no other one"),
    ],
)
def test_a_peer_without_a_node_or_a_local_directory_is_refused(
    world: Embedded, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        world.submit(python(""), **fields)
