"""Migration of objects to another storage version, on the fake API server: what keeps it from being completed."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.storage_migration import PASS_S, StorageMigration
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import CRD
from tests.kubernetes.foreign.scenes import scene
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

NAME = "gangjobs.ganger.dev"


def put_definition(api: FakeApi, stored: list[str]) -> None:
    """Have objects stored as v1beta1, and in these versions so far."""
    definition: dict[str, Any] = copy.deepcopy(CRD)
    (version,) = definition["spec"]["versions"]
    version["storage"] = False
    definition["spec"]["versions"] = [version, {**version, "name": "v1beta1", "storage": True}]
    api.put(definition | {"status": {"storedVersions": stored}})


def stored(api: FakeApi) -> list[str]:
    definition: Any = api.get("customresourcedefinitions", NAME, "")
    return list(definition["status"]["storedVersions"])


@asynccontextmanager
async def migrating(access: Credentials, *, leads: bool = True) -> AsyncIterator[None]:
    async with ApiClient(access, PROGRAM) as client:
        task = asyncio.create_task(StorageMigration(client, lambda: leads).run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put_jobs(api: FakeApi) -> None:
    for index in range(3):
        metadata = {"name": f"j{index}", "namespace": "default"}
        body = {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": metadata, "spec": {"run": "true"}}
        api.put(body | {"status": {"phase": "Succeeded", "record": "{}"}})


@pytest.mark.parametrize("versions", [["v1alpha1"], ["v1alpha1", "v1beta1"]])
def test_the_list_is_changed_when_every_object_has_been_written(versions: list[str]) -> None:
    """Definitions that are not there, such as those of an older release, keep nothing from it."""

    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        put_definition(api, versions)
        put_jobs(api)
        before = copy.deepcopy(api.objects("gangjobs"))
        refused = api.inject(Fault(verb="patch", resource="gangjobs/status", name="j1", status=403, reason="Forbidden"))
        async with migrating(access):
            await until(lambda: refused.struck)
            await asyncio.sleep(PASS_S / 2)
            assert stored(api) == versions, "one of them may still be stored as before"
            await until(lambda: stored(api) == ["v1beta1"], PASS_S)
        assert [{**item, "metadata": item["metadata"]["name"]} for item in api.objects("gangjobs")] == [
            {**item, "metadata": item["metadata"]["name"]} for item in before
        ]

    scene(0, play)


def test_a_definition_that_changes_meanwhile_is_not_declared_done() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        put_definition(api, ["v1alpha1"])
        put_jobs(api)
        slow = api.inject(Fault(verb="patch", resource="gangjobs/status", name="j2", delay_s=5.0))
        async with migrating(access):
            await until(lambda: slow.struck)
            put_definition(api, ["v1alpha1", "v1beta1", "v1gamma1"])
            await asyncio.sleep(PASS_S / 2)
            assert len(stored(api)) == 3
            await until(lambda: stored(api) == ["v1beta1"], PASS_S)

    scene(0, play)


def test_a_controller_that_does_not_lead_writes_nothing() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        put_definition(api, ["v1alpha1"])
        put_jobs(api)
        async with migrating(access, leads=False):
            await asyncio.sleep(2 * PASS_S)
        assert stored(api) == ["v1alpha1"]

    scene(0, play)
