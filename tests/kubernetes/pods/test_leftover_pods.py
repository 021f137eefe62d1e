"""Pods that stay though they have ended, and nodes that are lost before pods are bound: on the fake API server."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from ganger.model.event import StopRequested, Submitted
from tests.kubernetes.binding import GANG, JOB, OFFER, Controlled, controller, job_of
from tests.kubernetes.controller.test_controller_faults import MEMBERS, bound, is_bound, scene, status, submit
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

FINALIZER = "example.com/audit"
NEXT = "next.default"


def keep(api: FakeApi) -> None:
    """Put a finalizer on every pod, which is never removed."""
    for pod in api.objects("pods"):
        api.put(pod | {"metadata": pod["metadata"] | {"finalizers": [FINALIZER]}})


def generations(api: FakeApi) -> set[str]:
    return {name.rsplit("-", 2)[1] for name in bound(api)}


def submit_next(api: FakeApi, system: Controlled) -> None:
    api.put(JOB | {"metadata": {"name": "next", "namespace": "default"}})
    job = job_of(MEMBERS)
    system.loop.post(Submitted(job=replace(job, id=NEXT, spec=replace(job.spec, name="next"))))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_finalizer_on_pods_that_ran_keeps_no_node(restarted: bool, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            keep(api)
            if not restarted:
                system.loop.post(StopRequested(gang=GANG))
                await until(lambda: not system.state_of(GANG) and status(api)["phase"] == "Stopped")
                submit_next(api, system)
                await until(lambda: system.state_of(NEXT) == "starting" and len(bound(api)) == MEMBERS)
                assert len(api.objects("pods")) == 2 * MEMBERS, "they are still shown"
        if restarted:
            for pod in api.objects("pods"):
                api.delete("pods", pod["metadata"]["name"])
            async with controller(access, tmp_path) as system:
                await until(lambda: generations(api) == {"2"} and len(bound(api)) == MEMBERS)
                await asyncio.sleep(120)
                assert (system.state_of(GANG), generations(api)) == ("starting", {"2"})
                system.loop.copy().validate()

    scene(tmp_path, play)


def test_a_deleted_pod_with_a_finalizer_ends_its_gang_which_starts_anew(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            keep(api)
            api.delete("pods", bound(api)[0])
            await until(lambda: generations(api) == {"2"} and len(bound(api)) == MEMBERS)
            await until(lambda: status(api)["generation"] == 2)
            assert system.state_of(GANG) == "starting"

    scene(tmp_path, play)


@pytest.mark.parametrize("spare", [False, True], ids=["none spare", "one spare"])
@pytest.mark.parametrize(
    ("verb", "resource", "skip"),
    [
        ("patch", "gangjobs/status", 0),
        ("create", "pods", 0),
        ("create", "pods", 1),
        ("create", "pods/binding", 0),
        ("create", "pods/binding", 1),
    ],
)
def test_a_node_that_goes_after_the_plan_and_before_all_is_bound(
    verb: str, resource: str, skip: int, spare: bool, tmp_path: Path
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        if spare:
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}, "status": OFFER})
        async with controller(access, tmp_path) as system:
            late = api.inject(Fault(verb=verb, resource=resource, skip=skip, delay_s=2))
            submit(system)
            await until(lambda: late.struck)
            assert system.state_of(GANG) == "starting", "it was planned"
            lost_node = max(system.loop.copy().gangs[GANG].nodes)
            api.delete("nodes", lost_node, "")
            if spare:
                await until(
                    lambda: len(bound(api)) == MEMBERS and not any(on(pod) == lost_node for pod in remaining_pods(api))
                )
                assert {on(pod) for pod in remaining_pods(api)} == {"n0", "n1", "n9"} - {lost_node}
                assert generations(api) == {str(system.loop.copy().gangs[GANG].attempt.generation)}
            else:
                await until(lambda: status(api).get("phase") == "Pending" and not remaining_pods(api))
                assert "node" in status(api)["message"]
                await asyncio.sleep(60)
                assert not remaining_pods(api), "none is bound where not all are"
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": lost_node}, "status": OFFER})
                await until(lambda: len(bound(api)) == MEMBERS)
            system.loop.copy().validate()

    scene(tmp_path, play)


def remaining_pods(api: FakeApi) -> list[Any]:
    return [pod for pod in api.objects("pods") if is_bound(pod)]


def on(pod: Any) -> str:
    return str(pod["spec"]["nodeName"])
