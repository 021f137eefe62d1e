"""Idle jobs by the samples of a cluster's nodes, and by what the launchers there report of the ranks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.engine.policy_doc.policy_service import Proposal
from ganger.model.cluster import Node
from ganger.model.node_health.node_sample import GpuSample, HostSample, NodeSample
from ganger.model.units import GIB_BYTES
from ganger.ports import RankUsage
from ganger.server.job_activity import BUSY_RANK_MILLI, JobActivity
from tests.service.world import Embedded
from tests.waiting import wait_until

NODES = tuple(
    Node(name=name, gpus=2, gpu_type="h100", cpu_milli=8_000, memory_bytes=GIB_BYTES) for name in ("n1", "n2")
)
WARNED_MS = 600
"""The first warning is due before, half of the window before its end."""
POLICY = "queues: {root: {idle: {window: 1s, do: stop}}}"


@pytest.fixture
def world(tmp_path: Path, zipapp: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, zipapp, NODES)
    world.service.apply_policy(Proposal(text=POLICY))
    yield world
    world.close()


def sample(node: str, percents: tuple[int | None, ...] = (0, 0)) -> NodeSample:
    gpus = tuple(GpuSample(index=index, utilisation_percent=percent) for index, percent in enumerate(percents))
    return NodeSample(node=node, at_ms=1, host=HostSample(), gpus=gpus)


DEVICES = {0: 0, 1: 1}
FIRST, IDLE = (sample("n1"), DEVICES), (sample("n2"), DEVICES)
NOT_IDLE: dict[str, tuple[list[tuple[NodeSample, dict[int, int]]], dict[int, int | None]]] = {
    "a node without samples": ([], {0: 0, 1: 0}),
    "a GPU with work": ([(sample("n2", (0, 90)), DEVICES)], {0: 0, 1: 0}),
    "a GPU that is not measured": ([(sample("n2", (0, None)), DEVICES)], {0: 0, 1: 0}),
    "a GPU that is missing": ([(sample("n2", (0,)), DEVICES)], {0: 0, 1: 0}),
    "a device that is not known": ([(sample("n2"), {0: 0})], {0: 0, 1: 0}),
    "a rank with CPU time": ([IDLE], {0: 0, 1: BUSY_RANK_MILLI}),
    "a rank whose CPU time is not measured": ([IDLE], {0: 0, 1: None}),
    "a rank of which nothing is reported": ([IDLE], {0: 0}),
}
"""Samples of the second node, and the CPU time of ranks."""


class Ranks:
    """The usage of the ranks, one on each node."""

    def __init__(self) -> None:
        self.cpu_milli: dict[int, int | None] = {0: 0, 1: 0}

    def __call__(self, gang: str, node: str, generation: int) -> list[RankUsage]:
        """Return that of the rank on a node."""
        rank = ("n1", "n2").index(node)
        return [
            RankUsage(gang, node, generation, number, cpu_milli, None, 1)
            for number, cpu_milli in self.cpu_milli.items()
            if number == rank
        ]


def test_a_job_is_idle_only_if_all_its_nodes_show_it(world: Embedded) -> None:
    name = world.submit(nodes=2, resources={"gpu": 2}, nproc_per_node=1)
    world.until(name, "running")
    ranks = Ranks()
    activity = JobActivity(world.loop, ranks, lambda _: 0)

    def steps() -> list[str]:
        rows = world.service.events(after=0, gang=name, limit=500, kinds=["idle"])
        return [row.data["step"] for row in rows]

    for case, (of_second, ranks.cpu_milli) in NOT_IDLE.items():
        until_ms = world.loop.now_ms() + WARNED_MS
        while world.loop.now_ms() < until_ms:
            activity.take([*of_second, FIRST])
        assert steps() == [], case

    ranks.cpu_milli = {0: 0, 1: BUSY_RANK_MILLI - 1}

    def is_stopping() -> bool:
        activity.take([IDLE, FIRST])
        return world.service.job(name).row.state in ("stopping", "stopped")

    wait_until(is_stopping, "it is stopped")
    assert (steps()[0], steps()[-1]) == ("warned", "ended")


def test_nodes_that_leave_are_forgotten_and_nothing_is_kept_without_rules(world: Embedded) -> None:
    name = world.submit(nodes=2, resources={"gpu": 2}, nproc_per_node=1)
    world.until(name, "running")
    activity = JobActivity(world.loop, Ranks(), lambda _: 0)
    activity.take([IDLE, FIRST])
    assert set(activity._nodes) == {"n1", "n2"}
    activity.forget("n2")
    activity.forget("n3")
    assert set(activity._nodes) == {"n1"}
    world.service.apply_policy(Proposal(text="queues: {root: {}}"))
    activity.take([FIRST])
    assert activity._nodes == {}


def test_gangs_of_others_are_left_alone(world: Embedded) -> None:
    name = world.submit(nodes=2, resources={"gpu": 2}, nproc_per_node=1)
    world.until(name, "running")
    activity = JobActivity(world.loop, Ranks(), lambda _: 0, lambda gang: gang == name)
    activity.take([IDLE, FIRST])
    assert [node.parts for node in activity._nodes.values()] == [{}, {}]
