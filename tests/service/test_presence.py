"""What ranks use, and the way in for a command beside one, with real processes."""

import subprocess

import pytest

from ganger.errors import RequestError
from ganger.model.views.service_views import RankSample
from ganger.ports import LogQuery
from tests.service.world import Embedded, python, wait_until

HOLDS = """
import time
held = bytearray(b"x") * (80 << 20)
print("holds", flush=True)
while True:
    sum(range(100_000))
    time.sleep(0.01)
"""


@pytest.fixture
def busy(world: Embedded) -> str:
    """Two ranks, one on each of n1 and n2, that hold memory and keep a processor busy."""
    name = world.submit(python(HOLDS), nodes=2, resources={"gpu": "h100:2"}, nproc_per_node=1)
    holding = LogQuery(job=name, everything=True)
    wait_until(lambda: world.until(name, "running") and len(list(world.service.lines(holding))) == 2, "both hold")
    return name


def seen(world: Embedded) -> dict[tuple[str, int | None], RankSample]:
    return {(each.job, each.rank): each for each in world.service.presence.samples().ranks}


def test_samples_tell_what_each_rank_uses(world: Embedded, busy: str) -> None:
    idle = world.submit(resources={"gpu": "a100:1"})
    world.until(idle, "running")
    wait_until(lambda: len(seen(world)) == 3, "all ranks are seen")
    found = seen(world)
    assert {key: each.node for key, each in found.items()} == {(busy, 0): "n1", (busy, 1): "n2", (idle, 0): "n3"}
    assert [found[busy, rank].devices for rank in (0, 1)] == [(0, 1), (0, 1)]
    assert all(found[busy, rank].memory_bytes > 80 << 20 for rank in (0, 1))
    assert found[idle, 0].memory_bytes < 80 << 20
    wait_until(lambda: seen(world)[busy, 0].cpu_milli > 0, "it is busy")
    assert seen(world)[idle, 0].cpu_milli == 0
    assert world.service.presence.samples().gpus == (), "slots are no GPUs"
    world.service.stop(busy)
    world.ended(busy)
    assert {job for job, _ in seen(world)} == {idle}


def test_what_a_rank_started_counts_for_it(world: Embedded) -> None:
    name = world.submit(["sh", "-c", "sleep 300 & sleep 300 & wait"])
    world.until(name, "running")
    wait_until(lambda: [each.processes for each in seen(world).values()] == [3], "three processes")


def test_a_command_beside_a_rank(world: Embedded, busy: str) -> None:
    way = world.service.presence.entrance(busy, rank=None, node="n2")
    assert (way.job, way.generation, way.rank, way.node) == (busy, 1, 1, "n2")
    said = subprocess.run(
        [*way.argv, "1", "1", "-", "sh", "-c", "echo $GANGER_RANK; pwd"], capture_output=True, check=True, timeout=60
    )
    assert said.stdout.decode().split() == ["1", str(world.work)]
    assert world.service.presence.entrance(busy, rank=None, node=None).rank == 0
    assert world.service.presence.entrance(busy, rank=1, node=None).node == "n2"


def test_there_must_be_a_rank_that_runs(world: Embedded, busy: str) -> None:
    waits = world.submit(resources={"gpu": "h100:4"}, nodes=2)
    over = world.submit(["true"])
    world.ended(over)
    array = world.submit(array="0-1", resources={"gpu": "a100:2"})
    world.until(f"{array}[0]", "running")
    for name, asked, code in (
        (busy, {"rank": 7, "node": None}, "no_such_rank"),
        (busy, {"rank": 1, "node": "n1"}, "no_such_rank"),
        (busy, {"rank": None, "node": "n3"}, "no_such_node"),
        (array, {"rank": None, "node": None}, "is_array"),
        (f"{array}[1]", {"rank": None, "node": None}, "not_running"),
        (waits, {"rank": None, "node": None}, "not_running"),
        (over, {"rank": None, "node": None}, "already_ended"),
    ):
        with pytest.raises(RequestError) as refused:
            world.service.presence.entrance(name, **asked)
        assert refused.value.code == code
