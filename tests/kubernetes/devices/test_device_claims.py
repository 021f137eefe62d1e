"""Gangs whose pods claim devices: the whole controller against the fake API server."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.devices.claiming import (
    claim,
    claiming_controller,
    held,
    job,
    play_claim_controller,
    put_devices,
    template,
)
from tests.kubernetes.devices.published import claim_spec, device, slice_body
from tests.kubernetes.foreign.scenes import bound, group, pending_message, pod
from tests.kubernetes.jobs.test_gang_jobs import cluster
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

Play = Callable[[FakeApi, Credentials], Awaitable[None]]
THREE = [device(f"gpu-{index}", index) for index in range(3)]
PAIR = template("pair", claim_spec(2))


def play(folder: Path, scene: Play) -> None:
    """Play a scene on two nodes, each with two devices."""

    async def played() -> None:
        async with cluster(folder) as (api, access):
            put_devices(api, "n0", "n1")
            api.put(PAIR)
            api.put(template("one", claim_spec(1)))
            claims = asyncio.create_task(play_claim_controller(api))
            await scene(api, access)
            claims.cancel()

    asyncio.run(played())


def status(api: FakeApi, name: str) -> dict[str, Any]:
    actual: dict[str, Any] = api.get("gangjobs", name) or {}
    return actual.get("status", {})


def foreign(api: FakeApi, name: str, of: str = "", *, claims: str = "pair", **source: str) -> None:
    claimed = [{"name": "gpus", **(source or {"resourceClaimTemplateName": claims})}]
    pod(api, name, of, gpus=0, resourceClaims=claimed)


def test_a_gang_gets_its_devices_before_it_is_bound_and_another_waits_for_them(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            api.put(job("first", "pair", nodes=2))
            await until(lambda: len(bound(api)) == 2)
            assert held(api) == {
                "first-1-0-gpus": ["n0/gpu-0", "n0/gpu-1"],
                "first-1-1-gpus": ["n1/gpu-0", "n1/gpu-1"],
            }
            for name, node in bound(api).items():
                of_pod: Any = api.get("resourceclaims", f"{name}-gpus")
                allocation, (user,) = of_pod["status"]["allocation"], of_pod["status"]["reservedFor"]
                assert user["uid"] == api.get("pods", name)["metadata"]["uid"]  # type: ignore[index]
                (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
                assert term["matchFields"][0]["values"] == [node]
                assert of_pod["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
            container = api.objects("pods")[0]["spec"]["containers"][0]
            assert container["resources"]["claims"] == [{"name": "gpus"}]
            assert not any("devices.ganger.dev" in name for name in container["resources"]["requests"])
            api.put(job("second", "one", nodes=1))
            await until(lambda: status(api, "second").get("phase") == "Pending")
            assert len(bound(api)) == 2
            assert "devices.ganger.dev/1xgpu.example.com" in status(api, "second")["message"]
            first: Any = api.get("gangjobs", "first")
            api.put(first | {"spec": first["spec"] | {"stop": True}})
            await until(lambda: [name for name in bound(api) if name.startswith("second")])
            assert list(held(api)) == ["second-1-0-gpus"]

    play(tmp_path, scene)


def test_a_gang_that_cannot_be_bound_as_a_whole_leaves_no_device(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        refused = api.inject(Fault(verb="create", resource="pods/binding", skip=1, status=403))
        async with claiming_controller(access, tmp_path):
            api.put(job("first", "pair", nodes=2))
            await until(lambda: refused.struck)
            await until(lambda: len(bound(api)) == 2 and all("-2-" in name for name in bound(api)))
            await until(lambda: sorted(held(api)) == ["first-2-0-gpus", "first-2-1-gpus"])

    play(tmp_path, scene)


def test_devices_that_were_taken_meanwhile_count_no_attempt(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path) as system:
            in_use = api.inject(Fault(verb="patch", resource="resourceclaims/status", skip=1, status=409))
            api.put(job("first", "pair", nodes=2))
            await until(lambda: in_use.struck)
            await until(lambda: status(api, "first").get("reason") == "devices_unavailable")
            assert not bound(api)
            await until(lambda: not held(api))
            gang = system.loop.copy().gangs["first.default"]
            assert gang.retries.unadmitted == 1

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("claimed", "reason", "remedied"),
    [
        ("absent", "no ResourceClaimTemplate absent", template("absent", claim_spec(1))),
        ("odd", "does not compile", None),
        ("unknown", "no DeviceClass tpu", None),
        ("many", "no node has the devices: n0: request gpu: gpu.example.com: 2 of 3 devices", slice_body("n0", *THREE)),
    ],
)
def test_a_claim_that_cannot_be_satisfied_is_refused_with_the_reason(
    claimed: str, reason: str, remedied: dict[str, Any] | None, tmp_path: Path
) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        api.put(template("odd", claim_spec(1, "device.driver ==")))
        api.put(template("many", claim_spec(3)))
        api.put(template("unknown", claim_spec(1, deviceClassName="tpu")))
        async with claiming_controller(access, tmp_path):
            api.put(job("first", claimed, nodes=1))
            foreign(api, "theirs", claims=claimed)
            await until(lambda: reason in status(api, "first").get("message", ""))
            assert status(api, "first")["phase"] == "Rejected"
            await until(lambda: reason in pending_message(api, "theirs"))
            assert not bound(api)
            if remedied is not None:
                api.put(remedied)
                await until(lambda: len(bound(api)) == (1 if claimed == "many" else 2))

    play(tmp_path, scene)


def test_the_devices_that_a_job_names_are_those_that_it_gets(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        put_devices(api, "n0", "n1", each=3)
        named = {"placement": {"nodes": ["n1"], "devices": [0, 2]}}
        async with claiming_controller(access, tmp_path):
            api.put(job("first", "pair", nodes=1, **named))
            await until(lambda: bound(api) == {"first-1-0": "n1"})
        assert held(api) == {"first-1-0-gpus": ["n1/gpu-0", "n1/gpu-2"]}
        async with claiming_controller(access, tmp_path):
            api.put(job("second", "one", nodes=1, **named))
            await until(lambda: status(api, "second").get("phase") == "Pending")
            no_claims = {"pod": {}, "resources": {"gpu": 1}}
            api.put(job("third", "one", nodes=1, **named, **no_claims))
            await until(lambda: "the kubelet chooses the GPUs" in status(api, "third").get("message", ""))
            first: Any = api.get("gangjobs", "first")
            api.put(first | {"spec": first["spec"] | {"stop": True}})
            await until(lambda: held(api) == {"second-1-0-gpus": ["n1/gpu-0"]})

    play(tmp_path, scene)


def test_foreign_pods_get_devices_all_or_none(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            foreign(api, "single", claims="one")
            await until(lambda: "single" in bound(api))
            group(api, "g", 2)
            for index in range(2):
                foreign(api, f"g-{index}", "g")
            await until(lambda: pending_message(api, "g-0"))
            assert set(bound(api)) == {"single"}
            assert set(held(api)) == {"single-gpus"}
            api.delete("pods", "single")
            await until(lambda: set(bound(api)) == {"g-0", "g-1"})
            assert sorted(map(tuple, held(api).values())) == [("n0/gpu-0", "n0/gpu-1"), ("n1/gpu-0", "n1/gpu-1")]

    play(tmp_path, scene)


def test_a_claim_that_another_pod_uses_is_waited_for(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        api.put(claim("shared", claim_spec(1)))
        async with claiming_controller(access, tmp_path):
            foreign(api, "one", resourceClaimName="shared")
            await until(lambda: "one" in bound(api))
            foreign(api, "two", resourceClaimName="shared")
            await until(lambda: "is in use by one" in pending_message(api, "two"))
            api.delete("resourceclaims", "shared")
            await until(lambda: "the ResourceClaim shared is being deleted" in pending_message(api, "two"))
            assert set(bound(api)) == {"one"}

    play(tmp_path, scene)


def test_what_runs_keeps_its_devices_when_the_controller_restarts_and_the_slice_shrinks(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            api.put(job("first", "one", nodes=2))
            foreign(api, "theirs", claims="one")
            await until(lambda: len(bound(api)) == 3)
        before = held(api)
        api.put(slice_body("n0", device("gpu-1", 1)))
        api.put(slice_body("n1", device("gpu-1", 1)))
        async with claiming_controller(access, tmp_path) as system:
            foreign(api, "more", claims="pair")
            await until(lambda: pending_message(api, "more"))
            assert held(api) == before
            assert system.state_of("first.default") in ("starting", "running")
            put_devices(api, "n0", "n1", each=4)
            await until(lambda: "more" in bound(api))
            assert len(held(api)) == 4
            every = [one for devices in held(api).values() for one in devices]
            assert len(set(every)) == len(every) == 5

    play(tmp_path, scene)
