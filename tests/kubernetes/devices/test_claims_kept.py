"""Claims whose pods could not all be bound: who keeps the devices."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from ganger.backends.kubernetes.devices.device_claims import COLLECT_S
from ganger.backends.kubernetes.foreign.partial_bindings import BIND_TIMEOUT_S
from ganger.backends.kubernetes.foreign.pending_units import RECHECK_S
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Pod
from tests.kubernetes.binding import controller
from tests.kubernetes.devices.claiming import (
    claim,
    claiming_controller,
    held,
    job,
    play_claim_controller,
    put_devices,
    template,
)
from tests.kubernetes.devices.published import claim_spec
from tests.kubernetes.foreign.scenes import bound, group, pending_message, pod
from tests.kubernetes.foreign.test_owned_gangs import job_set, serve
from tests.kubernetes.jobs.test_gang_jobs import cluster
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

Play = Callable[[FakeApi, Credentials], Awaitable[None]]


def play(folder: Path, scene: Play) -> None:
    """Play a scene on two nodes, each with two devices, on virtual time."""

    async def played() -> None:
        async with cluster(folder) as (api, access):
            put_devices(api, "n0", "n1")
            api.put(template("pair", claim_spec(2)))
            claims = asyncio.create_task(play_claim_controller(api))
            await scene(api, access)
            claims.cancel()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(played())


def foreign(api: FakeApi, name: str, of: str = "", **source: str) -> None:
    pod(api, name, of, gpus=0, resourceClaims=[{"name": "gpus", **source}])


def users(api: FakeApi, name: str) -> list[str]:
    actual = api.get("resourceclaims", name)
    assert actual is not None
    return [user["name"] for user in actual["status"].get("reservedFor") or ()]


def test_of_two_pods_that_name_one_claim_the_first_keeps_it(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        api.put(claim("shared", claim_spec(1)))
        api.inject(Fault(verb="patch", resource="resourceclaims*", times=99, delay_s=0.3))
        async with claiming_controller(access, tmp_path):
            for name in ("one", "two"):
                foreign(api, name, resourceClaimName="shared")
            await until(lambda: len(bound(api)) == 1)
            ((winner, node),) = bound(api).items()
            (other,) = {"one", "two"} - {winner}
            await until(lambda: f"is in use by {winner}" in pending_message(api, other))
            assert users(api, "shared") == [winner]
            assert [each.partition("/")[0] for each in held(api)["shared"]] == [node]

    play(tmp_path, scene)


def test_a_pod_whose_binding_was_not_answered_keeps_its_claim(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        late = api.inject(Fault(verb="create", resource="pods/binding", answer_delay_s=30))
        async with claiming_controller(access, tmp_path):
            group(api, "g", 2)
            for name in ("g-0", "g-1"):
                foreign(api, name, "g", resourceClaimTemplateName="pair")
            await until(lambda: len(bound(api)) == 2)
            assert late.struck
            await asyncio.sleep(2 * BIND_TIMEOUT_S)
            assert sorted(held(api)) == ["g-0-gpus", "g-1-gpus"]
            assert {name: users(api, f"{name}-gpus") for name in bound(api)} == {"g-0": ["g-0"], "g-1": ["g-1"]}

    play(tmp_path, scene)


def test_the_claim_of_a_bound_pod_is_not_freed_before_the_pod_is_gone(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        refused = api.inject(Fault(verb="create", resource="pods/binding", skip=1, status=403))
        written = api.inject(Fault(verb="patch", resource="resourceclaims/status", times=99))
        async with claiming_controller(access, tmp_path):
            api.put(job("first", "pair", nodes=2))
            await until(lambda: len(bound(api)) == 2 and all("-2-" in name for name in bound(api)))
            assert refused.struck
            assert written.struck == 2 + 1 + 2  # allocated, freed for the pod that is not bound, allocated again

    play(tmp_path, scene)


def test_a_standby_counts_the_claims_of_jobs_that_came_before_it_leads(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        wins = asyncio.Event()
        follows = asyncio.Event()

        async def win() -> None:
            follows.set()
            await wins.wait()

        async def stand_by() -> None:
            async with controller(access, tmp_path / "standby", win=win):
                await until(lambda: len(bound(api)) == 2)

        (tmp_path / "standby").mkdir()
        standby = asyncio.create_task(stand_by())
        await follows.wait()
        async with claiming_controller(access, tmp_path):
            api.put(job("first", "pair", nodes=2))
            await until(lambda: len(bound(api)) == 2)
            api.put(job("second", "pair", nodes=2))
            await until(lambda: (api.get("gangjobs", "second") or {}).get("status", {}).get("phase") == "Pending")
        for each in list(bound(api)):
            api.delete("pods", each)
        api.delete("gangjobs", "first")
        await until(lambda: not bound(api))
        wins.set()
        await standby
        assert all(name.startswith("second") for name in bound(api))

    play(tmp_path, scene)


def test_the_owner_of_an_incomplete_gang_is_read_no_more_often_when_claims_change(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        serve(api)
        labels = {"jobset.sigs.k8s.io/jobset-name": "x", "jobset.sigs.k8s.io/replicatedjob-name": "w"}
        async with claiming_controller(access, tmp_path):
            job_set(api, "x", 3)
            pod(api, "x-0", metadata={"labels": labels})
            await until(lambda: "has 1 of at least 3 pods" in pending_message(api, "x-0"))
            reads = api.inject(Fault(verb="get", resource="jobsets", times=999))
            for index in range(10):
                api.put(claim(f"c-{index}", claim_spec(1)))
                await asyncio.sleep(2 * COLLECT_S)
            await asyncio.sleep(4 * RECHECK_S)
            assert 3 <= reads.struck <= 6

    play(tmp_path, scene)


def test_a_pod_may_have_a_share_of_a_gpu_beside_its_claims(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path) as system:
            claimed = [{"name": "gpus", "resourceClaimTemplateName": "pair"}]
            about = {"name": "shared", "namespace": "default", "annotations": {"gpu-fraction": "0.5"}}
            body = {"metadata": about, "spec": {"containers": [{"name": "c"}], "resourceClaims": claimed}}
            request = system.backend.devices.request(msgspec.convert(body, Pod))
            assert request.share is not None
            assert request.share.milli == 500
            assert len(request.extended) == 1

    play(tmp_path, scene)
