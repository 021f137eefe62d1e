"""All-or-nothing binding under faults: the whole controller against the fake API server."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.engine.eventlog.job_checkpoint import is_checkpoint
from ganger.gang_jobs import object_names
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import StopRequested, Submitted
from tests.examples import examples
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, GANG, JOB, OFFER, Controlled, bind_under_faults, controller, job_of
from tests.kubernetes.disrupting import SETTLES_S
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

MEMBERS = 4


@given(seed=st.integers(0, 2**32), members=st.integers(1, 12))
@examples(6)
def test_none_or_all_are_bound_in_the_end(seed: int, members: int) -> None:
    end = bind_under_faults(seed, members)
    assert end.holds, end


def scene(folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[Any]]) -> Any:
    """Run a cluster of one node more than the gang needs, on virtual time."""

    async def played() -> Any:
        async with FakeApi(kubelet=True) as api:
            for index in range(MEMBERS + 1):
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
            api.put(CRD)
            api.put(JOB)
            return await play(api, credentials_of(api))

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(played())


def submit(system: Controlled) -> None:
    system.loop.post(Submitted(job=job_of(MEMBERS)))


def pods(api: FakeApi, generation: int) -> list[Any]:
    return [pod for pod in api.objects("pods") if pod["metadata"]["labels"][object_names.GENERATION] == str(generation)]


def bound(api: FakeApi, generation: int) -> list[Any]:
    return [pod for pod in pods(api, generation) if pod["spec"].get("nodeName")]


def status(api: FakeApi) -> Any:
    job = api.get("gangjobs", "big")
    assert job is not None
    return job.get("status", {})


def test_the_start_is_on_the_object_before_the_first_pod_is_made(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.inject(Fault(verb="create", resource="pods", status=403, times=float("inf")))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: status(api).get("generation") == 1)
        assert status(api)["nodes"] == ["n0", "n1", "n2", "n3"]
        assert '"generation":1' in status(api)["record"]

    scene(tmp_path, play)


def test_the_binding_says_which_slots_a_pod_has(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len([pod for pod in pods(api, 1) if pod["spec"].get("nodeName")]) == MEMBERS)
        for pod in pods(api, 1):
            assert pod["metadata"]["annotations"][object_names.DEVICES] == "0,1,2,3,4,5,6,7"
            assert pod["spec"]["nodeName"] == pod["metadata"]["annotations"][object_names.NODE]

    scene(tmp_path, play)


@pytest.mark.parametrize("resource", ["pods", "pods/binding", "secrets", "configmaps"])
def test_what_is_refused_for_good_leaves_nothing_and_is_said_on_the_object(resource: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        verb = "create" if resource.startswith("pods") else "*"
        quota_message = 'pods "big" is forbidden: exceeded quota: gpus'
        forbidden = api.inject(
            Fault(verb=verb, resource=resource, skip=1, status=403, message=quota_message, times=float("inf"))
        )
        if resource in ("secrets", "configmaps"):
            forbidden.skip = 0
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: system.state_of(GANG) == "pending" and status(api).get("generation"))
            assert not [pod for pod in api.objects("pods") if pod["spec"].get("nodeName")]
            with system.loop.view() as state:
                failure = state.gangs[GANG].attempt.failure
            assert failure is not None
            assert quota_message in failure.detail
            forbidden.times = 0
            await until(lambda: len([pod for pod in api.objects("pods") if pod["spec"].get("nodeName")]) == MEMBERS)

    scene(tmp_path, play)


def test_a_deleted_pod_starts_the_gang_anew_and_whole(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS and system.state_of(GANG))
            await asyncio.sleep(1)
            api.delete("pods", pods(api, 1)[2]["metadata"]["name"])
            await until(lambda: len(pods(api, 2)) == MEMBERS)
            assert not pods(api, 1)

    scene(tmp_path, play)


def test_a_node_that_vanishes_between_plan_and_bind_is_left_out(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.inject(Fault(verb="create", resource="pods/binding", delay_s=2.0, times=float("inf")))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS)
            api.delete("nodes", "n1", "")
            for pod in pods(api, 1):
                if pod["metadata"]["annotations"][object_names.NODE] == "n1":
                    api.delete("pods", pod["metadata"]["name"])
            await until(lambda: len([pod for pod in pods(api, 2) if pod["spec"].get("nodeName")]) == MEMBERS)
            assert not pods(api, 1)
            assert {pod["spec"]["nodeName"] for pod in pods(api, 2)} == {"n0", "n2", "n3", "n4"}

    scene(tmp_path, play)


def test_a_successor_finishes_what_was_begun(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        slow = api.inject(Fault(verb="create", resource="pods/binding", skip=2, delay_s=3600.0, times=float("inf")))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len([pod for pod in pods(api, 1) if pod["spec"].get("nodeName")]) == 2)
        slow.times = 0
        async with controller(access, tmp_path) as system:
            assert system.state_of(GANG) == "starting"
            await until(lambda: len([pod for pod in pods(api, 1) if pod["spec"].get("nodeName")]) == MEMBERS, SETTLES_S)

    scene(tmp_path, play)


def test_a_successor_asks_for_no_pod_that_is_there(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.inject(Fault(verb="create", resource="pods/binding", delay_s=3600.0, times=MEMBERS))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS)
        api.delete("pods", pods(api, 1)[2]["metadata"]["name"])
        api.server.calls.clear()
        async with controller(access, tmp_path):
            await until(lambda: len(bound(api, 1)) == MEMBERS, SETTLES_S)
        calls = Counter((call.verb, call.resource) for call in api.server.calls.elements())
        assert calls["create", "pods"] == 1
        assert not calls["get", "pods"]

    scene(tmp_path, play)


def test_a_binding_of_a_dead_leader_that_comes_late_is_as_good_as_ones_own(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.inject(Fault(verb="create", resource="pods/binding", delay_s=2.0, times=float("inf")))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS)
            await asyncio.sleep(1.0)
        assert not bound(api, 1)
        async with controller(access, tmp_path) as system:
            await until(lambda: len(bound(api, 1)) == MEMBERS)
            await asyncio.sleep(SETTLES_S)
            assert system.state_of(GANG) == "starting"
        assert len(bound(api, 1)) == MEMBERS

    scene(tmp_path, play)


def test_stopping_a_gang_that_is_being_bound_leaves_nothing_of_it(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.inject(Fault(verb="create", resource="pods/binding", skip=1, delay_s=1.0, times=float("inf")))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS)
            system.loop.post(StopRequested(gang=GANG))
            await until(lambda: status(api).get("phase") == "Stopped")
            assert not api.objects("pods")
        assert not is_checkpoint(status(api)["record"])

    scene(tmp_path, play)


def test_a_pod_of_an_older_generation_is_fenced(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS)
            stale = pods(api, 1)[0]
            stale["metadata"] = {
                **{name: stale["metadata"][name] for name in ("annotations", "ownerReferences")},
                "name": "big-0-0",
                "labels": stale["metadata"]["labels"] | {object_names.GENERATION: "0"},
            }
            api.put(stale)
            await until(lambda: api.get("pods", "big-0-0") is None)
            assert len(pods(api, 1)) == MEMBERS

    scene(tmp_path, play)


def test_a_deleted_job_stops_waiting_and_another_of_its_name_is_another(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS)
            api.delete("gangjobs", "big")
            system.loop.post(StopRequested(gang=GANG))
            await until(lambda: not system.state_of(GANG))
            assert not api.objects("pods")

    scene(tmp_path, play)


def test_a_pod_that_went_before_another_of_its_name_was_made_ends_nothing(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        stuck = api.inject(Fault(verb="create", resource="pods/binding", delay_s=3600.0, times=float("inf")))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(pods(api, 1)) == MEMBERS)
        stuck.times = 0
        api.inject(Fault(resource="secrets", delay_s=1.0, times=float("inf")))
        async with controller(access, tmp_path) as system:
            await asyncio.sleep(0.5)
            assert not bound(api, 1)
            api.delete("pods", "big-1-2")
            await until(lambda: len([pod for pod in pods(api, 1) if pod["spec"].get("nodeName")]) == MEMBERS)
            await asyncio.sleep(SETTLES_S)
            assert system.state_of(GANG) == "starting"
            assert len(pods(api, 1)) == len(api.objects("pods")) == MEMBERS

    scene(tmp_path, play)


def test_a_pod_that_is_bound_to_a_node_just_lost_is_not_left_there(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        late = api.inject(Fault(verb="create", resource="pods/binding", name="big-1-1", delay_s=2.0))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: late.struck)
            api.delete("nodes", "n1", "")
            await until(lambda: len([pod for pod in pods(api, 2) if pod["spec"].get("nodeName")]) == MEMBERS)
            await until(lambda: not pods(api, 1), SETTLES_S)

    scene(tmp_path, play)


def test_gpus_that_others_claim_are_not_given_and_come_back(tmp_path: Path) -> None:
    device = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", "request": "gpu"}

    async def play(api: FakeApi, access: Credentials) -> None:
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "theirs", "namespace": "default"},
            "status": {"allocation": {"devices": {"results": [device]}}},
        }
        api.put(claim)
        async with controller(access, tmp_path) as system:
            system.loop.post(Submitted(job=job_of(MEMBERS + 1)))
            await until(lambda: system.loop.copy().pending.reasons)
            (reason,) = system.loop.copy().pending.reasons.values()
            assert (reason.have, reason.foreign) == (MEMBERS, 1)
            api.delete("resourceclaims", "theirs")
            await until(lambda: len([pod for pod in pods(api, 1) if pod["spec"].get("nodeName")]) == MEMBERS + 1)

    scene(tmp_path, play)


def test_a_gang_of_one_pod_is_bound_by_the_request_that_makes_it(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            system.loop.post(Submitted(job=job_of(1)))
            await until(lambda: pods(api, 1))
            await asyncio.sleep(SETTLES_S)
            [pod] = pods(api, 1)
            assert pod["spec"]["nodeName"] == pod["metadata"]["annotations"][object_names.NODE]
            assert pod["metadata"]["annotations"][object_names.DEVICES] == "0,1,2,3,4,5,6,7"
            assert system.state_of(GANG) == "starting"
        assert ("create", "", "pods/binding") not in api.used_permissions()

    scene(tmp_path, play)
