"""Logs of ended ranks, read after their pods and the kubelets that had them are gone."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ganger.controller.durable.rank_logs import PodSource, RankLogs, merged
from ganger.controller.durable.store import DirectoryStore, StoreError
from ganger.gang_jobs import object_names, pod_logs
from ganger.gang_jobs.pod_logs import LogUnavailableError
from ganger.kubeapi.objects import CustomObject, Key, ObjectMeta, Pod, PodStatus
from ganger.ports import LogQuery

JOB = Key("ml", "big")
TEXT = "2026-11-26T10:00:00.000000001Z [0] loss 0.1\n2026-11-26T10:00:01.000000001Z [1] loss 0.2\n"
ALL = LogQuery(job="big.ml", everything=True)


def gang_job(uid: str) -> CustomObject:
    return CustomObject(metadata=ObjectMeta(name="big", namespace="ml", uid=uid))


def pod(phase: str) -> Pod:
    labels = {object_names.JOB: "big", object_names.GENERATION: "1"}
    annotations = {object_names.GANG: "big.ml", object_names.NODE: "n1", object_names.RANKS: "worker:0,1"}
    about = ObjectMeta(name="big-1-0", namespace="ml", uid="p", labels=labels, annotations=annotations)
    return Pod(metadata=about, status=PodStatus(phase=phase))


class Cluster:
    """Pods, GangJobs and kubelets."""

    def __init__(self) -> None:
        self.pods: dict[Key, Pod] = {}
        self.jobs = {JOB: gang_job("first")}
        self.is_reachable = True
        self.errors: list[StoreError] = []

    def fetch(self, pod: Key, since: str) -> str:
        if not self.is_reachable:
            raise LogUnavailableError(f"no log of {pod.name}")
        return TEXT

    def logs(self, folder: Path) -> RankLogs:
        source = PodSource(self.pods, self.jobs.get, self.fetch)
        return RankLogs(DirectoryStore(folder), source, lambda: True, self.errors.append)

    def read(self, logs: RankLogs) -> list[str]:
        pods, fetch = merged(logs, "big.ml", self.pods, self.fetch)
        return [line.text for line in pod_logs.lines(pods, ALL, fetch)]


async def running(logs: RankLogs, holds: Callable[[], bool]) -> None:
    """Run until the condition holds."""
    task = asyncio.create_task(logs.run())
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what it waits for is in files
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_log_outlives_its_pod_its_node_and_the_controller(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.pods[pod("").metadata.key] = pod("Succeeded")

    async def test() -> None:
        await running(cluster.logs(tmp_path), lambda: any(tmp_path.rglob("*.gz")))

    asyncio.run(test())
    next_controller = cluster.logs(tmp_path)
    cluster.is_reachable = False
    assert cluster.read(next_controller) == ["loss 0.1", "loss 0.2"], "the node is gone"
    cluster.pods.clear()
    assert cluster.read(next_controller) == ["loss 0.1", "loss 0.2"], "the pod is gone"
    cluster.jobs[JOB] = gang_job("another of that name")
    assert cluster.read(next_controller) == [], "a later job has no logs of an earlier one"


def test_logs_are_deleted_with_their_job(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.pods[pod("").metadata.key] = pod("Failed")

    async def test() -> None:
        logs = cluster.logs(tmp_path)
        await running(logs, lambda: any(tmp_path.rglob("*.gz")))
        logs.job_changed(cluster.jobs[JOB], None)
        await running(logs, lambda: not any(tmp_path.rglob("*.gz")))

    asyncio.run(test())


def test_a_running_pod_and_one_of_another_program_are_left_alone(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.pods[pod("").metadata.key] = pod("Running")
    foreign = msgspec.structs.replace(pod("Succeeded"), metadata=ObjectMeta(name="b", namespace="ml", uid="b"))
    cluster.pods[Key("ml", "b")] = foreign
    logs = cluster.logs(tmp_path)
    asyncio.run(running(logs, lambda: True))
    assert not list(tmp_path.rglob("*.gz"))
    assert cluster.read(logs)[:1] == ["loss 0.1"], "from the kubelet"


@pytest.mark.parametrize("damage", [b"", b"no archive", b"\x1f\x8b"])
def test_a_damaged_copy_is_left_out(damage: bytes, tmp_path: Path) -> None:
    cluster = Cluster()
    DirectoryStore(tmp_path).put("logs/ml/big/first/big-1-0.gz", damage)
    assert cluster.read(cluster.logs(tmp_path)) == []


def test_a_store_that_cannot_be_used_is_reported_and_live_logs_are_read(tmp_path: Path) -> None:
    cluster = Cluster()
    (tmp_path / "logs").touch()
    logs = cluster.logs(tmp_path)
    cluster.pods[pod("").metadata.key] = pod("Succeeded")
    asyncio.run(running(logs, lambda: bool(cluster.errors)))
    assert "logs/ml/big/first" in str(cluster.errors[0])
    assert cluster.read(logs) == ["loss 0.1", "loss 0.2"]
