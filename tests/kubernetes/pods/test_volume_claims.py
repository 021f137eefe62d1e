"""Claims of GangJobs in placement, on the fake API server; the volume controller's part is played here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.volumes.claim_objects import SELECTED_NODE
from ganger.controller.jobs.claim_restrictions import ClaimRestrictions
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import GANG, JOB, Controlled
from tests.kubernetes.jobs.test_gang_jobs import NO_CODE, cluster, controller, status
from tests.waiting import until
from tools.fakeapi import FakeApi

ONE = {"run": "true", "nodes": 1, "resources": {"gpu": 1}, "volumes": [{"name": "data", "path": "/data"}]}
WAITS = {"volumeBindingMode": "WaitForFirstConsumer"}


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[tuple[FakeApi, Credentials]]:
    """Run an API server with two nodes in two zones."""
    async with cluster(folder) as (api, access):
        for name, zone in (("n0", "a"), ("n1", "b")):
            node: Any = api.get("nodes", name, "")
            labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
            api.put(node | {"metadata": node["metadata"] | {"labels": labels}})
        yield api, access


@asynccontextmanager
async def placing(access: Credentials, folder: Path) -> AsyncIterator[Controlled]:
    """Run a controller that follows claims."""
    async with controller(access, folder) as system:
        builder = JobBuilder(system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster)
        jobs = GangJobReconciler(builder, system.backend.status_writer.update, [], NO_CODE, system.observed)
        restrictions = ClaimRestrictions(system.loop, system.backend, jobs.retry_rejected)
        system.backend.watch_jobs(jobs.changed)
        task = asyncio.create_task(restrictions.run())
        yield system
        task.cancel()


def claim(name: str = "data", *, bound: str = "", mode: str = "ReadWriteOnce", of: str = "local") -> dict[str, Any]:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": of}
    spec |= {"volumeName": bound} if bound else {}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named(name), "spec": spec}


def named(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": "default"}


def volume(name: str, key: str, *values: str, size: str = "2Gi", mode: str = "ReadWriteOnce") -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
    spec = {"capacity": {"storage": size}, "accessModes": [mode], "storageClassName": "local"}
    spec |= {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def storage_class(name: str = "local", **fields: Any) -> dict[str, Any]:
    about = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return about | {"provisioner": "kubernetes.io/no-provisioner"} | fields


def put(api: FakeApi, name: str = "big", **spec: Any) -> None:
    api.put(JOB | {"metadata": named(name), "spec": ONE | spec})


def nodes_of(api: FakeApi, name: str = "big") -> list[str]:
    pods = [pod for pod in api.objects("pods") if pod["metadata"]["labels"]["ganger.dev/job"] == name]
    return [pod["spec"].get("nodeName", "") for pod in pods]


def run(folder: Path, play: Callable[[FakeApi, Controlled], Any]) -> None:
    async def whole() -> None:
        async with world(folder) as (api, access), placing(access, folder) as system:
            await play(api, system)

    asyncio.run(whole())


@pytest.mark.parametrize(("node", "key"), [("n1", "kubernetes.io/hostname"), ("b", "topology.kubernetes.io/zone")])
def test_a_bound_volume_takes_the_gang_to_its_node_or_zone(node: str, key: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, _: Controlled) -> None:
        api.put(volume("disk", key, node))
        api.put(claim(bound="disk"))
        put(api)
        await until(lambda: nodes_of(api) == ["n1"])

    run(tmp_path, play)


def test_an_unbound_claim_gets_an_available_volume_of_the_gangs_node(tmp_path: Path) -> None:
    async def play(api: FakeApi, _: Controlled) -> None:
        api.put(storage_class(**WAITS))
        api.put(volume("small", "kubernetes.io/hostname", "n0", size="1Mi"))
        api.put(volume("other", "kubernetes.io/hostname", "n0", mode="ReadWriteMany"))
        api.put(volume("large", "kubernetes.io/hostname", "n1", size="9Gi"))
        api.put(volume("right", "kubernetes.io/hostname", "n1"))
        api.put(claim())
        put(api)
        await until(lambda: nodes_of(api) == ["n1"])
        given: Any = api.get("persistentvolumes", "right", "")
        about: Any = api.get("persistentvolumeclaims", "data")
        assert given["spec"]["claimRef"]["uid"] == about["metadata"]["uid"]
        assert given["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] == "yes"

    run(tmp_path, play)


def test_a_provisioner_gets_the_node_within_the_zones_of_its_class(tmp_path: Path) -> None:
    async def play(api: FakeApi, _: Controlled) -> None:
        zone_b = [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["b"]}]}]
        api.put(storage_class("cloud", provisioner="disk.example.com", allowedTopologies=zone_b, **WAITS))
        api.put(claim(of="cloud"))
        put(api)
        await until(lambda: nodes_of(api) == ["n1"])
        about: Any = api.get("persistentvolumeclaims", "data")
        assert about["metadata"]["annotations"][SELECTED_NODE] == "n1"

    run(tmp_path, play)


def test_a_claim_that_is_bound_while_a_job_waits_moves_the_job(tmp_path: Path) -> None:
    async def play(api: FakeApi, system: Controlled) -> None:
        api.put(storage_class(**WAITS))
        api.put(volume("first", "kubernetes.io/hostname", "n0", "n1"))
        api.put(claim())
        put(api, "before", volumes=[], nodes=2, resources={"gpu": 8})
        await until(lambda: len(nodes_of(api, "before")) == 2)
        put(api)
        await until(lambda: system.state_of(GANG) == "pending")
        api.put(volume("second", "kubernetes.io/hostname", "n1"))
        about: Any = api.get("persistentvolumeclaims", "data")
        api.put(about | {"spec": about["spec"] | {"volumeName": "second"}})
        await until(lambda: "hostname=n1" in str(system.loop.copy().gangs[GANG].shape.selector))
        api.delete("gangjobs", "before")
        await until(lambda: nodes_of(api) == ["n1"])

    run(tmp_path, play)


@pytest.mark.parametrize(
    ("objects", "reason", "message", "remedy"),
    [
        ([], "no_such_claim", "there is no PersistentVolumeClaim data in the namespace default", [claim(bound="disk")]),
        (
            [claim(of="lost")],
            "no_such_storage_class",
            "there is no StorageClass lost",
            [storage_class("lost", **WAITS)],
        ),
        ([claim(), storage_class()], "claim_not_bound", "is not bound to a volume yet", [claim(bound="disk")]),
        (
            [claim(), storage_class(**WAITS)],
            "claim_not_bound",
            "no PersistentVolume of the class local is available",
            [volume("late", "kubernetes.io/hostname", "n0")],
        ),
        ([claim(bound="gone")], "claim_not_bound", "the PersistentVolume gone of the claim data is gone", []),
    ],
)
def test_a_job_says_what_its_claim_lacks_and_starts_once_it_is_there(
    objects: list[Any], reason: str, message: str, remedy: list[Any], tmp_path: Path
) -> None:
    async def play(api: FakeApi, _: Controlled) -> None:
        for item in objects:
            api.put(item)
        put(api)
        await until(lambda: status(api).get("reason") == reason)
        assert message in status(api)["message"]
        assert status(api)["phase"] == "Rejected"
        if reason == "no_such_storage_class":
            api.put(volume("disk", "kubernetes.io/hostname", "n0") | {"spec": _of_class("lost")})
        else:
            api.put(volume("disk", "kubernetes.io/hostname", "n0", size="1Ki"))
        for item in remedy:
            api.put(item)
        await until(lambda: nodes_of(api) == ["n0"] or not remedy)

    run(tmp_path, play)


def _of_class(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = volume("disk", "kubernetes.io/hostname", "n0")["spec"]
    return spec | {"storageClassName": name}


def test_a_claim_of_one_node_is_refused_for_a_job_of_several(tmp_path: Path) -> None:
    async def play(api: FakeApi, _: Controlled) -> None:
        api.put(volume("disk", "topology.kubernetes.io/zone", "a", "b"))
        api.put(claim(bound="disk"))
        put(api, nodes=2)
        await until(lambda: status(api).get("reason") == "claim_of_one_node")
        assert "use a claim that is ReadWriteMany" in status(api)["message"]

    run(tmp_path, play)


def test_jobs_that_share_a_claim_of_one_node_come_together_there(tmp_path: Path) -> None:
    async def play(api: FakeApi, system: Controlled) -> None:
        api.put(volume("disk", "topology.kubernetes.io/zone", "a", "b"))
        api.put(claim(bound="disk"))
        put(api, placement={"node_selector": {"kubernetes.io/hostname": "n1"}})
        await until(lambda: nodes_of(api) == ["n1"])
        put(api, "full", volumes=[], resources={"gpu": 7}, placement={"nodes": ["n1"]})
        await until(lambda: nodes_of(api, "full") == ["n1"])
        put(api, "next")
        await until(lambda: (api.get("gangjobs", "next") or {}).get("status", {}).get("reason") == "no_capacity")
        api.delete("gangjobs", "full")
        await until(lambda: nodes_of(api, "next") == ["n1"])

    run(tmp_path, play)


def test_the_next_controller_knows_where_a_claim_is_in_use(tmp_path: Path) -> None:
    async def play() -> None:
        async with world(tmp_path) as (api, access):
            api.put(volume("disk", "topology.kubernetes.io/zone", "a", "b"))
            api.put(claim(bound="disk"))
            async with placing(access, tmp_path):
                put(api, resources={"gpu": 8}, placement={"node_selector": {"kubernetes.io/hostname": "n1"}})
                await until(lambda: nodes_of(api) == ["n1"])
            async with placing(access, tmp_path):
                put(api, "next")
                await until(
                    lambda: (api.get("gangjobs", "next") or {}).get("status", {}).get("reason") == "no_capacity"
                )

    asyncio.run(play())


def test_a_claim_of_one_pod_is_waited_for_without_an_attempt(tmp_path: Path) -> None:
    async def play(api: FakeApi, _: Controlled) -> None:
        api.put(volume("disk", "kubernetes.io/hostname", "n0", mode="ReadWriteOncePod"))
        api.put(claim(bound="disk", mode="ReadWriteOncePod"))
        put(api)
        await until(lambda: nodes_of(api) == ["n0"])
        put(api, "next")
        await until(lambda: (api.get("gangjobs", "next") or {}).get("status", {}).get("reason") == "volume_unavailable")
        late: Any = api.get("gangjobs", "next")
        assert "the claim data is ReadWriteOncePod and in use on n0" in late["status"]["message"]

    run(tmp_path, play)
