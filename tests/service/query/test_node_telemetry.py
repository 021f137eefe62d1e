"""Telemetry of nodes and jobs over a real history: means, imbalance, holders, silence."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ganger.agent.history.figure_history import STEP_S, FigureHistory
from ganger.agent.history.sample_figures import MACHINE
from ganger.engine.query.node_telemetry import Histories
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.node_health.node_figures import Figures, GpuWork
from ganger.model.node_health.node_sample import GpuSample, HostSample, NodeSample
from ganger.model.units import GIB_BYTES
from tests.service.world import Embedded

HOUR_MS = 3_600_000
NODE = Node(name="n1", gpus=4, gpu_type="h100", cpu_milli=8_000, memory_bytes=GIB_BYTES, device_ids=(4, 5, 6, 7))
BUSY = {4: 900, 5: 900, 6: 900, 7: 300}


class OneAgent:
    """An agent of n1 with a history since a time, every GPU as busy as BUSY says."""

    are_devices_fixed = True

    def __init__(self, path: Path, since_s: int) -> None:
        self.age = 0
        self._history = FigureHistory(path)
        figures = {f"GPU-{index}": Figures(busy_permille=busy) for index, busy in BUSY.items()}
        for at_s in range(since_s, since_s + 100, STEP_S):
            self._history.add(at_s, figures | {MACHINE: Figures(busy_permille=100)})

    def samples(self) -> Mapping[str, NodeSample]:
        gpus = tuple(
            GpuSample(index=index, uuid=f"GPU-{index}", memory_used_bytes=10, memory_bytes=20, temperature_c=index)
            for index in BUSY
        )
        return {"n1": NodeSample(node="n1", at_ms=5, host=HostSample(memory_bytes=100), gpus=gpus)}

    def figures(self, node: str) -> Figures:
        return Figures(memory_bytes=40)

    def age_ms(self, node: str) -> int:
        return self.age

    def devices(self, node: Node) -> Mapping[int, int]:
        return dict(enumerate(node.device_ids))

    def histories(self, nodes: Sequence[str], since_ms: int, until_ms: int, points: int) -> Histories:
        return dict.fromkeys(nodes, self._history.series(since_ms // 1000, until_ms // 1000, points))

    def gpu_work(self, nodes: Sequence[str], since_ms: int, until_ms: int) -> Mapping[str, GpuWork]:
        return dict.fromkeys(nodes, self._history.gpu_work(since_ms // 1000, until_ms // 1000))


@pytest.fixture(name="world")
def its_world(tmp_path: Path, zipapp: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, zipapp, (NODE, Node(name="n2", cpu_milli=1_000, memory_bytes=GIB_BYTES)))
    yield world
    world.close()


def test_ranks_are_compared_by_the_time_their_devices_were_busy(world: Embedded, tmp_path: Path) -> None:
    name = world.submit(resources={"gpu": "h100:4"}, nproc_per_node=4)
    world.until(name, "running")
    agent = OneAgent(tmp_path / "history.db", int(time.time()) - int(time.time()) % STEP_S)
    world.service.telemetry.attach(agent)
    usage = world.service.telemetry.job(name, HOUR_MS, 30)
    assert [rank.duty_permille for rank in usage.ranks] == [900, 900, 900, 300]
    assert (usage.duty_permille, usage.imbalance_permille) == (750, 600)
    assert {rank.rank: rank.devices for rank in usage.ranks} == {0: (0,), 1: (1,), 2: (2,), 3: (3,)}
    assert [rank.memory_used_bytes for rank in usage.ranks] == 4 * [10]
    assert [rank.temperature_c for rank in usage.ranks] == [4, 5, 6, 7]
    node = world.service.telemetry.node("n1", HOUR_MS, 3)
    assert [(gpu.device, gpu.job) for gpu in node.gpus] == [(device, name) for device in range(4)]
    assert (node.memory_used_bytes, node.memory_bytes, node.is_silent) == (40, 100, False)
    agent.age = 31_000
    assert world.service.telemetry.node("n1", HOUR_MS, 3).is_silent, "a dead agent is a fact"


def test_metrics_of_gpus_name_their_jobs(world: Embedded, tmp_path: Path) -> None:
    name = world.submit(resources={"gpu": "h100:2"})
    world.until(name, "running")
    world.service.telemetry.attach(OneAgent(tmp_path / "history.db", 0))
    metrics = {metric.name: metric for metric in world.service.server_metrics()[1]}
    temperature = metrics["DCGM_FI_DEV_GPU_TEMP"]
    rows = [
        dict(zip(temperature.labels, labels, strict=True)) | {"C": value}
        for labels, value in temperature.values.items()
    ]
    assert [(row["gpu"], row["UUID"], row["Hostname"], row["job"], row["C"]) for row in rows] == [
        ("4", "GPU-4", "n1", name, 4),
        ("5", "GPU-5", "n1", name, 5),
        ("6", "GPU-6", "n1", "", 6),
        ("7", "GPU-7", "n1", "", 7),
    ]
    assert metrics["ganger_gpu_info"].values.keys() == temperature.values.keys()
    assert metrics["DCGM_FI_DEV_POWER_USAGE"].values == {}, "not measured is not 0"


def test_a_node_without_an_agent_is_silent(world: Embedded) -> None:
    assert world.service.telemetry.nodes(HOUR_MS, 3) == []
    node = world.service.telemetry.node("n2", HOUR_MS, 3)
    assert (node.at_ms, node.is_silent, node.gpus) == (None, True, ())
    with pytest.raises(RequestError, match="there is no node n9"):
        world.service.telemetry.node("n9", HOUR_MS, 3)


def test_a_job_that_does_not_run_has_no_usage(world: Embedded) -> None:
    ended = world.submit(["true"])
    world.ended(ended)
    world.submit(resources={"gpu": "h100:4"})
    pending = world.submit(resources={"gpu": "h100:4"})
    for name, code in ((ended, "already_ended"), (pending, "not_running")):
        with pytest.raises(RequestError) as refused:
            world.service.telemetry.job(name, HOUR_MS, 3)
        assert refused.value.code == code
