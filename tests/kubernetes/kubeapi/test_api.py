"""Requests of the client on the fake API server and on a real one: both must accept them and respond alike."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from ganger.gang_jobs.custom_resources import PROGRAM, SCHEDULER
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.lease import LeaderLease
from ganger.kubeapi.objects import Added, Bookmark, CustomObject, Deleted, Modified, Object, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import LEASES, NODES, PODS, ListOptions, Resource
from tests.kubernetes.fakeapi.worlds import NO_CLUSTER, WITHIN_S, real
from tools.fakeapi import FakeApi, Fault

CONFIG_MAPS = Resource("", "v1", "configmaps", CustomObject)
NAMESPACES = Resource("", "v1", "namespaces", CustomObject)
ACCOUNTS = Resource("", "v1", "serviceaccounts", CustomObject)
Case = Callable[[ApiClient, str], Awaitable[None]]


@pytest.fixture(params=["fake", "real"])
def run_case(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Case], None]:
    """Run a case in a namespace of its own."""
    if request.param == "real" and real() is None:
        pytest.skip(NO_CLUSTER)

    async def run(case: Case) -> None:
        namespace = f"client-{uuid4().hex[:8]}"
        async with asyncio.timeout(WITHIN_S), access(request.param, tmp_path) as way, ApiClient(way, PROGRAM) as api:
            created = await api.create(NAMESPACES, described("v1", "Namespace", namespace))
            try:
                if request.param == "real":
                    await existing(api, namespace)
                await case(api, namespace)
            finally:
                await api.delete(NAMESPACES, created.metadata)

    return lambda case: asyncio.run(run(case))


@asynccontextmanager
async def access(world: str, folder: Path) -> AsyncIterator[Credentials]:
    if world == "real" and (kubeconfig := real()):
        yield Credentials.from_kubeconfig([kubeconfig])
        return
    async with FakeApi(tls=True) as server:
        yield Credentials.from_kubeconfig([server.kubeconfig(folder / "config")])


async def existing(api: ApiClient, namespace: str) -> None:
    """Create a namespace and wait for its service account, without which no pod is accepted."""
    ready = asyncio.Event()
    follower = Informer(api, ACCOUNTS, lambda _, __: ready.set(), ListOptions(namespace))
    following = asyncio.create_task(follower.run())
    await ready.wait()
    following.cancel()


def described(version: str, kind: str, name: str, namespace: str = "", **more: Object) -> Object:
    about = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": about, **more}


def pod(name: str, namespace: str) -> Object:
    containers = [{"name": "main", "image": "example.invalid/none", "resources": {"limits": {"cpu": "1"}}}]
    return described("v1", "Pod", name, namespace, spec={"schedulerName": SCHEDULER, "containers": containers})


def config_map(name: str, namespace: str, **data: str) -> Object:
    return described("v1", "ConfigMap", name, namespace, data=data)


def test_what_is_made_is_read_listed_and_deleted(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        created = await api.create(CONFIG_MAPS, config_map("a", namespace, k="v"))
        assert (await api.get(CONFIG_MAPS, "a", namespace)).metadata == created.metadata
        names = {item.metadata.name for item in await api.list(CONFIG_MAPS, ListOptions(namespace))}
        assert "a" in names
        with pytest.raises(ApiError) as error:
            await api.create(CONFIG_MAPS, config_map("a", namespace))
        assert error.value.conflict
        assert error.value.reason == "AlreadyExists"
        assert await api.delete(CONFIG_MAPS, created.metadata)
        assert not await api.delete(CONFIG_MAPS, created.metadata)
        with pytest.raises(ApiError) as error:
            await api.get(CONFIG_MAPS, "a", namespace)
        assert error.value.missing

    run_case(case)


def test_only_that_very_object_is_deleted_and_only_as_it_was(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        first = await api.create(CONFIG_MAPS, config_map("a", namespace))
        await api.delete(CONFIG_MAPS, first.metadata)
        second = await api.create(CONFIG_MAPS, config_map("a", namespace))
        with pytest.raises(ApiError) as error:
            await api.delete(CONFIG_MAPS, first.metadata)
        assert error.value.conflict
        await api.merge(ObjectRef(CONFIG_MAPS, namespace, "a"), {"data": {"k": "w"}})
        with pytest.raises(ApiError) as error:
            await api.delete(CONFIG_MAPS, second.metadata, unchanged=True)
        assert error.value.conflict
        assert await api.delete(CONFIG_MAPS, second.metadata)

    run_case(case)


def test_it_is_changed_by_merging_and_by_steps(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        created = await api.create(CONFIG_MAPS, config_map("a", namespace))
        place = ObjectRef(CONFIG_MAPS, namespace, "a")
        labels = {"metadata": {"resourceVersion": created.metadata.resource_version, "labels": {"x": "1", "y": "2"}}}
        assert (await api.merge(place, labels)).metadata.labels == {"x": "1", "y": "2"}
        with pytest.raises(ApiError) as error:
            await api.merge(place, labels)
        assert error.value.reason == "Conflict"
        assert (await api.merge(place, {"metadata": {"labels": {"x": None}}})).metadata.labels == {"y": "2"}
        steps = [
            {"op": "test", "path": "/metadata/labels/y", "value": "2"},
            {"op": "remove", "path": "/metadata/labels/y"},
        ]
        assert (await api.patch(place, steps)).metadata.labels == {}
        with pytest.raises(ApiError) as error:
            await api.patch(place, steps)
        assert error.value.status == 422

    run_case(case)


def test_what_is_applied_is_so_and_what_is_not_any_more_goes(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        applied = config_map("a", namespace)
        applied["metadata"]["labels"] = {"z": "3"}
        assert (await api.apply(CONFIG_MAPS, applied)).metadata.labels == {"z": "3"}
        del applied["metadata"]["labels"]
        assert (await api.apply(CONFIG_MAPS, applied)).metadata.labels == {}

    run_case(case)


def test_a_watch_tells_what_happens(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        options = ListOptions(namespace, labels="told=yes")
        async with aclosing(api.pages(CONFIG_MAPS, options)) as pages:
            since = (await anext(pages)).metadata.resource_version
        body = config_map("a", namespace)
        body["metadata"]["labels"] = {"told": "yes"}
        created = await api.create(CONFIG_MAPS, body)
        await api.merge(ObjectRef(CONFIG_MAPS, namespace, "a"), {"data": {"k": "v"}})
        await api.delete(CONFIG_MAPS, created.metadata)
        news = [item async for item in api.watch(CONFIG_MAPS, options, since, timeout_s=3, read_timeout_s=30)]
        changes = [item for item in news if not isinstance(item, Bookmark)]
        assert [type(item) for item in changes] == [Added, Modified, Deleted]
        versions = [int(item.object.metadata.resource_version) for item in news]
        assert versions == sorted(versions)

    run_case(case)


def test_a_pod_is_bound_with_its_devices_and_only_once(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        test_node = f"node-of-{namespace}"
        node = await api.create(NODES, described("v1", "Node", test_node, spec={"unschedulable": True}))
        try:
            created = await api.create(PODS, pod("a", namespace))
            await api.bind(created.metadata, test_node, {"ganger.dev/gpus": "0,1"})
            bound = await api.get(PODS, "a", namespace)
            assert bound.spec.node_name == test_node
            assert bound.metadata.annotations["ganger.dev/gpus"] == "0,1"
            assert [item.status for item in bound.status.conditions if item.type == "PodScheduled"] == ["True"]
            await api.bind(created.metadata, test_node, {"ganger.dev/gpus": "0,1"})
            with pytest.raises(ApiError) as error:
                await api.bind(created.metadata, test_node, {"ganger.dev/gpus": "2,3"})
            assert error.value.conflict
            await api.delete(PODS, created.metadata, grace_s=0)
            other = await api.create(PODS, pod("a", namespace))
            with pytest.raises(ApiError) as error:
                await api.bind(created.metadata, test_node, {})
            assert error.value.conflict
            await api.delete(PODS, other.metadata, grace_s=0)
        finally:
            await api.delete(NODES, node.metadata)

    run_case(case)


def test_what_is_wrong_with_an_object_is_named(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        bad = pod("a", namespace)
        bad["spec"]["containers"] = []
        with pytest.raises(
            ApiError, match=r"could not create pods .*/a: 422 Invalid: .*spec.containers: Required value"
        ):
            await api.create(PODS, bad)
        assert await api.list_resources("example.invalid", "v1") == frozenset()
        assert "leases" in await api.list_resources("coordination.k8s.io", "v1")

    run_case(case)


def test_a_lease_goes_from_one_to_the_next(run_case: Callable[[Case], None]) -> None:
    async def case(api: ApiClient, namespace: str) -> None:
        led = []

        async def act() -> None:
            led.append((await api.get(LEASES, "one", namespace)).spec.holder_identity)

        await LeaderLease(api, namespace, "one", "a").lead(act)
        await LeaderLease(api, namespace, "one", "b").lead(act)
        lease = await api.get(LEASES, "one", namespace)
        assert led == ["a", "b"]
        assert not lease.spec.holder_identity
        assert lease.spec.lease_transitions == 1

    run_case(case)


@pytest.mark.parametrize("fault", [{"lost": True}, {"dropped": True}, {"status": 500}, {"status": 429}])
def test_nothing_is_done_twice_however_the_answer_gets_lost(fault: Object, tmp_path: Path) -> None:
    async def case() -> list[Pod]:
        async with FakeApi() as server:
            server.put(described("v1", "Node", "n1"))
            async with ApiClient(Credentials.from_kubeconfig([server.kubeconfig(tmp_path / "config")]), PROGRAM) as api:
                for verb, resource in (("create", "pods"), ("create", "pods/binding"), ("delete", "pods")):
                    server.inject(Fault(verb=verb, resource=resource, times=2, **fault))
                created = await asyncio.gather(*(api.create(PODS, pod(name, "default")) for name in "abcd"))
                await asyncio.gather(*(api.bind(item.metadata, "n1", {"gpu": "0"}) for item in created))
                await asyncio.gather(*(api.delete(PODS, item.metadata, grace_s=0) for item in created[2:]))
                assert all(item.struck == 2 for item in server.server.faults)
                return await api.list(PODS)

    remaining = asyncio.run(case())
    assert {item.metadata.name: item.spec.node_name for item in remaining} == {"a": "n1", "b": "n1"}
