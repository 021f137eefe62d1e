"""Resizes and spares on Kubernetes, and a controller that ends in the middle: only the objects say what was decided."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from ganger.model.event import NodeDrained, NodeUncordoned, Started, StopRequested, Submitted, SuspendRequested
from ganger.model.job import GangState
from tests.kubernetes.binding import GANG, JOB, Controlled, controller, job_of
from tests.kubernetes.controller.test_controller_faults import is_bound, scene, status
from tests.kubernetes.pods.test_leftover_pods import NEXT
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

LAST = "last.default"
LONG_S = 10_000.0


def on_two_nodes(folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[None]]) -> None:
    """Play it with the objects of three jobs."""

    async def played(api: FakeApi, access: Credentials) -> None:
        for name in ("next", "last"):
            api.put(JOB | {"metadata": {"name": name, "namespace": "default"}})
        await play(api, access)

    scene(folder, played)


def submit(system: Controlled, gang: str, **spec: Any) -> None:
    """Submit a job of one node, or of what `spec` says."""
    name, job = gang.removesuffix(".default"), job_of(1)
    system.loop.post(Submitted(job=replace(job, id=gang, spec=replace(job.spec, name=name, **spec))))


def nodes(api: FakeApi) -> dict[str, list[str]]:
    """Return where each attempt is to run, by the name of its job and its number."""
    found: dict[str, list[str]] = {}
    for pod in api.objects("pods"):
        if is_bound(pod) and "deletionTimestamp" not in pod["metadata"]:
            found.setdefault(pod["metadata"]["name"].rsplit("-", 1)[0], []).append(pod["spec"]["nodeName"])
    return {attempt: sorted(names) for attempt, names in sorted(found.items())}


def stop_writes(api: FakeApi, name: str) -> None:
    """Have the status of a job stay as it is."""
    api.inject(Fault(verb="patch", resource="gangjobs/status", name=name, times=LONG_S, delay_s=LONG_S))


def revive(api: FakeApi) -> None:
    """Have the kubelets that were down end the pods that were deleted meanwhile."""
    api.kubelet.down.clear()
    api.server.faults.clear()
    for pod in api.objects("pods"):
        api.put(pod | {"metadata": pod["metadata"] | {"labels": pod["metadata"]["labels"] | {"seen": "now"}}})


async def until_settled(system: Controlled, api: FakeApi, **sizes: int) -> None:
    """Wait until the attempts that run are these, with so many nodes, and see that they stay."""

    def actual() -> dict[str, int]:
        return {attempt.replace("-", "_"): len(names) for attempt, names in nodes(api).items()}

    await until(lambda: actual() == sizes)
    await asyncio.sleep(10)
    assert actual() == sizes
    system.loop.copy().validate()


async def begin_growth(system: Controlled, api: FakeApi, *, is_end_written: bool = True) -> str:
    """Have a job get the node that another one leaves; no pod of its first attempt ends. Return that node."""
    submit(system, NEXT)
    await until(lambda: "next-1" in nodes(api))
    submit(system, GANG, max_nodes=2)
    await until(lambda: "big-1" in nodes(api))
    await asyncio.sleep(1)  # their status is written
    [own], [added] = nodes(api)["big-1"], nodes(api)["next-1"]
    api.kubelet.down.add(own)
    system.loop.post(Started(gang=GANG, generation=1, nodes=(own,)))
    if not is_end_written:
        stop_writes(api, "next")
    system.loop.post(StopRequested(gang=NEXT))
    await until(lambda: status(api)["phase"] == "Resizing")
    return added


@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_that_an_elastic_job_gives_up_gets_another_job(restarted: bool, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system, GANG, max_nodes=2)
            await until(lambda: nodes(api) == {"big-1": ["n0", "n1"]})
            api.kubelet.down |= {"n0", "n1"} if restarted else set()
            submit(system, NEXT)
            if not restarted:
                await until_settled(system, api, big_2=1, next_1=1)
                assert (status(api)["generation"], status(api)["nodes"]) == (2, nodes(api)["big-2"])
            else:
                await until(lambda: status(api)["phase"] == "Resizing")
        async with controller(access, tmp_path) as system:
            if restarted:
                assert system.state_of(GANG) == GangState.RESIZING
            revive(api)
            await until_settled(system, api, big_2=1, next_1=1)

    on_two_nodes(tmp_path, play)


def test_a_job_that_grows_gets_its_nodes_from_the_next_controller(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            await begin_growth(system, api)
        async with controller(access, tmp_path) as system:
            assert system.state_of(GANG) == GangState.RESIZING
            revive(api)
            await until_settled(system, api, big_2=2)

    on_two_nodes(tmp_path, play)


def test_a_job_that_grows_onto_a_node_that_went_starts_on_the_others(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            added = await begin_growth(system, api)
        api.delete("nodes", added, "")
        async with controller(access, tmp_path) as system:
            revive(api)
            await until_settled(system, api, big_2=1)

    on_two_nodes(tmp_path, play)


def test_a_job_that_grows_onto_the_node_of_one_whose_end_was_not_written_has_it(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            await begin_growth(system, api, is_end_written=False)
        async with controller(access, tmp_path) as system:
            assert system.state_of(GANG) == GangState.RESIZING
            system.loop.copy().validate()
            await until(lambda: system.state_of(NEXT) == "pending")
            revive(api)
            await until_settled(system, api, big_2=2)

    on_two_nodes(tmp_path, play)


def test_a_job_that_grew_onto_a_node_that_a_later_one_has_is_requeued(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            added = await begin_growth(system, api)
            stop_writes(api, "big")
            system.loop.post(SuspendRequested(gang=GANG))
            await until(lambda: system.state_of(GANG) == "suspending")
            submit(system, LAST)
            await until(lambda: nodes(api).get("last-1") == [added])
        api.server.faults.clear()
        assert status(api)["phase"] == "Resizing", "it still says that it gets that node"
        async with controller(access, tmp_path) as system:
            assert system.state_of(GANG) == "requeueing"
            revive(api)
            await until_settled(system, api, big_2=1, last_1=1)

    on_two_nodes(tmp_path, play)


@pytest.mark.parametrize("becomes", ["gone", "another's"])
def test_a_job_whose_spare_is_not_its_own_any_more_runs_on(becomes: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system, GANG, spares=1)
            await until(lambda: len(nodes(api).get("big-1", ())) == 1 and status(api).get("phase") == "Starting")
            (spare,) = {"n0", "n1"} - {*nodes(api)["big-1"]}
            if becomes == "another's":
                stop_writes(api, "big")
                system.loop.post(NodeDrained(node=spare))
                submit(system, NEXT)
                system.loop.post(NodeUncordoned(node=spare))
                await until(lambda: nodes(api).get("next-1") == [spare])
        if becomes == "gone":
            api.delete("nodes", spare, "")
        revive(api)
        async with controller(access, tmp_path) as system:
            await until_settled(system, api, big_1=1, **({} if becomes == "gone" else {"next_1": 1}))
            assert [share.node for share in system.loop.copy().gangs[GANG].attempt.spares] == []

    on_two_nodes(tmp_path, play)


@pytest.mark.parametrize("is_end_written", [True, False])
def test_a_job_on_a_spare_leaves_it_when_the_one_that_lent_it_has_ended(is_end_written: bool, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system, GANG, spares=1)
            await until(lambda: len(nodes(api).get("big-1", ())) == 1)
            (spare,) = {"n0", "n1"} - {*nodes(api)["big-1"]}
            submit(system, NEXT)
            await until(lambda: nodes(api).get("next-1") == [spare])
            await asyncio.sleep(1)  # their status is written
            assert system.loop.copy().gangs[NEXT].attempt.lent == (spare,)
            if not is_end_written:
                api.kubelet.down.add(spare)
                stop_writes(api, "next")
            system.loop.post(StopRequested(gang=GANG))
            await until(lambda: status(api).get("phase") == "Stopped")
        revive(api)
        async with controller(access, tmp_path) as system:
            await until_settled(system, api, next_2=1)
            assert system.loop.copy().gangs[NEXT].attempt.lent == ()

    on_two_nodes(tmp_path, play)
