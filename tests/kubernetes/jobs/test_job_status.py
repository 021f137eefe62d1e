"""Status of an array's object, and of a job with a reserved start."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.kubernetes.many_jobs import MAX_WRITES, writes_while_waiting
from ganger.engine.eventlog import job_checkpoint
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Key
from tests.kubernetes.binding import GANG, JOB
from tests.kubernetes.jobs.test_gang_jobs import SPEC, cluster, put, reconciling_controller, status
from tests.kubernetes.policy.test_policy_objects import scene
from tests.kubernetes.policy.test_queue_status import leading, use
from tests.waiting import until
from tools.fakeapi import FakeApi


def test_an_array_says_how_it_is_as_a_whole(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            put(api, array="0-1")
            await until(lambda: "1 starting" in status(api).get("message", ""))
            array = job_checkpoint.decode(status(api)["record"], GANG).array
            assert array is not None
            assert array.counts["pending"] == array.counts["starting"] == 1

    asyncio.run(play())


@pytest.mark.parametrize("lives", [1, 2])
def test_a_reserved_start_is_on_the_object_and_the_next_controller_keeps_it(lives: int, tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api, limits={"time": "1h"})
            async with reconciling_controller(access, tmp_path):
                await until(lambda: status(api).get("phase") == "Starting")
                named = {"metadata": {"name": "late", "namespace": "default"}}
                api.put(JOB | named | {"spec": SPEC | {"limits": {"time": "1h"}}})
                await until(lambda: _late(api).get("reservedStart"))
            reserved_start = _late(api)["reservedStart"]
            for _ in range(lives):
                async with reconciling_controller(access, tmp_path) as system:
                    assert set(system.loop.copy().reservations) == {"late.default"}
            assert _late(api)["reservedStart"] == reserved_start

    asyncio.run(play())


def test_a_job_says_where_the_time_of_its_gpus_went(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with leading(access, tmp_path) as system:
            await use(api, system, "held", "ada", 7200.0)
            await until(lambda: (api.get("gangjobs", "held") or {})["status"].get("completionTime"))
            actual: Any = api.get("gangjobs", "held")
            ledger = actual["status"]["ledger"]
            parts = ledger["gpuSeconds"]
            held_s = parts.pop("held")
            assert 8 * 7200 <= held_s <= 8 * 7260
            assert sum(parts.values()) == held_s

    scene(tmp_path, play)


def test_a_job_that_waits_is_written_once_while_others_come_and_go() -> None:
    assert max(writes_while_waiting(nodes=1, waiting=16)) <= MAX_WRITES


def test_a_reason_that_changes_back_before_it_is_written_costs_no_write(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(JOB)
        async with leading(access, tmp_path) as system:
            key = Key("default", "big")

            def update(reason: str, after_s: float = 0.0) -> None:
                system.backend.status_writer.update(key, {"reason": reason, "message": reason}, after_s=after_s)

            update("no_capacity")
            await until(lambda: status(api).get("reason") == "no_capacity")
            version = api.store.version
            for reason in ("over_quota", "no_capacity"):
                update(reason, 60.0)
            await asyncio.sleep(120.0)
            assert api.store.version == version
            update("over_quota", 60.0)
            await until(lambda: status(api)["reason"] == "over_quota")

    scene(tmp_path, play)


def test_the_object_says_so_when_it_is_something_else_that_is_missing(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with reconciling_controller(access, tmp_path):
            one = SPEC | {"nodes": 1}
            put(api, **one)
            for name, resources in (("hold", {"cpu": 1, "memory": "300Gi"}), ("late", {"gpu": 8, "memory": "300Gi"})):
                about = {"metadata": {"name": name, "namespace": "default"}, "spec": one | {"resources": resources}}
                api.put(JOB | about)
                await asyncio.sleep(20)
            assert _late(api)["message"] == "waiting for 1 node with 8 free nvidia.com/gpu"
            api.delete("gangjobs", "big")
            await asyncio.sleep(660)
            assert _late(api)["message"] == "waiting for 1 node with 300Gi free memory"

    scene(tmp_path, play)


def _late(api: FakeApi) -> Any:
    return (api.get("gangjobs", "late") or {}).get("status", {})
