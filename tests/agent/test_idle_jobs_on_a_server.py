"""Idle jobs on real processes and GPUs of the stub: warnings, and what comes after them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ganger.agent.sampling.node_sampler import NodeSampler
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.engine.policy_doc.policy_service import Proposal
from ganger.model.cluster import Node
from ganger.model.units import GIB_BYTES
from ganger.server.job_activity import JobActivity
from ganger.server.machine_agent import node_sample
from tests.service.world import Embedded, launcher, python
from tests.waiting import wait_until

NODE = Node(name="n1", gpus=4, gpu_type="h100", device_ids=(0, 1, 2, 3), cpu_milli=8_000, memory_bytes=GIB_BYTES)
POLICY = "queues: {{root: {{idle: {{window: {window}, do: {action}}}}}, exempt: {{idle: {{window: 1h}}}}}}"
SPINS = "while True: pass"
PERIOD_S = 0.2


@pytest.fixture
def world(tmp_path: Path, stub_nvml: Path, gpu_modes: Callable[[str], None]) -> Iterator[Embedded]:
    gpu_modes("4 0=idle 2=idle 3=idle")
    home = tmp_path / "home"
    home.mkdir()
    world = Embedded(home, launcher(tmp_path), (NODE,))
    yield world
    world.close()


class Sampling:
    """The agent of the machine, which samples when the test says so."""

    def __init__(self, world: Embedded, library: Path) -> None:
        self._sampler = NodeSampler("machine", SamplingRoots(nvml_library=library), None)
        usage = world.service.live_usage
        self._activity = JobActivity(world.loop, usage.of_ranks, usage.sessions)
        usage.attach(self._activity.idle_job)

    def until(self, condition: Callable[[], object], what: str) -> None:
        def is_met() -> object:
            time.sleep(PERIOD_S)
            sample = node_sample(self._sampler.sample(), NODE)
            self._activity.take([(sample, dict(enumerate(NODE.device_ids)))])
            return condition()

        wait_until(is_met, what)


def apply(world: Embedded, action: str, window: str = "2s") -> None:
    world.service.apply_policy(Proposal(text=POLICY.format(action=action, window=window)))


def steps(world: Embedded, name: str) -> list[str]:
    return [row.data["step"] for row in world.service.events(after=0, gang=name, limit=500, kinds=["idle"])]


@pytest.mark.long
def test_a_job_without_activity_is_warned_and_suspended_and_others_go_on(world: Embedded, stub_nvml: Path) -> None:
    apply(world, "suspend")
    sampling = Sampling(world, stub_nvml)
    idle = world.submit(resources={"gpu": 1}, checkpoint={"dir": "ckpt", "grace": "1s"})
    world.until(idle, "running")
    others = [world.submit(resources={"gpu": 1}), world.submit(python(SPINS)), world.submit(queue="exempt")]
    for name in others:
        world.until(name, "running")

    sampling.until(lambda: steps(world, idle), "it is warned")
    assert "it will be suspended in" in " ".join(world.service.explain(idle).domains)
    now = world.service.job(idle).idle
    assert now is not None
    assert (now.job, now.action, now.until_ms - now.since_ms >= 2_000) == (idle, "suspend", True)
    assert {row.name: row.idle for row in world.service.queues()} == {"root": (), "default": (now,), "exempt": ()}
    assert [row.idle for row in world.service.overview().queues if row.name == "default"] == [(now,)]
    assert [world.service.job(name).idle for name in others] == [None] * 3
    sampling.until(lambda: world.service.job(idle).row.state == "suspended", "it is suspended")

    job = world.service.job(idle)
    assert job.idle is None
    assert (steps(world, idle)[0], steps(world, idle)[-1]) == ("warned", "ended")
    assert job.row.sentence.startswith("suspended, because it was idle: continue it with `ganger resume")
    assert "idle for the window of its queue" in job.attempts[0].sentence
    assert [world.service.job(name).row.state for name in others] == ["running"] * 3
    assert [steps(world, name) for name in others] == [[], [], []]

    apply(world, "stop")
    world.service.suspend(idle, suspended=False)
    world.until(idle, "running")
    sampling.until(lambda: world.service.job(idle).row.ended_ms, "it is stopped")
    assert world.service.job(idle).row.sentence == "it was idle for the window of its queue"


def test_a_warned_job_goes_on_when_its_gpu_is_not_measured_or_a_session_begins(
    world: Embedded, stub_nvml: Path, gpu_modes: Callable[[str], None]
) -> None:
    apply(world, "stop", "4s")
    sampling = Sampling(world, stub_nvml)
    name = world.submit(resources={"gpu": 1})
    world.until(name, "running")
    wakes: list[Callable[[], object]] = [
        lambda: gpu_modes("4 0=lost"),
        lambda: world.service.live_usage.exec_command(name, rank=0, node=None),
    ]
    for wake in wakes:
        seen = len(steps(world, name))
        sampling.until(lambda seen=seen: len(steps(world, name)) > seen, "it is warned")
        wake()
        sampling.until(lambda: steps(world, name)[-1] == "active", "it goes on")
        gpu_modes("4 0=idle")
    assert world.service.job(name).row.state == "running"
    assert "ended" not in steps(world, name)
