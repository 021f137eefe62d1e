"""A controller goes on without its store, says so, and writes what is missing when the store can be used again."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.durable import durable_state
from ganger.controller.durable.durable_state import DurableState
from ganger.controller.durable.event_archive import Begin, newest
from ganger.controller.durable.store import DirectoryStore, StoredFile, StoreError
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import LEASES
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import controller
from tests.kubernetes.controller.test_controller_faults import bound, scene, submit
from tests.waiting import until
from tools.fakeapi import FakeApi

LEASE = ObjectRef(LEASES, "default", "ganger-controller")


class FailingStore(DirectoryStore):
    """A directory whose disk is full while `is_full`."""

    is_full = True

    def put(self, name: str, content: bytes) -> None:
        if self.is_full:
            raise StoreError(f"{name}: No space left on device", "df -h /store")
        super().put(name, content)


class SilentStore(DirectoryStore):
    """A store that does not respond in time."""

    def list(self, folder: str) -> list[StoredFile]:
        time.sleep(0.3)
        return super().list(folder)


def reasons(api: FakeApi) -> dict[str, str]:
    return {event["reason"]: event["message"] for event in api.objects("events")}


def test_a_full_store_is_reported_and_caught_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(durable_state, "SHIP_INTERVAL_S", 0.05)
    store = FailingStore(tmp_path / "store")

    async def play(api: FakeApi, access: Any) -> None:
        async with ApiClient(access, PROGRAM) as client, controller(access, tmp_path) as system:
            durable = DurableState(store, client, LEASE, lambda: True)
            assert await durable.begin() is None
            running = asyncio.create_task(durable.run(tmp_path / "ganger.db", Begin(0, 0)))
            submit(system)
            await until(lambda: len(bound(api)) == 2 and "StoreUnavailable" in reasons(api))
            assert "No space left on device; jobs go on" in reasons(api)["StoreUnavailable"]
            assert caplog.text.count("the store cannot be used") == 1, "logged once"
            assert [metric.values for metric in durable.metrics()] == [{("directory",): 0.0}]
            monkeypatch.setattr(durable_state, "REPEAT_S", 0.0)
            durable._repeat_at_s = 0.0
            api.delete("events", "ganger-controller.storeunavailable")
            await until(lambda: "StoreUnavailable" in reasons(api))
            store.is_full = False
            await until(lambda: reasons(api).get("StoreAvailable") == "the store can be used again")
            assert [metric.values for metric in durable.metrics()] == [{("directory",): 1.0}]
            assert newest(store) == Begin(1, 0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    scene(tmp_path, play)


def test_a_new_leader_says_that_it_can_use_a_store_that_failed_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, access: Any) -> None:
        async with ApiClient(access, PROGRAM) as client, controller(access, tmp_path):
            before = DurableState(FailingStore(tmp_path / "store"), client, LEASE, lambda: True)
            before.failed(StoreError("the disk is full", "df -h"))
            await until(lambda: "StoreUnavailable" in reasons(api))
            after = DurableState(DirectoryStore(tmp_path / "store"), client, LEASE, lambda: True)
            running = asyncio.create_task(after.run(tmp_path / "ganger.db", Begin(0, 0)))
            await until(lambda: reasons(api).get("StoreAvailable") == "the store can be used")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert "can be used again" not in caplog.text

    scene(tmp_path, play)


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "not a directory"])
def test_a_leader_does_not_wait_for_a_store(is_silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events are then numbered by the clock, beyond those of all others: nothing of the history is overwritten."""
    monkeypatch.setattr(durable_state, "BEGIN_TIMEOUT_S", 0.1)
    store = SilentStore(tmp_path / "store") if is_silent else DirectoryStore(tmp_path / "store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "events").touch()

    async def test() -> None:
        async with FakeApi() as api:
            access = credentials_of(api)
            async with ApiClient(access, PROGRAM) as client:
                begin = await DurableState(store, client, LEASE, lambda: True).begin()
                await until(lambda: "StoreUnavailable" in reasons(api))
        assert begin is not None
        assert begin.seq > 10**12

    asyncio.run(test())
