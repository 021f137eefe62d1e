"""Live usage of ranks, and commands beside a rank, with real processes."""

import subprocess

import pytest

from ganger.errors import RequestError
from ganger.model.views.overview import RankSample
from ganger.ports import LogQuery
from tests.service.world import Embedded, python
from tests.waiting import wait_until

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
    """Run two ranks, one on each of n1 and n2, that hold memory and keep a processor busy."""
    name = world.submit(python(HOLDS), nodes=2, resources={"gpu": "h100:2"}, nproc_per_node=1)
    holding = LogQuery(job=name, everything=True)
    wait_until(lambda: world.until(name, "running") and len(list(world.service.lines(holding))) == 2, "both hold")
    return name


def samples_of(world: Embedded) -> dict[tuple[str, int | None], RankSample]:
    return {(sample.job, sample.rank): sample for sample in world.service.live_usage.samples().ranks}


def test_samples_show_the_usage_of_each_rank(world: Embedded, busy: str) -> None:
    idle = world.submit(resources={"gpu": "a100:1"})
    world.until(idle, "running")
    wait_until(lambda: len(samples_of(world)) == 3, "all ranks have samples")
    samples = samples_of(world)
    assert {key: sample.node for key, sample in samples.items()} == {(busy, 0): "n1", (busy, 1): "n2", (idle, 0): "n3"}
    assert [samples[busy, rank].devices for rank in (0, 1)] == [(0, 1), (0, 1)]
    assert all(samples[busy, rank].memory_bytes > 80 << 20 for rank in (0, 1))
    assert samples[idle, 0].memory_bytes < 80 << 20
    wait_until(lambda: samples_of(world)[busy, 0].cpu_milli > 0, "it is busy")
    assert samples_of(world)[idle, 0].cpu_milli == 0
    assert world.service.live_usage.samples().gpus == (), "virtual slots are not GPUs"
    world.service.stop(busy)
    world.ended(busy)
    assert {job for job, _ in samples_of(world)} == {idle}


def test_child_processes_count_for_their_rank(world: Embedded) -> None:
    name = world.submit(["sh", "-c", "sleep 300 & sleep 300 & wait"])
    world.until(name, "running")
    wait_until(lambda: [sample.processes for sample in samples_of(world).values()] == [3], "three processes")


def test_a_command_beside_a_rank(world: Embedded, busy: str) -> None:
    exec_command = world.service.live_usage.exec_command(busy, rank=None, node="n2")
    assert (exec_command.job, exec_command.generation, exec_command.rank, exec_command.node) == (busy, 1, 1, "n2")
    completed = subprocess.run(
        [*exec_command.argv, "1", "1", "-", "sh", "-c", "echo $GANGER_RANK; pwd"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert completed.stdout.decode().split() == ["1", str(world.work)]
    assert world.service.live_usage.exec_command(busy, rank=None, node=None).rank == 0
    assert world.service.live_usage.exec_command(busy, rank=1, node=None).node == "n2"


def test_a_command_needs_a_running_rank(world: Embedded, busy: str) -> None:
    pending = world.submit(resources={"gpu": "h100:4"}, nodes=2)
    ended = world.submit(["true"])
    world.ended(ended)
    array = world.submit(array="0-1", resources={"gpu": "a100:2"})
    world.until(f"{array}[0]", "running")
    for name, options, code in (
        (busy, {"rank": 7, "node": None}, "no_such_rank"),
        (busy, {"rank": 1, "node": "n1"}, "no_such_rank"),
        (busy, {"rank": None, "node": "n3"}, "no_such_node"),
        (array, {"rank": None, "node": None}, "is_array"),
        (f"{array}[1]", {"rank": None, "node": None}, "not_running"),
        (pending, {"rank": None, "node": None}, "not_running"),
        (ended, {"rank": None, "node": None}, "already_ended"),
    ):
        with pytest.raises(RequestError) as refused:
            world.service.live_usage.exec_command(name, **options)
        assert refused.value.code == code
