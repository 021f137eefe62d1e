"""Removal of unused code, and only of unused code: on the fake API server and on virtual time."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint, PodBootstrap
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.upload_code import PackedCode, upload
from ganger.controller.jobs.code_archives import (
    CHECK_INTERVAL_S,
    INDEX_NAME,
    KEEP_UNUSED_S,
    REMOVE_AT_ONCE,
    CodeArchives,
)
from ganger.engine.launch import launch_plans
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Key
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD
from tests.kubernetes.manifests.test_manifests import granted
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

OWN = "ganger-system"
BYTES = b"an archive"
DIGEST = hashlib.sha256(BYTES).hexdigest()
CODE = PackedCode(DIGEST, BYTES)
NAME = object_names.code_config_map(DIGEST)
HOUR_S = KEEP_UNUSED_S + 2 * CHECK_INTERVAL_S
OVER = {"phase": "Succeeded", "record": "{}"}
LIVES = {"phase": "Running", "record": '{"gangs": []}'}


def scene(folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[None]]) -> None:
    async def played() -> None:
        async with FakeApi() as api:
            api.put(CRD)
            api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}})
            await play(api, credentials_of(api))

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(played())


@asynccontextmanager
async def cleaning(
    access: Credentials, folder: Path, live: Mapping[Key, str] | None = None, alone: tuple[str, ...] = ()
) -> AsyncIterator[tuple[CodeArchives, KubernetesBackend]]:
    """Run what a controller needs to remove code: its view of GangJobs, but no loop that accepts any."""
    launcher = folder / "launcher.pyz"
    launcher.write_bytes(b"never run here")
    async with ApiClient(access, PROGRAM) as api:
        bootstrap = PodBootstrap(api, launcher, LauncherEndpoint(address="none:1", certificate="", key=b"k"), "none")
        backend = KubernetesBackend(api, bootstrap, launch_plans, lambda: True)
        archives = CodeArchives(api, OWN, backend, lambda: True)
        tasks = [asyncio.create_task(backend.run())]
        try:
            await backend.wait_synced()
            archives.restore(live or {}, alone)
            backend.watch_jobs(archives.job_changed)
            tasks.append(asyncio.create_task(archives.run()))
            yield archives, backend
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def person(access: Credentials) -> AsyncIterator[Caller]:
    async with ApiClient(access, PROGRAM) as api:
        yield Caller(api, "here", "default", has_namespace=False, controller=OWN)


def put_job(api: FakeApi, name: str = "job", status: Any = LIVES, digest: str = DIGEST) -> None:
    about = {"name": name, "namespace": "default", "annotations": {object_names.CODE: digest} if digest else {}}
    job = {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": about}
    api.put({**job, "spec": {"run": "true"}, "status": status})


def put_code(api: FakeApi, name: str = NAME) -> None:
    created = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
    api.put(created | {"immutable": True, "binaryData": {object_names.ARCHIVE: CODE.content}})


def content(api: FakeApi, name: str = NAME) -> Any:
    actual = api.get("configmaps", name)
    return actual and base64.b64decode(actual["binaryData"][object_names.ARCHIVE])


def noted(api: FakeApi) -> list[str]:
    actual: Any = api.get("configmaps", INDEX_NAME, OWN)
    return actual["data"]["known"].split() if actual else []


def test_code_stays_while_a_job_lives_and_an_hour_longer(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_code(api)
        put_job(api)
        async with cleaning(access, tmp_path):
            await asyncio.sleep(3 * HOUR_S)
            assert content(api) == BYTES
            put_job(api, status=OVER)
            await asyncio.sleep(KEEP_UNUSED_S - CHECK_INTERVAL_S)
            assert content(api) == BYTES, "it may be submitted again"
            await asyncio.sleep(3 * CHECK_INTERVAL_S)
            assert content(api) is None
            assert noted(api) == []

    scene(tmp_path, play)


@pytest.mark.parametrize("status", [{}, {"phase": "Rejected"}, {"phase": "Succeeded", "record": '{"gangs": []}'}])
def test_jobs_that_are_not_yet_accepted_and_jobs_whose_status_was_edited_to_ended(status: Any, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_code(api)
        put_job(api, status=status)
        async with cleaning(access, tmp_path):
            await asyncio.sleep(2 * HOUR_S)
            assert content(api) == BYTES
            api.delete("gangjobs", "job")
            await asyncio.sleep(HOUR_S)
            assert content(api) is None

    scene(tmp_path, play)


def test_code_that_another_job_shares_stays(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_code(api)
        put_job(api, "one", OVER)
        put_job(api, "two")
        async with cleaning(access, tmp_path):
            await asyncio.sleep(2 * HOUR_S)
            assert content(api) == BYTES

    scene(tmp_path, play)


def test_the_next_controller_finds_unused_code_though_its_job_is_gone_and_lists_nothing(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_code(api)
        put_job(api)
        async with cleaning(access, tmp_path):
            await asyncio.sleep(60)
        assert noted(api) == [f"default/{NAME}"]
        api.delete("gangjobs", "job")
        async with cleaning(access, tmp_path):
            await asyncio.sleep(HOUR_S)
        assert content(api) is None
        used = {item for item in api.used_permissions() if item[2] == "configmaps"}
        assert used == {("patch", "", "configmaps"), ("delete", "", "configmaps")} <= granted()

    scene(tmp_path, play)


def test_a_job_that_the_controller_saw_too_late_gets_its_code_back(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_code(api)
        put_job(api)
        async with cleaning(access, tmp_path), person(access) as ada:
            await asyncio.sleep(60)
            late = api.inject(Fault(verb="delete", resource="configmaps", delay_s=1))
            put_job(api, status=OVER)
            await until(lambda: late.struck)
            api.freeze_watches("gangjobs")
            put_job(api, "next")
            await upload(ada, CODE)
            before: Any = api.get("configmaps", NAME)
            await until(lambda: content(api) is None)
            await until(lambda: content(api) == BYTES)
            after: Any = api.get("configmaps", NAME)
            assert (after["immutable"], after["metadata"]["uid"] != before["metadata"]["uid"]) == (True, True)
            await asyncio.sleep(2 * HOUR_S)
            assert content(api) == BYTES
            put_job(api, "next", OVER)
            await asyncio.sleep(HOUR_S)
            assert content(api) is None, "what was put back is known"

    scene(tmp_path, play)


def test_code_that_goes_before_its_job_is_made_is_brought_again_when_it_is(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with person(access) as ada:
            await upload(ada, CODE)
            await upload(ada, CODE)
            assert [call.verb for call in api.server.calls if call.resource == "configmaps"] == ["get", "create"]
            api.delete("configmaps", NAME)
            put_job(api)
            await upload(ada, CODE)
            assert content(api) == BYTES

    scene(tmp_path, play)


def test_what_was_made_anew_under_the_name_is_let_be(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_code(api)
        put_job(api, status={})
        put_job(api, "other", status={}, digest="b" * 64)
        put_code(api, object_names.code_config_map("b" * 64))
        async with cleaning(access, tmp_path):
            await asyncio.sleep(60)

            def change() -> None:
                actual: Any = api.get("configmaps", NAME)
                api.put(actual | {"metadata": actual["metadata"] | {"labels": {"kept": "by-somebody"}}})

            late = api.inject(Fault(verb="delete", resource="configmaps", name=NAME, delay_s=10))
            for name in ("job", "other"):
                api.delete("gangjobs", name)
            await until(lambda: late.struck)
            change()
            await asyncio.sleep(60)
            assert content(api) == BYTES, "it is not what was to be removed"
            assert content(api, object_names.code_config_map("b" * 64)) is None
            await asyncio.sleep(HOUR_S)
            assert content(api) is None

    scene(tmp_path, play)


def test_code_that_was_fetched_is_put_once_and_again_when_it_was_removed(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with cleaning(access, tmp_path) as (archives, backend):
            for name in ("one", "two"):
                put_job(api, name, digest="")
            await until(lambda: len(backend.jobs) == 2)
            for job in backend.jobs:
                await archives.put(job.metadata.key, DIGEST, BYTES)
            assert content(api) == BYTES
            assert [count for call, count in api.server.calls.items() if call.name == NAME] == [1]
            await asyncio.sleep(2 * HOUR_S)
            assert content(api) == BYTES
            api.delete("gangjobs", "one")
            put_job(api, "two", OVER, digest="")
            await asyncio.sleep(HOUR_S)
            assert content(api) is None
            put_job(api, "three", digest="")
            await archives.put(Key("default", "three"), DIGEST, BYTES)
            assert content(api) == BYTES
        async with cleaning(access, tmp_path, {Key("default", "three"): DIGEST}):
            await asyncio.sleep(2 * HOUR_S)
            assert content(api) == BYTES
        async with cleaning(access, tmp_path, alone=("default",)):
            await asyncio.sleep(2 * HOUR_S)
            assert content(api) == BYTES, "nobody knows what the job uses whose record cannot be read"

    scene(tmp_path, play)


def test_a_right_that_lacks_or_a_server_that_is_away_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_code(api)
        put_job(api, status={})
        rule = api.inject(Fault(verb="delete", resource="configmaps", status=403, reason="Forbidden", times=100))
        async with cleaning(access, tmp_path):
            await asyncio.sleep(60)
            api.delete("gangjobs", "job")
            await asyncio.sleep(HOUR_S)
            assert content(api) == BYTES
            assert "grants what is needed" in caplog.text
            rule.times = 0
            await api.restart(120)
            await asyncio.sleep(HOUR_S)
            assert content(api) is None

    scene(tmp_path, play)


def test_more_than_are_removed_at_once(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        digests = [f"{index:064x}"[::-1] for index in range(REMOVE_AT_ONCE + 3)]
        for index, digest in enumerate(digests):
            put_code(api, object_names.code_config_map(digest))
            put_job(api, f"job-{index}", {}, digest)
        async with cleaning(access, tmp_path):
            await asyncio.sleep(60)
            assert len(noted(api)) == len(digests)
            for index in range(len(digests)):
                api.delete("gangjobs", f"job-{index}")
            await asyncio.sleep(HOUR_S)
            assert api.objects("configmaps", "default") == []

    scene(tmp_path, play)
