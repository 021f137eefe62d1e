"""A controller that ends between two writes: its successor's reading of objects that contradict each other."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.binding import GANG, JOB, OFFER, controller, job_of
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import StopRequested, Submitted
from tests.kubernetes.test_left_behind import NEXT, keep, submit_next
from tests.kubernetes.test_trouble import MEMBERS, bound, scene, status, submit, until
from tools.fakeapi import FakeApi, Fault

LONG_S = 10_000.0
SMALLER = {"allocatable": OFFER["allocatable"] | {"nvidia.com/gpu": "1"}}


def test_a_node_that_two_gangs_say_they_have_is_that_of_the_one_that_began_last(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
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
    async def play(api: FakeApi, access: Credentials) -> None:
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


@pytest.mark.parametrize("becomes", ["gone", "smaller"])
def test_a_node_that_went_while_no_controller_was_there(becomes: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as its:
            for name in ("big", "next"):
                api.put(JOB | {"metadata": {"name": name, "namespace": "default"}})
                job = job_of(1)
                its.loop.post(Submitted(job=replace(job, id=f"{name}.default", spec=replace(job.spec, name=name))))
            await until(lambda: len(bound(api)) == 2 and its.state_of(NEXT) == "starting")
        lost, kept = sorted(api.objects("pods"), key=lambda pod: str(pod["spec"]["nodeName"]))
        api.delete("pods", lost["metadata"]["name"])
        gang = lost["metadata"]["annotations"]["ganger.dev/gang"]
        assert lost["spec"]["nodeName"] == "n0"
        if becomes == "gone":
            api.delete("nodes", "n0", "")
        else:
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "status": SMALLER})
        async with controller(access, tmp_path) as its:
            await until(lambda: its.state_of(gang) != "starting" or its.loop.copy().gangs[gang].generation == 2)
            assert kept["metadata"]["uid"] in uids(api)
            if becomes == "gone":
                assert (its.state_of(gang), bound(api)) == ("pending", [kept["metadata"]["name"]])
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}, "status": OFFER})
                await until(lambda: its.state_of(gang) == "starting" and len(bound(api)) == 2)
            its.loop.copy().validate()

    scene(tmp_path, play)


def uids(api: FakeApi) -> set[Any]:
    return {pod["metadata"]["uid"] for pod in api.objects("pods") if pod["metadata"]["name"] in bound(api)}
