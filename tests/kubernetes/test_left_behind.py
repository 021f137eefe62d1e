"""Pods that stay though they have ended, and nodes that are lost before pods are bound: on the fake API server."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.binding import GANG, JOB, OFFER, Controlled, controller, job_of
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import StopRequested, Submitted
from tests.kubernetes.test_trouble import MEMBERS, bound, is_bound, scene, status, submit, until
from tools.fakeapi import FakeApi, Fault

FINALIZER = "example.com/audit"
NEXT = "next.default"


def keep(api: FakeApi) -> None:
    """Put a finalizer on every pod, which is never removed."""
    for pod in api.objects("pods"):
        api.put(pod | {"metadata": pod["metadata"] | {"finalizers": [FINALIZER]}})


def generations(api: FakeApi) -> set[str]:
    return {name.rsplit("-", 2)[1] for name in bound(api)}


def submit_next(api: FakeApi, its: Controlled) -> None:
    api.put(JOB | {"metadata": {"name": "next", "namespace": "default"}})
    job = job_of(MEMBERS)
    its.loop.post(Submitted(job=replace(job, id=NEXT, spec=replace(job.spec, name="next"))))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_finalizer_on_pods_that_ran_keeps_no_node(restarted: bool, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as its:
            submit(its)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            keep(api)
            if not restarted:
                its.loop.post(StopRequested(gang=GANG))
                await until(lambda: not its.state_of(GANG) and status(api)["phase"] == "Stopped")
                submit_next(api, its)
                await until(lambda: its.state_of(NEXT) == "starting" and len(bound(api)) == MEMBERS)
                assert len(api.objects("pods")) == 2 * MEMBERS, "they are still shown"
        if restarted:
            for pod in api.objects("pods"):
                api.delete("pods", pod["metadata"]["name"])
            async with controller(access, tmp_path) as its:
                await until(lambda: generations(api) == {"2"} and len(bound(api)) == MEMBERS)
                await asyncio.sleep(120)
                assert (its.state_of(GANG), generations(api)) == ("starting", {"2"})
                its.loop.copy().validate()

    scene(tmp_path, play)


def test_a_pod_with_a_finalizer_that_somebody_deletes_ends_its_gang_which_starts_anew(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as its:
            submit(its)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            keep(api)
            api.delete("pods", bound(api)[0])
            await until(lambda: generations(api) == {"2"} and len(bound(api)) == MEMBERS)
            await until(lambda: status(api)["generation"] == 2)
            assert its.state_of(GANG) == "starting"

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
        async with controller(access, tmp_path) as its:
            late = api.inject(Fault(verb=verb, resource=resource, skip=skip, delay_s=2))
            submit(its)
            await until(lambda: late.struck)
            assert its.state_of(GANG) == "starting", "it was planned"
            gone = max(its.loop.copy().gangs[GANG].nodes)
            api.delete("nodes", gone, "")
            if spare:
                await until(lambda: len(bound(api)) == MEMBERS and not any(on(pod) == gone for pod in left(api)))
                assert {on(pod) for pod in left(api)} == {"n0", "n1", "n9"} - {gone}
                assert generations(api) == {str(its.loop.copy().gangs[GANG].generation)}
            else:
                await until(lambda: status(api).get("phase") == "Pending" and not left(api))
                assert "node" in status(api)["message"]
                await asyncio.sleep(60)
                assert not left(api), "none is bound where not all are"
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": gone}, "status": OFFER})
                await until(lambda: len(bound(api)) == MEMBERS)
            its.loop.copy().validate()

    scene(tmp_path, play)


def left(api: FakeApi) -> list[Any]:
    return [pod for pod in api.objects("pods") if is_bound(pod)]


def on(pod: Any) -> str:
    return str(pod["spec"]["nodeName"])
