"""Ended jobs in the listings of a later controller: those whose objects are still in the cluster."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from ganger.model.job import GangState
from tests.kubernetes.binding import GANG, JOB
from tests.kubernetes.jobs.test_gang_jobs import SPEC, cluster, put, reconciling_controller, status
from tests.waiting import until


def test_jobs_are_listed_by_the_next_controller(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api, user="ada")
            async with reconciling_controller(access, tmp_path) as system:
                await until(lambda: system.state_of(GANG) == "starting")
                put(api, user="ada", stop=True)
                await until(lambda: status(api).get("phase") == "Stopped")
                for name in ("holds", "waits"):
                    api.put(JOB | {"metadata": {"name": name, "namespace": "default"}, "spec": SPEC})
                await until(lambda: system.state_of("waits.default") and system.loop.copy().pending.reasons)
                before, listed = system.log.job(GANG), system.log.jobs()
                await until(lambda: (api.get("gangjobs", "waits") or {}).get("status", {}).get("record"))
            assert len(listed) == 3
            async with reconciling_controller(access, tmp_path) as system:
                after = system.log.job(GANG)
                assert before is not None
                assert after is not None
                assert after[:3] == before[:3]
                gpu = replace(before[3].spec.resources.gpu, resources=())  # as the object has it
                assert after[3].spec == replace(before[3].spec, resources=replace(before[3].spec.resources, gpu=gpu))
                assert [(number, row["id"]) for number, _, row in system.log.jobs()] == [
                    (number, row["id"]) for number, _, row in listed
                ]
                api.delete("gangjobs", "big")
                await until(lambda: system.log.job(GANG) is None)

    asyncio.run(play())


def test_a_record_of_an_end_that_was_spoilt_is_left_out(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api)
            async with reconciling_controller(access, tmp_path) as system:
                await until(lambda: system.state_of(GANG) == "starting")
                put(api, stop=True)
                await until(lambda: status(api).get("phase") == "Stopped")
            actual: Any = api.get("gangjobs", "big")
            record = actual["status"]["record"]
            for spoilt in ("{", "[]", record.replace(GANG, "other.default"), record.replace("stopped", "running")):
                api.put(actual | {"status": actual["status"] | {"record": spoilt}})
                async with reconciling_controller(access, tmp_path) as system:
                    assert system.log.jobs() == []
                    assert system.state_of(GANG) == ""
            api.put(actual)
            async with reconciling_controller(access, tmp_path) as system:
                [(_, state, _)] = system.log.jobs()
                assert state == GangState.STOPPED

    asyncio.run(play())
