"""Gangs of owners that are suspended and resumed: the whole controller against the fake API server, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.kubeapi.credentials import Credentials
from tests.examples import examples
from tests.kubernetes.binding import controller
from tests.kubernetes.foreign.scenes import bound, pending_message, pod, preempt_by_priority, scene
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

NAMES = {"plural": "jobsets", "kind": "JobSet"}
STEP_S = 0.05


def serve(api: FakeApi, version: str = "v1alpha2") -> None:
    """Have the server serve JobSets in a version."""
    versions = [{"name": version, "served": True, "storage": True, "subresources": {"status": {}}}]
    spec = {"group": "jobset.x-k8s.io", "names": NAMES, "scope": "Namespaced", "versions": versions}
    metadata = {"name": "jobsets.jobset.x-k8s.io"}
    kind = "CustomResourceDefinition"
    api.put({"apiVersion": "apiextensions.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})


def job_set(api: FakeApi, name: str, pods: int, labels: dict[str, str] | None = None, **more: Any) -> None:
    role = {"name": "w", "replicas": pods, "template": {"spec": {"parallelism": 1}}}
    metadata = {"name": name, "namespace": "default", "labels": labels or {}}
    spec = {"replicatedJobs": [role], **more}
    api.put({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec})


def spec_of(api: FakeApi, name: str) -> dict[str, Any]:
    actual = api.get("jobsets", name)
    assert actual is not None
    spec: dict[str, Any] = actual["spec"]
    return spec


@asynccontextmanager
async def operator(api: FakeApi, gpus: int = 8) -> AsyncIterator[None]:
    """Create and delete the pods of JobSets, as their controller does."""

    async def keep() -> None:
        while True:
            expected = {}
            for item in api.objects("jobsets"):
                name, spec = item["metadata"]["name"], item["spec"]
                size = 0 if spec.get("suspend") else spec["replicatedJobs"][0]["replicas"]
                expected |= {f"{name}-{index}": (name, spec.get("priority", 0)) for index in range(size)}
            existing = {item["metadata"]["name"] for item in api.objects("pods") if item["metadata"].get("labels")}
            for gone in existing - expected.keys():
                api.delete("pods", gone)
            for missing in expected.keys() - existing:
                owner, priority = expected[missing]
                labels = {
                    "jobset.sigs.k8s.io/jobset-name": owner,
                    "jobset.sigs.k8s.io/replicatedjob-name": "w",
                }
                pod(api, missing, gpus=gpus, priority=priority, metadata={"labels": labels})
            await asyncio.sleep(STEP_S)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def bound_of(api: FakeApi, name: str) -> int:
    return sum(each.startswith(f"{name}-") for each in bound(api))


async def preempt_low(api: FakeApi, system: Any, labels: dict[str, str] | None = None) -> None:
    """Bind a gang `low` of two pods, and `high` in its place."""
    preempt_by_priority(system)
    job_set(api, "low", 2, labels)
    await until(lambda: bound_of(api, "low") == 2)
    job_set(api, "high", 2, priority=900)
    await until(lambda: bound_of(api, "high") == 2)


def test_a_preempted_gang_is_suspended_by_its_owner_and_resumed_when_it_has_nodes() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder) as system, operator(api):
            await preempt_low(api, system)
            assert spec_of(api, "low")["suspend"] is True
            assert system.state_of("low~1.default") == "pending"
            await asyncio.sleep(60)
            assert spec_of(api, "low")["suspend"] is True, "it has no nodes"
            api.delete("jobsets", "high")
            await until(lambda: bound_of(api, "low") == 2)
            assert spec_of(api, "low")["suspend"] is False
            await until(lambda: system.state_of("low~1.default") == "running")
            assert not (api.get("jobsets", "low") or {})["metadata"].get("labels")

    scene(2, play)


def test_the_nodes_of_a_resumed_gang_are_kept_until_its_pods_exist() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder) as system:
            preempt_by_priority(system)
            async with operator(api):
                job_set(api, "low", 2)
                await until(lambda: bound_of(api, "low") == 2)
                pod(api, "first", priority=900)
                await until(lambda: "first" in bound(api) and bound_of(api, "low") == 0)
            api.delete("pods", "first")
            await until(lambda: spec_of(api, "low")["suspend"] is False)
            pod(api, "small", gpus=1)
            await until(lambda: pending_message(api, "small"))
            assert "small" not in bound(api), "its operator is slow, and the nodes are its own"
            async with operator(api):
                await until(lambda: bound_of(api, "low") == 2)

    scene(2, play)


def test_pods_that_a_suspended_owner_does_not_delete_are_deleted() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder) as system:
            preempt_by_priority(system)
            async with operator(api):
                job_set(api, "low", 2)
                await until(lambda: bound_of(api, "low") == 2)
            pod(api, "first", priority=900)  # while the operator is down
            await until(lambda: "first" in bound(api))
            assert bound_of(api, "low") == 0
            api.delete("pods", "first")
            async with operator(api):
                await until(lambda: bound_of(api, "low") == 2)

    scene(2, play)


@pytest.mark.parametrize("gpus", [4, 8])
def test_pods_of_another_size_than_before_are_another_gang(gpus: int) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder) as system:
            async with operator(api, gpus=6):
                await preempt_low(api, system)
                api.delete("jobsets", "high")
            async with operator(api, gpus=gpus):
                await until(lambda: bound_of(api, "low") == 2, within_s=300)
                limits = [item["spec"]["containers"][0]["resources"]["limits"] for item in api.objects("pods")]
                assert limits == [{"nvidia.com/gpu": str(gpus)}] * 2

    scene(2, play)


def test_what_an_earlier_controller_suspended_waits_for_its_turn_again() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with operator(api):
            async with controller(access, folder) as system:
                await preempt_low(api, system)
            async with controller(access, folder):
                await until(lambda: spec_of(api, "low")["suspend"] is False)
                await until(lambda: pending_message(api, "low-0"))
                assert bound_of(api, "low") == 0
                api.delete("jobsets", "high")
                await until(lambda: bound_of(api, "low") == 2)

    scene(2, play)


@pytest.mark.parametrize("change", ["deleted", "resized", "resumed"])
def test_a_suspended_owner_that_its_user_changes_is_not_waited_for(change: str) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder) as system, operator(api):
            await preempt_low(api, system)
            if change == "deleted":
                api.delete("jobsets", "low")
                await until(lambda: not system.state_of("low~1.default"))
                return
            actual = api.get("jobsets", "low") or {}
            role = {**actual["spec"]["replicatedJobs"][0], "replicas": 1 if change == "resized" else 2}
            api.put({**actual, "spec": {"replicatedJobs": [role], "suspend": change == "resized"}})
            if change == "resumed":
                await until(lambda: pending_message(api, "low-0"))
            api.delete("jobsets", "high")
            await until(lambda: bound_of(api, "low") == (1 if change == "resized" else 2), within_s=300)

    scene(2, play)


@pytest.mark.parametrize("reason", ["kueue", "forbidden"])
def test_an_owner_that_may_not_be_suspended_loses_its_pods(reason: str) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        if reason == "forbidden":
            api.inject(Fault(verb="patch", resource="jobsets", times=1_000, status=403))
        labels = {"kueue.x-k8s.io/queue-name": "q"} if reason == "kueue" else {}
        async with controller(access, folder) as system, operator(api):
            await preempt_low(api, system, labels)
            await until(lambda: not system.state_of("low~1.default"))
            assert "suspend" not in spec_of(api, "low")
            await until(lambda: pending_message(api, "low-0"))
            api.delete("jobsets", "high")
            await until(lambda: bound_of(api, "low") == 2)

    scene(2, play)


def test_a_version_that_ganger_does_not_know_is_said_on_the_pods() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api, "v9")
        labels = {"jobset.sigs.k8s.io/jobset-name": "x"}
        async with controller(access, folder):
            pod(api, "x-0", metadata={"labels": labels})
            await until(lambda: "does not serve jobsets in jobset.x-k8s.io/v1alpha2" in pending_message(api, "x-0"))
            serve(api)
            await until(lambda: "JobSet x, which its labels name, does not exist" in pending_message(api, "x-0"))
            job_set(api, "x", 1)
            await until(lambda: "x-0" in bound(api))

    scene(1, play)


def test_a_gang_waits_for_all_that_its_owner_asks_for_and_no_longer_than_it_does() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        labels = {"jobset.sigs.k8s.io/jobset-name": "x", "jobset.sigs.k8s.io/replicatedjob-name": "w"}
        async with controller(access, folder):
            job_set(api, "x", 3)
            for index in range(2):
                pod(api, f"x-{index}", metadata={"labels": labels})
            await until(lambda: "the JobSet x has 2 of at least 3 pods" in pending_message(api, "x-0"))
            assert not bound(api)
            job_set(api, "x", 2)  # its user asks for fewer
            await until(lambda: len(bound(api)) == 2)

    scene(3, play)


@pytest.mark.parametrize("lingers", [False, True])
def test_a_pod_that_is_killed_is_replaced_on_the_node_that_others_of_its_gang_keep(*, lingers: bool) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder) as system:
            async with operator(api, gpus=4):
                job_set(api, "x", 4)
                await until(lambda: bound_of(api, "x") == 4)
            pod(api, "other", gpus=4)
            await until(lambda: pending_message(api, "other"))
            old = api.get("pods", "x-2") or {}
            replacement = partial(pod, api, "x-new", gpus=4, metadata={"labels": old["metadata"]["labels"]})
            if lingers:  # its owner creates another one while it ends
                api.kubelet.stop_s = 30.0
                api.put({**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
                replacement()
                await until(lambda: pending_message(api, "x-new"))
            else:
                api.delete("pods", "x-2")
                replacement()
            await until(lambda: bound(api).get("x-new") == old["spec"]["nodeName"])
            await asyncio.sleep(5)
            assert system.state_of("x~1.default") == "running"
            assert "other" not in bound(api)

    scene(2, play)


@given(seed=st.integers(0, 2**32))
@examples(gate=4, otherwise=10)
def test_whatever_happens_each_gang_has_its_turn_and_none_is_left_suspended(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {f"g{index}": rng.randrange(1, 5) for index in range(rng.randrange(2, 5))}

    async def disturb(api: FakeApi, system: Any) -> None:
        preempt_by_priority(system)
        for name, size in sizes.items():
            if api.get("jobsets", name) is None:
                job_set(api, name, size, priority=rng.choice((0, 200, 400, 600)))
            await asyncio.sleep(rng.choice((0.0, 0.1, 1.0)))
        for _ in range(rng.randrange(3)):
            verb, resource = rng.choice((("patch", "jobsets"), ("get", "jobsets"), ("list", "jobsets")))
            fault = rng.choice(({"status": 409}, {"status": 503}, {"lost": True}, {"dropped": True}, {"delay_s": 0.6}))
            api.inject(Fault(verb=verb, resource=resource, skip=rng.randrange(3), times=rng.randrange(1, 4), **fault))
            if names := sorted(bound(api)):
                api.delete("pods", rng.choice(names))
            await asyncio.sleep(rng.choice((0.1, 1.0, 5.0, 40.0)))

    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        def is_whole(name: str) -> bool:
            return bound_of(api, name) == sizes[name]

        serve(api)
        async with operator(api, gpus=4):
            for _ in range(rng.randrange(1, 3)):
                async with controller(access, folder) as system:
                    await disturb(api, system)
            async with controller(access, folder) as system:
                preempt_by_priority(system)
                while sizes:  # one after the other has its turn
                    await until(lambda: any(map(is_whole, sizes)), within_s=240)
                    name = next(filter(is_whole, sizes))
                    api.delete("jobsets", name)
                    del sizes[name]

    scene(2, play)
