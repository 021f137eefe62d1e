"""Images pulled ahead of reserved starts: where, how many at a time, and what becomes of the pods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kubernetes_validate

from ganger.controller import image_prefetch
from ganger.controller.image_prefetch import ImagePrefetch
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, JOB, OFFER
from tests.kubernetes.jobs.test_gang_jobs import SPEC, put, reconciling_controller, running, set_rules, status
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

IMAGE = "hub.example.org/train:2"
Play = Callable[[FakeApi, Callable[..., Any]], Awaitable[None]]


def pulling(api: FakeApi) -> list[Any]:
    """Return the pods that pull an image."""
    return [pod for pod in api.objects("pods") if "ganger.dev/prefetch" in pod["metadata"].get("labels", {})]


def play(played: Play, nodes: int = 3) -> None:
    """Play on nodes of which the first has the image."""

    async def whole(folder: Path) -> None:
        async with FakeApi() as api:
            for index in range(nodes):
                images = [{"names": [IMAGE]}] if index == 0 else []
                ready = {"conditions": [{"type": "Ready", "status": "True"}], "images": images}
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index:02}"}}
                api.put(node | {"status": OFFER | ready})
            api.put(CRD)
            access = credentials_of(api)

            @asynccontextmanager
            async def leads(*, prefetch: bool = True) -> AsyncIterator[None]:
                async with ApiClient(access, PROGRAM) as client, reconciling_controller(access, folder) as system:
                    await set_rules(
                        system,
                        lambda rules: replace(
                            rules,
                            reservations=replace(rules.reservations, prefetch=prefetch),
                            pods=replace(rules.pods, references=("Secret/hub",)),
                        ),
                    )
                    async with running(ImagePrefetch(client, system.loop, system.backend, lambda: True).run()):
                        yield

            await played(api, leads)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        runner.run(whole(Path(folder)))


async def reserve(api: FakeApi, nodes: int = 3, time: str = "20m") -> None:
    """Have a gang hold all nodes for a time, and another one wait for them with a reserved start."""
    put(api, nodes=nodes, limits={"time": time})
    await until(lambda: status(api).get("phase") == "Starting")
    late = {"metadata": {"name": "late", "namespace": "default"}}
    section = {"spec": {"imagePullSecrets": [{"name": "hub"}]}}
    spec = SPEC | {"nodes": nodes, "image": IMAGE, "pod": section, "limits": {"time": "1h"}}
    api.put(JOB | late | {"spec": spec})
    await until(lambda: (api.get("gangjobs", "late") or {}).get("status", {}).get("reservedStart"))


def report(api: FakeApi, pod: Any, phase: str, **state: Any) -> None:
    """Report the state of a pod's container as its kubelet does."""
    api.put(pod | {"status": {"phase": phase, "containerStatuses": [{"name": "prefetch", "state": state}]}})


def test_the_nodes_that_lack_the_image_pull_it_once() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads():
            await reserve(api)
            await until(lambda: pulling(api))
            pods = pulling(api)
            assert [pod["spec"]["nodeName"] for pod in pods] == ["n01", "n02"], "n00 has it"
            for pod in pods:
                (container,) = pod["spec"]["containers"]
                assert (container["image"], container.get("resources", {})) == (IMAGE, {})
                assert pod["spec"]["imagePullSecrets"] == [{"name": "hub"}]
                kubernetes_validate.validate(pod, "1.36", strict=True)
            report(api, pods[0], "Pending", waiting={"reason": "ContainerCreating"})
            await asyncio.sleep(60)
            assert pulling(api) != [], "while it is pulled"
            report(api, pods[0], "Failed", terminated={"exitCode": 128, "reason": "StartError"})
            report(api, pods[1], "Pending", waiting={"reason": "ImagePullBackOff"})
            await until(lambda: not pulling(api))
            await asyncio.sleep(300)
            assert not pulling(api), "not again for this reservation"

    play(played)


def test_only_some_nodes_pull_at_a_time() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads():
            await reserve(api, nodes=12)
            seen = set[str]()
            while len(seen) < 11:
                await until(lambda: pulling(api))
                assert len(pulling(api)) <= image_prefetch.MAX_AT_ONCE
                for pod in pulling(api)[:4]:
                    seen.add(pod["spec"]["nodeName"])
                    report(api, pod, "Failed", terminated={"exitCode": 128})
                await asyncio.sleep(10)
            assert seen == {f"n{index:02}" for index in range(1, 12)}

    play(played, 12)


def test_nothing_is_pulled_unless_the_policy_says_so_or_long_before_the_start() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads(prefetch=False):
            await reserve(api)
            await asyncio.sleep(120)
            assert not pulling(api)

    play(played)

    async def long_before(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads():
            await reserve(api, time="3h")
            await asyncio.sleep(120)
            assert not pulling(api)

    play(long_before)


def test_the_next_controller_removes_the_pods_that_are_not_wanted_any_more() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads():
            await reserve(api)
            await until(lambda: pulling(api))
        async with leads(prefetch=False):
            await until(lambda: not pulling(api))
        assert not pulling(api), "none is created again"

    play(played)


def test_a_namespace_that_may_not_have_them_holds_nothing_up() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads():
            await reserve(api)
            refused = api.inject(Fault(verb="create", resource="pods", status=403, times=100))
            await until(lambda: refused.struck >= 2)
            await asyncio.sleep(120)
            assert refused.struck == 2, "once for each node"

    play(played)
