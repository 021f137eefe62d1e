"""A controller that ends between two writes: what its successor makes of objects that contradict each other."""

import asyncio
from pathlib import Path
from typing import Any

from bench.binding import GANG, controller
from ganger.backends.kubernetes.access import Access
from ganger.model.event import StopRequested
from tests.kubernetes.test_left_behind import NEXT, keep, submit_next
from tests.kubernetes.test_trouble import MEMBERS, bound, scene, status, submit, until
from tools.fakeapi import FakeApi, Fault

LONG_S = 10_000.0


def test_a_node_that_two_gangs_say_they_have_is_that_of_the_one_that_began_last(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Access) -> None:
        async with controller(access, tmp_path) as its:
            submit(its)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            before = status(api)["record"]
            api.inject(Fault(verb="patch", resource="gangjobs/status", name="big", times=LONG_S, delay_s=LONG_S))
            its.loop.post(StopRequested(gang=GANG))
            await until(lambda: not its.state_of(GANG))
            submit_next(api, its)
            await until(lambda: its.state_of(NEXT) == "starting" and len(bound(api)) == MEMBERS)
        api.server.faults.clear()
        assert status(api)["record"] == before, "it still says that it runs"
        there = uids(api)
        async with controller(access, tmp_path) as its:
            await until(lambda: status(api)["record"] != before)
            await asyncio.sleep(60)
            assert (its.state_of(NEXT), uids(api)) == ("starting", there), "it lost nothing"
            assert its.state_of(GANG) == "pending", "its pods are gone, and nobody wrote why"
            its.loop.copy().validate()

    scene(tmp_path, play)


def test_pods_of_a_job_that_is_gone_keep_their_nodes_until_they_are(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Access) -> None:
        api.kubelet.down |= {f"n{at}" for at in range(MEMBERS)}
        async with controller(access, tmp_path) as its:
            submit(its)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
        keep(api)
        api.delete("gangjobs", "big")
        for name in bound(api):
            api.delete("pods", name)
        async with controller(access, tmp_path) as its:
            submit_next(api, its)
            await asyncio.sleep(60)
            assert len(bound(api)) == MEMBERS, "none of the next, though the core was told of no gang there"
            for pod in api.objects("pods"):
                api.put(pod | {"status": {"phase": "Succeeded"}})
            await until(lambda: its.state_of(NEXT) == "starting" and len(bound(api)) == MEMBERS)
            its.loop.copy().validate()

    scene(tmp_path, play)


def uids(api: FakeApi) -> set[Any]:
    return {pod["metadata"]["uid"] for pod in api.objects("pods") if pod["metadata"]["name"] in bound(api)}
