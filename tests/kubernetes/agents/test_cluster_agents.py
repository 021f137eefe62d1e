"""The controller's view of agents: devices by the kubelet, the last hour, faults, and what is bounded."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.agent.node_message import VERSION, NodeMessage
from ganger.controller.agents.recent_history import MAX_DEVICES, RecentHistory
from ganger.engine.query.node_telemetry import MACHINE, STEP_MS
from ganger.model.cluster import Node
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.node_figures import NOT_MEASURED, Figures
from ganger.model.node_health.node_sample import GpuSample, HostSample, KernelLine, NodeSample, ProbeSample
from ganger.model.units import GIB_BYTES
from ganger.ports import RankUsage
from tests.service.world import Embedded
from tools.agent_listener import PlayedCluster

HOUR_MS = 3_600_000
XID = "NVRM: Xid (PCI:0000:11:00): 79, pid='<unknown>', GPU has fallen off the bus."


def message(gpus: tuple[GpuSample, ...] = (), *, node: str = "n1", late_ms: int = 0, **parts: object) -> NodeMessage:
    """Return the message of an agent whose clock is late."""
    at_ms = time.time_ns() // 1_000_000 - late_ms
    sample = NodeSample(node=node, at_ms=at_ms, host=HostSample(memory_bytes=10), gpus=gpus, **parts)  # type: ignore[arg-type]
    return NodeMessage(v=VERSION, sent_ms=at_ms, sample=sample)


def gpu(index: int, *pods: str, busy: int = 50) -> GpuSample:
    return GpuSample(
        index=index,
        uuid=f"GPU-{index}",
        bus_id=f"0000:{0x10 + index:02x}:00",
        pods=pods,
        utilisation_percent=busy,
        memory_used_bytes=1,
        memory_bytes=2,
    )


def test_devices_of_a_pod_are_the_gpus_that_the_kubelet_gave_it() -> None:
    cluster = PlayedCluster("n1")
    cluster.add_pod("ml", "train-1-0", devices="0,1")
    cluster.add_pod("ml", "half-1-0", devices="2,3")
    cluster.add_pod("web", "other")
    gpus = (gpu(0, "web/other"), gpu(1), gpu(2, "ml/train-1-0"), gpu(3, "ml/train-1-0"), gpu(4, "ml/half-1-0"))
    cluster.agents.take("n1", message(gpus))
    assert cluster.agents.devices(Node(name="n1", gpus=5)) == {0: 2, 1: 3}, "of a pod that starts, nothing is known"


def test_an_xid_and_a_bad_condition_are_faults_of_the_node_and_not_of_another() -> None:
    cluster = PlayedCluster("n1", "n2")
    line = KernelLine(seq=1, at_ms=time.time_ns() // 1_000_000, text=XID)
    cluster.agents.take("n1", message((gpu(1),), lines=(line,)))
    cluster.agents.take("n2", message((gpu(1),), node="n2"))
    (fault,) = cluster.loop.faults
    assert (fault.node, fault.code, fault.gpu, fault.severity > Severity.NOTE) == ("n1", "xid_79", 1, True)
    assert not fault.is_shadow
    cluster.set_condition("n2", "KernelDeadlock", "True")
    cluster.agents.take("n2", message(node="n2"))
    (condition,) = cluster.agents.samples()["n2"].conditions
    assert (condition.name, condition.is_bad) == ("KernelDeadlock", True)
    assert cluster.agents.samples()["n1"].lines == (), "lines are checked and not kept"


def test_a_kubelet_that_does_not_answer_is_a_fault() -> None:
    cluster = PlayedCluster("n1")
    began_ms = time.time_ns() // 1_000_000
    for step in range(40):
        probe = ProbeSample(name="kubelet", error="connection refused")
        sample = NodeSample(node="n1", at_ms=began_ms + step * STEP_MS, host=HostSample(), probes=(probe,))
        cluster.agents.take("n1", NodeMessage(v=VERSION, sent_ms=began_ms, sample=sample))
    assert [(fault.check, fault.device) for fault in cluster.loop.faults] == [("services", "kubelet")]


def test_a_clock_that_is_late_is_measured_and_does_not_move_the_history() -> None:
    cluster = PlayedCluster("n1")
    cluster.agents.take("n1", message((gpu(0),), late_ms=HOUR_MS))
    offset_ms = cluster.agents.samples()["n1"].host.clock_offset_ms
    assert offset_ms is not None
    assert abs(offset_ms + HOUR_MS) < 5_000
    now_ms = time.time_ns() // 1_000_000
    series = cluster.agents.histories(["n1", "n9"], now_ms - 60_000, now_ms + 1, 1)
    assert [step and step.busy_permille for step in series["n1"]["GPU-0"]] == [500]
    assert {*series} == {"n1"}


def test_a_node_that_left_the_cluster_is_forgotten() -> None:
    cluster = PlayedCluster("n1", "n2")
    cluster.agents.take("n1", message())
    cluster.nodes = {key: node for key, node in cluster.nodes.items() if key.name == "n2"}
    cluster.agents._nodes = cluster.nodes
    assert cluster.agents.samples() == {}
    cluster.agents.take("n2", message(node="n2"))
    assert {*cluster.agents._agents} == {*cluster.checks._states} == {"n2"}


def test_the_history_is_an_hour_of_means_and_bounded() -> None:
    history = RecentHistory()
    for step in range(720):
        busy = 100 if step < 540 else 300
        figures = {f"GPU-{number}": Figures(busy_permille=busy, memory_bytes=1 << 70) for number in range(40)}
        history.add(step * STEP_MS, figures | ({MACHINE: Figures(busy_permille=step)} if step % 2 else {}))
    end_ms = 720 * STEP_MS
    series = history.series(end_ms - 2 * HOUR_MS, end_ms, 4)
    assert [step and step.busy_permille for step in series["GPU-0"]] == [None, None, 100, 300]
    assert len(series) == MAX_DEVICES
    assert history.series(end_ms - 2 * STEP_MS, end_ms, 2)["GPU-1"][1] == Figures(
        busy_permille=300, memory_bytes=1 << 62
    )
    assert history._values.nbytes < 200_000, "whatever is sent, a node takes no more"


def test_the_work_of_gpus_is_that_of_the_hour_by_their_slots() -> None:
    history = RecentHistory()
    for step in range(400, 800):
        figures = {"GPU-0": Figures(busy_permille=step), MACHINE: Figures(busy_permille=1)}
        history.add(step * STEP_MS, figures | ({"GPU-1": Figures(busy_permille=0)} if step >= 790 else {}))
    work = history.gpu_work(780 * STEP_MS, 795 * STEP_MS).samples
    assert [*work["GPU-0"].times_ms] == [*work["GPU-1"].times_ms] == [step * STEP_MS for step in range(780, 795)]
    assert [*work["GPU-0"].busy_permille] == [*range(780, 795)]
    assert [*work["GPU-1"].busy_permille] == 10 * [NOT_MEASURED] + 5 * [0]
    whole = history.gpu_work(0, 800 * STEP_MS).samples
    assert ({*whole}, len(whole["GPU-0"].times_ms)) == ({"GPU-0", "GPU-1"}, 360)


@pytest.fixture(name="world")
def its_world(tmp_path: Path, zipapp: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, zipapp, (Node(name="n1", gpus=4, cpu_milli=8_000, memory_bytes=GIB_BYTES),))
    yield world
    world.close()


def test_telemetry_and_metrics_name_the_job_of_a_gpu_and_the_pod_of_another(world: Embedded) -> None:
    name = world.submit(resources={"gpu": 2}, nproc_per_node=2)
    world.until(name, "running")
    cluster = PlayedCluster("n1")
    cluster.add_pod("ml", "train-1-0", devices="0,1")
    gpus = (gpu(0, "web/other"), gpu(1, busy=10), gpu(2, "ml/train-1-0", busy=80), gpu(3, "ml/train-1-0", busy=40))
    cluster.agents.take("n1", message(gpus))
    world.service.telemetry.attach(cluster.agents)
    work, problem = world.service.telemetry.device_work(0, world.loop.now_ms() + 1)
    assert [(key, [*samples.busy_permille]) for key, samples in work.items()] == [
        (("n1", 0), [800]),
        (("n1", 1), [400]),
    ]
    assert problem == ""
    (node,) = world.service.telemetry.nodes(HOUR_MS, 3)
    assert [(gpu.device, gpu.job, gpu.pods) for gpu in node.gpus] == [
        (None, None, ("web/other",)),
        (None, None, ()),
        (0, name, ("ml/train-1-0",)),
        (1, name, ("ml/train-1-0",)),
    ]
    usage = world.service.telemetry.job(name, HOUR_MS, 3)
    assert [(rank.devices, rank.memory_used_bytes) for rank in usage.ranks] == [((0,), 1), ((1,), 1)]
    measured = cluster.agents.usage(world.loop.view, lambda *of: [RankUsage(*of, 1, 950, 4096, 2)])
    assert [(item.gang, item.rank, item.cpu_milli) for item in measured.ranks] == [(name, 0, None), (name, 1, 950)]
    assert [(item.node, item.device, item.busy_percent) for item in measured.gpus] == [("n1", 0, 80), ("n1", 1, 40)]
    metric = next(item for item in world.service.server_metrics()[1] if item.name == "DCGM_FI_DEV_GPU_UTIL")
    jobs = {dict(zip(metric.labels, labels, strict=True))["UUID"]: labels[-1] for labels in metric.values}
    assert jobs == {"GPU-0": "", "GPU-1": "", "GPU-2": name, "GPU-3": name}
