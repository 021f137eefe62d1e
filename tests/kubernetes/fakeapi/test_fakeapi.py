"""Features of the fake API server alone: faults on demand, kubelets that run nothing, time that need not pass.

Its responses are compared with the real ones by test_conformance_*.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.resources import PODS
from tests.kubernetes.fakeapi.api_session import MERGE, ApiSession, binding, config_map, pod, take
from tests.kubernetes.scripted import run
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

WITHIN_S, TRY_EVERY_S = 90.0, 0.5
Act = Callable[[FakeApi], Awaitable[None]]


@asynccontextmanager
async def open_session(folder: Path, **more: Any) -> AsyncIterator[tuple[FakeApi, ApiSession]]:
    async with FakeApi(**more) as api, aiohttp.ClientSession() as session:
        access = Credentials.from_kubeconfig([api.kubeconfig(folder / "config")])
        yield api, ApiSession(access, session, "default")


def test_what_is_put_is_there_as_it_stands_in_one_change(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            version = str(api.store.version)
            body = {**pod("a"), "status": {"phase": "Running", "podIP": "10.0.0.1"}}
            body_text = json.dumps(body)
            api.put(body)
            again = api.put({**body, "metadata": {"name": "a", "labels": {"x": "1"}}, "status": {"phase": "Failed"}})
            assert json.dumps(body) == body_text
            async with client.watch(client.path("pods"), resourceVersion=version) as events:
                first, second = await anext(events), await anext(events)
            assert (first["type"], first["object"]["status"]["podIP"]) == ("ADDED", "10.0.0.1")
            assert first["object"]["spec"]["restartPolicy"] == "Always"
            assert (second["type"], second["object"]) == ("MODIFIED", again)
            assert again["status"]["phase"] == "Failed"
            assert again["metadata"]["uid"] == first["object"]["metadata"]["uid"]
            assert api.get("pods", "b") is None
            with pytest.raises(KeyError, match="put its CustomResourceDefinition first"):
                api.put({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}})

    run(case())


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_refusal_on_demand_does_nothing_else(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            fault = api.inject(Fault(verb="create", resource="config*", status=429, retry_after_s=7, skip=1, times=2))
            codes = []
            for name in "abcd":
                answer = await client.ask("POST", client.path("configmaps"), config_map(name))
                codes.append(answer.code)
                if answer.code == 429:
                    assert (answer.reason, answer.headers["retry-after"]) == ("TooManyRequests", "7")
                    assert answer.body["details"] == {"retryAfterSeconds": 7}
            assert codes == [201, 429, 429, 201]
            assert fault.struck == 2
            assert [obj["metadata"]["name"] for obj in api.objects("configmaps")] == ["a", "d"]

    run(case())


@pytest.mark.parametrize(("fault", "done"), [({"lost": True}, True), ({"dropped": True}, False)])
def test_a_connection_breaks_after_or_before_the_write(fault: dict[str, bool], done: bool, tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            api.put(pod("a"))
            api.inject(Fault(resource="pods/binding", **fault))
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.ask("POST", client.path("pods", "a", "binding"), binding("a"))
            assert ("nodeName" in api.objects("pods")[0]["spec"]) == done

    run(case())


def test_responses_are_delayed_on_demand(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            loop = asyncio.get_running_loop()
            api.inject(Fault(resource="configmaps", delay_s=100.0))
            api.inject(Fault(resource="configmaps", answer_delay_s=20.0))
            started_s = loop.time()
            first = asyncio.create_task(client.ask("POST", client.path("configmaps"), config_map("a")))
            await asyncio.sleep(99)
            assert api.objects("configmaps") == []
            assert (await first).code == 201
            assert loop.time() - started_s == pytest.approx(100)
            second = asyncio.create_task(client.ask("POST", client.path("configmaps"), config_map("b")))
            await asyncio.sleep(19)
            assert len(api.objects("configmaps")) == 2
            assert not second.done()
            assert (await second).code == 201

    run(case())


def test_a_hung_connection_says_nothing(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            api.inject(Fault(verb="get", hung=True))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3600):
                    await client.get(client.path("configmaps", "a"))
            assert (await client.get(client.path("configmaps", "a"))).code == 404

    run(case())


def test_chance_is_the_seeds(tmp_path: Path) -> None:
    async def codes(seed: int) -> list[int]:
        async with open_session(tmp_path, seed=seed) as (api, client):
            api.inject(Fault(status=500, chance=0.5, times=float("inf")))
            return [(await client.get(client.path("configmaps"))).code for _ in range(40)]

    first, second, third = run(codes(1)), run(codes(1)), run(codes(2))
    assert first == second != third
    assert set(first) == {200, 500}


# -- watches, as our own client follows them ---------------------------------------------------------------------------


async def _nothing(api: FakeApi) -> None:
    """Run an hour without faults, in which nothing happens."""
    await asyncio.sleep(3600)


async def _cut(api: FakeApi) -> None:
    assert api.cut_watches("pods") == 1


async def _cut_mid_line(api: FakeApi) -> None:
    assert api.cut_watches(mid_line=True) == 1


async def _half_open(api: FakeApi) -> None:
    assert api.freeze_watches("pods") == 1


async def _double(api: FakeApi) -> None:
    api.double_events()


async def _compacted_while_away(api: FakeApi) -> None:
    fault = api.inject(Fault(verb="watch", dropped=True, times=5))
    api.cut_watches()
    await until(lambda: fault.struck >= 1)
    api.put(pod("while-away"))
    api.compact()


async def _restart(api: FakeApi) -> None:
    await api.restart(down_s=20.0)


@pytest.mark.parametrize(
    "act",
    [_nothing, _cut, _cut_mid_line, _half_open, _double, _compacted_while_away, _restart],
    ids=lambda a: a.__name__,
)
@pytest.mark.parametrize("tls", [False, True])
def test_our_store_equals_the_server_after(act: Act, tls: bool, tmp_path: Path) -> None:
    async def case() -> None:
        messages: list[tuple[str, str]] = []

        def changed(was: Any, now: Any) -> None:
            messages.append(
                (was.metadata.resource_version if was else "", now.metadata.resource_version if now else "")
            )

        async with (
            FakeApi(tls=tls) as api,
            ApiClient(Credentials.from_kubeconfig([api.kubeconfig(tmp_path / "config")]), PROGRAM) as client,
        ):
            for name in "abc":
                api.put(pod(name))
            store = Informer(client, PODS, changed)
            follows = asyncio.create_task(store.run())

            def equal() -> bool:
                cached = {key.name: actual.metadata.resource_version for key, actual in store.objects.items()}
                stored = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in api.objects("pods")}
                return cached == stored

            await until(lambda: len(store.objects) == 3 and bool(api.server.watches))
            await act(api)
            api.delete("pods", "a")
            api.put(pod("d"))
            api.put(pod("b", labels={"changed": "yes"}))
            await until(equal)
            assert len(messages) == len(set(messages))
            follows.cancel()
            await asyncio.gather(follows, return_exceptions=True)

    run(case())


def test_bookmarks_come_each_minute_and_before_the_end(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            version = str(api.store.version)
            loop = asyncio.get_running_loop()
            query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "150"}
            started_s = loop.time()
            async with client.watch(client.path("pods"), **query) as events:
                api.put(config_map("elsewhere"))
                received = [(event["type"], loop.time() - started_s) async for event in events]
            assert [type_ for type_, _ in received] == ["BOOKMARK"] * 3
            assert [at_s for _, at_s in received] == pytest.approx([60, 120, 148], abs=0.1)
            assert loop.time() - started_s == pytest.approx(150, abs=0.1)

    run(case())


def test_a_page_of_a_compacted_list_is_gone_but_can_be_read_on(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            for name in "abc":
                api.put(config_map(name))
            path = client.path("configmaps")
            token = (await client.get(path, limit="1")).body["metadata"]["continue"]
            api.put(config_map("d"))
            api.compact()
            deleted = await client.get(path, limit="1", **{"continue": token})
            assert (deleted.code, deleted.reason) == (410, "Expired")
            others = await client.get(path, **{"continue": deleted.body["metadata"]["continue"]})
            assert others.names == ["b", "c", "d"]

    run(case())


def test_old_history_is_compacted_by_itself(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path, history=10) as (api, client):
            version = str(api.store.version)
            for number in range(20):
                api.put(config_map(f"m{number}"))
            async with client.watch(client.path("configmaps"), resourceVersion=version) as events:
                error = await anext(events)
            assert error["object"]["code"] == 410
            late = str(api.store.version - 2)
            async with client.watch(client.path("configmaps"), resourceVersion=late) as events:
                assert await take(events, 2) == [("ADDED", "m18"), ("ADDED", "m19")]

    run(case())


# -- who asks ----------------------------------------------------------------------------------------------------------


def test_what_was_used_is_recorded_and_may_be_refused(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            api.put(pod("a"))
            await client.get(client.path("pods"))
            await client.ask("POST", client.path("pods", "a", "binding"), binding("a"))
            await client.ask("PATCH", client.path("pods", "a", "status"), {"status": {"phase": "Running"}}, MERGE)
            assert api.used_permissions() == {
                ("list", "", "pods"),
                ("create", "", "pods/binding"),
                ("patch", "", "pods/status"),
            }
            api.add_user("reader")
            api.allow(lambda call: call.verb in ("get", "list") or call.user == "admin")
            reader = ApiSession(
                Credentials.from_kubeconfig([api.kubeconfig(tmp_path / "reader", "reader")]), client._session, "default"
            )
            assert (await reader.get(client.path("pods"))).code == 200
            assert (await reader.ask("DELETE", client.path("pods", "a"))).code == 403
            assert api.used_permissions("reader") == {("list", "", "pods"), ("delete", "", "pods")}
            api.server.tokens.clear()
            refused = await reader.get(client.path("pods"))
            assert (refused.code, refused.reason, refused.body["message"]) == (401, "Unauthorized", "Unauthorized")

    run(case())


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34])
def test_it_leaves_no_connection_behind_that_is_only_being_made(turns: int, tls: bool) -> None:
    async def case() -> None:
        async with asyncio.timeout(WITHIN_S), FakeApi(tls=tls) as api:
            trusting = ssl._create_unverified_context() if tls else None
            port = int(api.url.rpartition(":")[2])
            connecting = asyncio.create_task(asyncio.open_connection("127.0.0.1", port, ssl=trusting))
            for _ in range(turns):
                await asyncio.sleep(0)
            await api.stop()
            with suppress(OSError):
                reader, writer = await connecting
                with closing(writer):
                    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
                    assert await reader.read() == b""
            assert not api.server.connections

    asyncio.run(case())


# -- kubelets ----------------------------------------------------------------------------------------------------------


def test_kubelets_run_what_is_bound_and_end_what_is_deleted(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path, kubelet=True) as (api, client):
            api.kubelet.start_s, api.kubelet.stop_s = 2.0, 5.0
            api.kubelet.down.add("broken")
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "good"}}
            api.put({**node, "status": {"capacity": {"nvidia.com/gpu": "8"}}})
            for name, place in {"a": "good", "b": "good", "c": "broken"}.items():
                api.put(pod(name))
                await client.ask("POST", client.path("pods", name, "binding"), binding(name, place))
            await asyncio.sleep(3)
            phases = {obj["metadata"]["name"]: obj["status"]["phase"] for obj in api.objects("pods")}
            assert phases == {"a": "Running", "b": "Running", "c": "Pending"}
            addresses = {obj["status"].get("podIP") for obj in api.objects("pods")}
            assert len(addresses) == 3
            ready = api.objects("nodes")[0]["status"]
            assert ready["allocatable"] == {"nvidia.com/gpu": "8"}
            assert any((row["type"], row["status"]) == ("Ready", "True") for row in ready["conditions"])
            api.kubelet.finish("default", "b", exit_code=3)
            (ended,) = api.get("pods", "b")["status"]["containerStatuses"]
            assert ended["state"]["terminated"]["exitCode"] == 3
            for name in "ac":
                await client.ask("DELETE", client.path("pods", name))
            await asyncio.sleep(4)
            assert {obj["metadata"]["name"] for obj in api.objects("pods")} == {"a", "b", "c"}
            await asyncio.sleep(2)
            assert {obj["metadata"]["name"] for obj in api.objects("pods")} == {"b", "c"}

    run(case())


def test_a_namespace_goes_with_what_it_holds(tmp_path: Path) -> None:
    async def case() -> None:
        async with open_session(tmp_path) as (api, client):
            api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
            api.put(pod("a", namespace="team"))
            await client.ask("DELETE", "/api/v1/namespaces/team")
            await until(lambda: api.objects("pods") == [])

    run(case())
