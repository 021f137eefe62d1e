"""Nodes that are not ready, on the fake API server and virtual time: what continues, what starts elsewhere.

Launchers are connections that only send hello.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.nodes.node_patience import DISCONNECTED_LOST_AFTER_S, LOST_AFTER_S
from ganger.engine.query.listing_rows import node_rows
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, GANG, JOB, OFFER, Controlled, controller
from tests.kubernetes.controller.test_controller_faults import bound, status, submit
from tests.waiting import until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

NAMES = ("n0", "n1", "n2", "n3")
SOON_S = 5
"""Longer than all consequences of a change of a node take."""


def scene(
    folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[None]], nodes: tuple[str, ...] = NAMES
) -> None:
    async def played() -> None:
        async with FakeApi(kubelet=True) as api:
            for name in nodes:
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": OFFER})
            api.put(CRD)
            api.put(JOB)
            await play(api, credentials_of(api))

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(played())


def tell(api: FakeApi, name: str, ready: str) -> None:
    """Write the condition Ready of a node, as the node controller and its kubelet do."""
    node: Any = api.get("nodes", name, "")
    output = {
        "True": {"reason": "KubeletReady", "message": "kubelet is posting ready status"},
        "Unknown": {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."},
    }
    node["status"]["conditions"] = [{"type": "Ready", "status": ready, **output[ready]}]
    api.put(node)


async def placed(api: FakeApi, system: Controlled) -> dict[str, str]:
    """Place a gang on two nodes. Return the UIDs of its pods by node."""
    submit(system)
    await until(lambda: len(bound(api)) == 2 and status(api).get("phase") == "Starting")
    return pods(api)


def pods(api: FakeApi) -> dict[str, str]:
    return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in api.objects("pods")}


def generation(system: Controlled) -> int:
    with system.loop.view() as state:
        return state.gangs[GANG].attempt.generation


def states(system: Controlled) -> dict[str, str]:
    return {row.name: row.state for row in node_rows(system.loop.copy())}


async def elsewhere(system: Controlled) -> float:
    """Return how long it takes until the second attempt has started."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await until(lambda: generation(system) == 2)
    return loop.time() - began_s


@asynccontextmanager
async def launchers(api: FakeApi, system: Controlled, nodes: dict[str, str]) -> AsyncIterator[None]:
    """Hold connections as the launchers of these nodes do."""
    port = await system.backend.listener.open("127.0.0.1", 0, None)
    uid = api.get("gangjobs", "big")["metadata"]["uid"]
    writers = []
    for name in nodes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        token = system.backend.bootstrap.token(GANG, uid, 1, name)
        hello = {"v": 2, "type": "hello", "gang": GANG, "node": name, "token": token, "pid": 1, "start_ticks": 1}
        writer.write(json.dumps(hello | {"generations": [1], "generation": 1}).encode() + b"\n")
        assert json.loads(await reader.readline())["type"] == "welcome"
        writers.append(writer)
    try:
        yield
    finally:
        for writer in writers:
            writer.close()


def test_all_nodes_are_not_ready_after_the_api_server_was_away_and_nothing_is_ended(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            before = await placed(api, system)
            await api.stop()
            await asyncio.sleep(45)
            await api.start()
            for name in NAMES:
                tell(api, name, "Unknown")
            await until(lambda: set(states(system).values()) == {"unready"})
            await asyncio.sleep(60)
            for name in NAMES:
                tell(api, name, "True")
            await until(lambda: set(states(system).values()) == {"ready"})
            assert (system.state_of(GANG), generation(system), pods(api)) == ("starting", 1, before)

    scene(tmp_path, play)


@pytest.mark.parametrize("runs", [True, False])
def test_a_controller_that_begins_while_nodes_are_not_ready_ends_nothing(runs: bool, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        if not runs:
            api.kubelet.down.update(NAMES)
        async with controller(access, tmp_path) as system:
            before = await placed(api, system)
        for name in before:
            tell(api, name, "Unknown")
        async with controller(access, tmp_path) as system:
            await asyncio.sleep(LOST_AFTER_S - SOON_S)
            assert (system.state_of(GANG), generation(system), pods(api)) == ("starting", 1, before)

    scene(tmp_path, play)


def test_nothing_new_starts_on_a_node_that_is_not_ready_until_it_is(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            tell(api, "n1", "Unknown")
            await until(lambda: states(system)["n1"] == "unready")
            submit(system)
            await asyncio.sleep(SOON_S)
            assert (system.state_of(GANG), api.objects("pods")) == ("pending", [])
            (row,) = (row for row in node_rows(system.loop.copy()) if row.name == "n1")
            assert "NodeStatusUnknown: Kubelet stopped posting node status" in row.unready
            assert "its jobs have until" in row.unready
            tell(api, "n1", "True")
            await until(lambda: len(bound(api)) == 2)

    scene(tmp_path, play, NAMES[:2])


def test_a_node_of_which_nothing_is_heard_is_lost_as_late_as_its_pods_are_evicted(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            silent = min(await placed(api, system))
            api.kubelet.down.add(silent)
            tell(api, silent, "Unknown")
            assert LOST_AFTER_S <= await elsewhere(system) <= LOST_AFTER_S + SOON_S
            await until(lambda: len(bound(api)) == 2)
            assert silent not in pods(api)
            assert states(system)[silent] == "lost"
            tell(api, silent, "True")
            await until(lambda: states(system)[silent] == "ready")

    scene(tmp_path, play)


def test_a_connected_launcher_keeps_its_node_and_one_that_parts_ends_it_soon(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            before = await placed(api, system)
            silent = min(before)
            async with launchers(api, system, before):
                tell(api, silent, "Unknown")
                await asyncio.sleep(LOST_AFTER_S + SOON_S)
                assert (generation(system), pods(api)) == (1, before)
                (row,) = (row for row in node_rows(system.loop.copy()) if row.name == silent)
                assert "a launcher there is connected, so its jobs continue" in row.unready
            assert DISCONNECTED_LOST_AFTER_S <= await elsewhere(system) <= DISCONNECTED_LOST_AFTER_S + SOON_S

    scene(tmp_path, play)


def test_a_node_that_is_removed_or_shut_down_is_lost_at_once(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            first, _ = sorted(await placed(api, system))
            node: Any = api.get("nodes", first, "")
            taints = [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]
            api.put(node | {"spec": {"taints": taints}})
            tell(api, first, "Unknown")
            assert await elsewhere(system) <= SOON_S
            await until(lambda: len(bound(api)) == 2 and first not in pods(api))
            api.delete("nodes", min(pods(api)), "")
            await until(lambda: generation(system) == 3)

    scene(tmp_path, play)
