"""A controller that ends between two writes: its successor's reading of objects that contradict each other."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from ganger.model.event import StopRequested, Submitted
from tests.kubernetes.binding import GANG, JOB, OFFER, controller, job_of
from tests.kubernetes.controller.test_controller_faults import MEMBERS, bound, scene, status, submit
from tests.kubernetes.pods.test_leftover_pods import NEXT, keep, submit_next
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

LONG_S = 10_000.0
SMALLER = {"allocatable": OFFER["allocatable"] | {"nvidia.com/gpu": "1"}}


def test_a_node_that_two_gangs_say_they_have_is_that_of_the_one_that_began_last(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            before = status(api)["record"]
            api.inject(Fault(verb="patch", resource="gangjobs/status", name="big", times=LONG_S, delay_s=LONG_S))
            system.loop.post(StopRequested(gang=GANG))
            await until(lambda: not system.state_of(GANG))
            submit_next(api, system)
            await until(lambda: system.state_of(NEXT) == "starting" and len(bound(api)) == MEMBERS)
        api.server.faults.clear()
        assert status(api)["record"] == before, "it still says that it runs"
        existing = uids(api)
        async with controller(access, tmp_path) as system:
            await until(lambda: status(api)["record"] != before)
            await asyncio.sleep(60)
            assert (system.state_of(NEXT), uids(api)) == ("starting", existing), "it lost nothing"
            assert system.state_of(GANG) == "pending", "its pods are gone, and nobody wrote why"
            system.loop.copy().validate()

    scene(tmp_path, play)


def test_pods_of_a_job_that_is_gone_keep_their_nodes_until_they_are(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.kubelet.down |= {f"n{index}" for index in range(MEMBERS)}
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
        keep(api)
        api.delete("gangjobs", "big")
        for name in bound(api):
            api.delete("pods", name)
        async with controller(access, tmp_path) as system:
            submit_next(api, system)
            await asyncio.sleep(60)
            assert len(bound(api)) == MEMBERS, "none of the next, though the core was told of no gang there"
            for pod in api.objects("pods"):
                api.put(pod | {"status": {"phase": "Succeeded"}})
            await until(lambda: system.state_of(NEXT) == "starting" and len(bound(api)) == MEMBERS)
            system.loop.copy().validate()

    scene(tmp_path, play)


@pytest.mark.parametrize("becomes", ["gone", "smaller"])
def test_a_node_that_went_while_no_controller_was_there(becomes: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            for name in ("big", "next"):
                api.put(JOB | {"metadata": {"name": name, "namespace": "default"}})
                job = job_of(1)
                system.loop.post(Submitted(job=replace(job, id=f"{name}.default", spec=replace(job.spec, name=name))))
            await until(lambda: len(bound(api)) == 2 and system.state_of(NEXT) == "starting")
        lost, surviving = sorted(api.objects("pods"), key=lambda pod: str(pod["spec"]["nodeName"]))
        api.delete("pods", lost["metadata"]["name"])
        gang = lost["metadata"]["annotations"]["ganger.dev/gang"]
        assert lost["spec"]["nodeName"] == "n0"
        if becomes == "gone":
            api.delete("nodes", "n0", "")
        else:
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "status": SMALLER})
        async with controller(access, tmp_path) as system:
            await until(
                lambda: system.state_of(gang) != "starting" or system.loop.copy().gangs[gang].attempt.generation == 2
            )
            assert surviving["metadata"]["uid"] in uids(api)
            if becomes == "gone":
                assert (system.state_of(gang), bound(api)) == ("pending", [surviving["metadata"]["name"]])
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}, "status": OFFER})
                await until(lambda: system.state_of(gang) == "starting" and len(bound(api)) == 2)
            system.loop.copy().validate()

    scene(tmp_path, play)


def uids(api: FakeApi) -> set[Any]:
    return {pod["metadata"]["uid"] for pod in api.objects("pods") if pod["metadata"]["name"] in bound(api)}
