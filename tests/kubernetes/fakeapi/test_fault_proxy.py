"""The fault proxy before an API server: everything else passes, and each fault leaves what it should."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Added, ObjectMeta
from ganger.kubeapi.resources import CONFIG_MAPS, EVERYTHING, PODS
from tests.kubernetes.scripted import run
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault, FaultProxy

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}, "data": {"of": "it"}}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}


def through(folder: Path, ask: Callable[[ApiClient, FakeApi, FaultProxy], Awaitable[Any]]) -> Any:
    """Return the result of a request through the proxy."""

    async def run_both() -> Any:
        async with FakeApi() as behind, FaultProxy(behind.url, None) as proxy:
            config = behind.kubeconfig(folder / "config")
            config.write_text(config.read_text().replace(behind.url, proxy.url))
            async with ApiClient(Credentials.from_kubeconfig([config]), PROGRAM) as api:
                return await ask(api, behind, proxy)

    return run(run_both())


def test_what_no_fault_strikes_passes(tmp_path: Path) -> None:
    async def ask(api: ApiClient, behind: FakeApi, proxy: FaultProxy) -> None:
        missed = proxy.inject(Fault(resource="pods", status=500))
        await api.create(CONFIG_MAPS, MAP)
        assert (await api.get(CONFIG_MAPS, "a", "default")).metadata.name == "a"
        assert [item.metadata.name for item in await api.list(CONFIG_MAPS)] == ["a"]
        with pytest.raises(ApiError) as error:
            await api.get(CONFIG_MAPS, "b", "default")
        assert error.value.missing
        assert not missed.struck

    through(tmp_path, ask)


def test_a_watch_passes_piece_by_piece_and_ends_with_its_client(tmp_path: Path) -> None:
    async def ask(api: ApiClient, behind: FakeApi, proxy: FaultProxy) -> None:
        news = api.watch(PODS, EVERYTHING, str(behind.store.version), timeout_s=60, read_timeout_s=60)
        await anext(news)
        behind.put(POD)
        assert isinstance(await anext(news), Added)
        assert behind.server.watches
        await api.close()
        await until(lambda: not behind.server.watches)

    through(tmp_path, ask)


def test_a_refusal_is_not_passed_on(tmp_path: Path) -> None:
    async def ask(api: ApiClient, behind: FakeApi, proxy: FaultProxy) -> None:
        proxy.inject(Fault(verb="create", resource="configmaps", status=403, message="no more of them"))
        with pytest.raises(ApiError, match="no more of them"):
            await api.create(CONFIG_MAPS, MAP)
        assert behind.get("configmaps", "a") is None

    through(tmp_path, ask)


@pytest.mark.parametrize("fault", [Fault(verb="create", lost=True), Fault(verb="create", dropped=True)])
def test_a_broken_connection_is_reported_and_the_call_was_done_or_not(fault: Fault, tmp_path: Path) -> None:
    async def ask(api: ApiClient, behind: FakeApi, proxy: FaultProxy) -> None:
        proxy.inject(fault)
        await api.create(CONFIG_MAPS, MAP)  # reads the outcome, and retries if there is none
        calls = [call.verb for call in behind.server.calls.elements()]
        assert calls == (["create", "get"] if fault.lost else ["get", "create"])
        assert fault.struck == 1

    through(tmp_path, ask)


def test_what_is_held_back_is_done_even_if_who_asked_is_gone(tmp_path: Path) -> None:
    async def ask(api: ApiClient, behind: FakeApi, proxy: FaultProxy) -> None:
        behind.put(NODE)
        uid = behind.put(POD)["metadata"]["uid"]
        slow = proxy.inject(Fault(resource="pods/binding", name="p", delay_s=2.0))
        meta = ObjectMeta(name="p", namespace="default", uid=uid)
        asking = asyncio.create_task(api.bind(meta, "n", {}))
        await until(lambda: slow.struck)
        asking.cancel()
        await api.close()
        await asyncio.sleep(1.0)
        assert "nodeName" not in behind.objects("pods")[0]["spec"]
        await asyncio.sleep(1.5)
        assert behind.objects("pods")[0]["spec"]["nodeName"] == "n"

    through(tmp_path, ask)
