"""Gangs of which some pods cannot be bound: whole or not bound at all soon after, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import controller
from tests.kubernetes.foreign.scenes import bound, group, pending_message, pod, scene
from tests.kubernetes.foreign.test_owned_gangs import bound_of, job_set, operator, serve
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

LIMIT_S = 10.0
OUTCOMES: tuple[dict[str, Any], ...] = (
    {"status": 403},
    {"status": 503},
    {"status": 409},
    {"dropped": True},
    {"hung": True},
)
BINDINGS: dict[str, Any] = {"verb": "create", "resource": "pods/binding"}


def bound_for_good(api: FakeApi, name: str) -> int:
    """Return the number of bound pods of a gang that are not being deleted."""
    return sum(
        bool(item["spec"].get("nodeName")) and "deletionTimestamp" not in item["metadata"]
        for item in api.objects("pods")
        if item["metadata"]["name"].startswith(f"{name}-")
    )


@asynccontextmanager
async def never_half_bound_for_long(api: FakeApi, sizes: dict[str, int]) -> AsyncIterator[list[str]]:
    """Check that no gang is bound in part for more than 10 s; yields the gangs that were so for a moment."""
    loop, halves, since_s = asyncio.get_running_loop(), list[str](), dict[str, float]()

    async def watch() -> None:
        while True:
            for name, size in sizes.items():
                if 0 < bound_for_good(api, name) < size:
                    halves.extend([] if name in since_s else [name])
                    half_s = loop.time() - since_s.setdefault(name, loop.time())
                    assert half_s <= LIMIT_S, f"{name} was bound in part for {half_s} s: {bound(api)}"
                else:
                    since_s.pop(name, None)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(watch())
    try:
        yield halves
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_gang_that_is_bound_in_part_gives_its_nodes_back_and_is_whole_when_that_is_possible(
    outcome: dict[str, Any],
) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        fault = api.inject(Fault(**BINDINGS, name="x-2", times=1_000, **outcome))
        sizes = {"x": 3}
        async with controller(access, folder) as system, operator(api), never_half_bound_for_long(api, sizes) as halves:
            job_set(api, "x", 3)
            await until(lambda: halves and not bound(api))
            await until(
                lambda: "not all of its pods could be bound, so none is: could not" in pending_message(api, "x-2")
            )
            job_set(api, "small", 2)
            await until(lambda: bound_of(api, "small") == 2, within_s=120)  # nothing of it keeps nodes from others
            api.delete("jobsets", "small")
            api.server.faults.remove(fault)
            await until(lambda: bound_of(api, "x") == 3, within_s=120)
            await until(lambda: "running" in {system.state_of(f"x~{index}.default") for index in range(30)})

    scene(3, play)


def test_a_short_failure_undoes_nothing() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        api.inject(Fault(**BINDINGS, name="x-2", times=2, status=403))
        async with controller(access, folder) as system, operator(api):
            job_set(api, "x", 3)
            await until(lambda: bound_of(api, "x") == 3)
            await until(lambda: system.state_of("x~1.default") == "running")

    scene(3, play)


@pytest.mark.parametrize("outage", [{}, {"status": 503}, {"status": 401}], ids=["", "an outage", "an expired token"])
@pytest.mark.parametrize("is_owned", [True, False])
def test_pods_of_a_group_are_given_up_only_if_a_controller_creates_them_again(
    outage: dict[str, Any], *, is_owned: bool
) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        api.put(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "g", "namespace": "default"}, "spec": {}}
        )
        job = api.get("jobs", "g")
        assert job is not None
        owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
        owner |= {"name": "g", "uid": job["metadata"]["uid"]}
        api.inject(Fault(**BINDINGS, name="g-1", times=1_000, status=403))
        fault = api.inject(Fault(verb="get", resource="pods", times=10_000, **outage)) if outage else None
        group(api, "g", 2)
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", "g", metadata={"ownerReferences": [owner]} if is_owned else None)
            await until(lambda: bound(api))
            if fault is not None:
                await asyncio.sleep(60)
                assert set(bound(api)) == {"g-0"}, "nothing is deleted as long as its owner cannot be read"
                api.server.faults.remove(fault)
            if is_owned:
                await until(lambda: api.get("pods", "g-0") is None, within_s=60)
            else:
                await until(lambda: "1 of its pods are bound and stay" in pending_message(api, "g-1"))
                await asyncio.sleep(2 * LIMIT_S)
            assert set(bound(api)) == (set() if is_owned else {"g-0"})

    scene(2, play)


def test_what_an_earlier_controller_bound_in_part_is_given_up_if_the_rest_does_not_fit() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with operator(api):
            job_set(api, "x", 3)
            async with controller(access, folder):
                await until(lambda: bound_of(api, "x") == 3)
            job_set(api, "y", 3)
            await asyncio.sleep(1)
            actual = api.get("pods", "y-0")
            assert actual is not None
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            annotations = {"ganger.dev/devices": "0,1,2,3,4,5,6,7"}
            metadata = {**actual["metadata"], "annotations": annotations, "creationTimestamp": now}
            api.put({**actual, "metadata": metadata, "spec": {**actual["spec"], "nodeName": "n3"}})
            async with controller(access, folder), never_half_bound_for_long(api, {"y": 3}) as halves:
                await until(lambda: halves and bound_for_good(api, "y") == 0, seldom_s=0.02)
                assert bound_of(api, "x") == 3
                api.delete("jobsets", "x")
                await until(lambda: bound_of(api, "y") == 3, within_s=120)

    scene(4, play)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_whatever_fails_no_gang_is_half_bound_for_long_and_each_is_whole_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {f"g{index}": rng.randrange(2, 5) for index in range(rng.randrange(1, 4))}

    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        serve(api)
        async with controller(access, folder), operator(api, gpus=4), never_half_bound_for_long(api, sizes):
            for name, size in sizes.items():
                for _ in range(rng.randrange(3)):
                    outcome = rng.choice((*OUTCOMES, {"lost": True}))
                    member = f"{name}-{rng.randrange(size)}"
                    api.inject(Fault(**BINDINGS, name=member, times=rng.choice((1, 3, 6)), **outcome))
                job_set(api, name, size)
            await until(lambda: sum(bound_of(api, name) == size for name, size in sizes.items()), within_s=900)
            for name in list(sizes):
                await until(lambda name=name: bound_of(api, name) == sizes[name], within_s=900)

    scene(sum(sizes.values()), play)
