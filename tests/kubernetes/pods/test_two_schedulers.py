"""Another scheduler binds pods to a node between the decision and the binding: its kubelet rejects what is late."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import GANG, OFFER, controller
from tests.kubernetes.controller.test_controller_faults import scene, status, submit
from tests.kubernetes.foreign.scenes import bound, pending_message
from tests.kubernetes.foreign.scenes import scene as foreign_scene
from tests.kubernetes.foreign.test_owned_gangs import bound_of, job_set, operator, serve
from tests.kubernetes.pods.test_rejected_pods import turn_away
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

GPU, GPUS, MEMBERS = "nvidia.com/gpu", 8, 2
HALF_BOUND_S = 10.0
"""The longest time for which a part of a gang may run."""


def other_pod(name: str, node: str, gpus: int) -> Any:
    """Return a pod that another scheduler has bound."""
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: str(gpus)}}}
    spec = {"nodeName": node, "schedulerName": "default-scheduler", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}}


def running(api: FakeApi) -> list[Any]:
    return [pod for pod in api.objects("pods") if pod["status"].get("phase") == "Running"]


def gang_pods(api: FakeApi) -> list[Any]:
    return [pod for pod in running(api) if pod["spec"]["schedulerName"] == "ganger"]


async def no_half_gang(api: FakeApi, size: int = MEMBERS) -> None:
    """Fail when more GPUs of a node are used than it has, or a part of the gang runs for long."""
    loop = asyncio.get_running_loop()
    whole_s = loop.time()
    while True:
        used = Counter[str]()
        for pod in running(api):
            (container,) = pod["spec"]["containers"]
            used[pod["spec"]["nodeName"]] += int(container["resources"]["limits"][GPU])
        assert all(count <= GPUS for count in used.values()), used
        if len(gang_pods(api)) in (0, size):
            whole_s = loop.time()
        assert loop.time() <= whole_s + HALF_BOUND_S, gang_pods(api)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("gpus", [1, GPUS])
@pytest.mark.parametrize("spare", [0, 1])
def test_a_node_that_another_scheduler_took_holds_no_half_gang(spare: int, gpus: int, tmp_path: Path) -> None:
    """With a spare node the gang starts there; without one it waits until the other pod has ended."""

    async def play(api: FakeApi, access: Credentials) -> None:
        api.kubelet.counts = GPU
        for index in range(spare):
            name = {"name": f"n{MEMBERS + index}"}
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": name, "status": OFFER})
        slow = api.inject(Fault(verb="create", resource="pods/binding", delay_s=1.0))
        watching = asyncio.create_task(no_half_gang(api))
        async with controller(access, tmp_path) as system:
            submit(system, retries=0)
            await until(lambda: slow.struck)
            unbound = next(pod for pod in api.objects("pods") if not pod["spec"].get("nodeName"))
            node = unbound["metadata"]["annotations"]["ganger.dev/node"]
            api.put(other_pod("other", node, gpus))
            await until(lambda: any("OutOf" in pod["status"].get("reason", "") for pod in api.objects("pods")))
            if not spare:
                await until(lambda: status(api).get("phase") == "Pending")
                assert not gang_pods(api)
                assert system.loop.copy().gangs[GANG].retries.used == 0
                await asyncio.sleep(30)
                api.delete("pods", "other")
            await until(lambda: len(gang_pods(api)) == MEMBERS)
            assert not watching.done(), watching
            watching.cancel()
            assert spare == 0 or node not in {pod["spec"]["nodeName"] for pod in gang_pods(api)}
            assert system.loop.copy().gangs[GANG].retries.used == 0, "it is no failure of the job"

    scene(tmp_path, play)


@pytest.mark.parametrize("spare", [0, 1])
def test_a_gang_of_another_owner_is_given_up_whole_too(spare: int) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        api.kubelet.counts = GPU
        serve(api)
        slow = api.inject(Fault(verb="create", resource="pods/binding", name="x-1", delay_s=1.0))
        watching = asyncio.create_task(no_half_gang(api, 3))
        async with controller(access, folder), operator(api):
            job_set(api, "x", 3)
            await until(lambda: slow.struck and bound_of(api, "x") == 2)
            (node,) = {f"n{index}" for index in range(3)} - set(bound(api).values())
            api.put(other_pod("other", node, 1))
            if spare:
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}, "status": OFFER})
            else:
                await until(lambda: not bound_of(api, "x"))
                await asyncio.sleep(30)
                assert not bound_of(api, "x")
                assert pending_message(api, "x-0").startswith("waiting for 3 nodes")
                api.delete("pods", "other")
            await until(lambda: len(gang_pods(api)) == 3)
            assert not watching.done(), watching
            watching.cancel()

    foreign_scene(3, play)


def test_a_pod_that_its_node_rejects_for_another_reason_ends_no_gang_of_another_owner() -> None:
    """A resource that is not counted, such as huge pages, would be rejected there again and again."""

    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder), operator(api):
            job_set(api, "x", 3)
            await until(lambda: len(gang_pods(api)) == 3)
            rejected, *others = gang_pods(api)
            turn_away(api, rejected, "OutOfhugepages-2Mi")
            await asyncio.sleep(30)
            assert [pod["metadata"]["uid"] for pod in gang_pods(api)] == [pod["metadata"]["uid"] for pod in others]

    foreign_scene(3, play)
