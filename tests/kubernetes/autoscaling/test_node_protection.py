"""Reserved nodes and autoscalers: which annotations nodes have, when they go, and what is not ganger's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ganger.controller.autoscaling.node_protection import ANNOTATIONS, PASS_S, RELEASE_AFTER_S, NodeProtection
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.gang_jobs.object_names import PROTECTED
from ganger.kubeapi.api_client import ApiClient
from ganger.model.policy import Autoscaling
from ganger.model.units import MINUTE_MS
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, JOB, OFFER
from tests.kubernetes.jobs.test_gang_jobs import SPEC, put, reconciling_controller, running, set_rules, status
from tests.kubernetes.manifests.test_manifests import granted
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

Play = Callable[[FakeApi, Callable[..., Any]], Awaitable[None]]
SCALE_DOWN, DISRUPT = ANNOTATIONS
BOTH = {SCALE_DOWN: "true", DISRUPT: "true", PROTECTED: f"{SCALE_DOWN},{DISRUPT}"}
RESERVED, IDLE = ("n0", "n1"), ("n2", "n3")


def annotations(api: FakeApi, *names: str) -> list[dict[str, str]]:
    """Return the annotations of nodes."""
    nodes: list[Any] = [api.get("nodes", name, "") for name in names]
    return [node["metadata"].get("annotations", {}) for node in nodes]


def add_node(api: FakeApi, name: str, **node_annotations: str) -> None:
    about = {"name": name, "annotations": node_annotations, "labels": {"pool": "a" if name in RESERVED else "b"}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": about, "status": OFFER | ready})


def writes(api: FakeApi) -> int:
    """Return the number of writes to nodes."""
    return sum(count for call, count in api.server.calls.items() if (call.verb, call.resource) == ("patch", "nodes"))


def play(played: Play) -> None:
    """Play on four nodes, two of each pool."""

    async def whole(folder: Path) -> None:
        async with FakeApi() as api:
            for name in (*RESERVED, *IDLE):
                add_node(api, name)
            api.put(CRD)
            access = credentials_of(api)

            @asynccontextmanager
            async def leads(after_ms: int | None = MINUTE_MS) -> AsyncIterator[None]:
                async with ApiClient(access, PROGRAM) as client, reconciling_controller(access, folder) as system:
                    await set_rules(system, lambda rules: replace(rules, autoscaling=Autoscaling(after_ms=after_ms)))
                    async with running(NodeProtection(client, system.loop, system.backend, lambda: True).run()):
                        yield

            await played(api, leads)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        runner.run(whole(Path(folder)))


async def reserve(api: FakeApi) -> None:
    """Have a gang hold the nodes of a pool, and another one wait for them with a reserved start."""
    placement = {"node_selector": {"pool": "a"}}
    put(api, nodes=2, placement=placement, limits={"time": "2h"})
    await until(lambda: status(api).get("phase") == "Starting")
    late = {"metadata": {"name": "late", "namespace": "default"}}
    api.put(JOB | late | {"spec": SPEC | {"nodes": 2, "placement": placement, "limits": {"time": "1h"}}})
    await until(lambda: (api.get("gangjobs", "late") or {}).get("status", {}).get("reservedStart"))


def test_nodes_are_protected_while_they_are_reserved() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads():
            await reserve(api)
            await until(lambda: annotations(api, *RESERVED) == [BOTH, BOTH])
            await asyncio.sleep(100 * PASS_S)
            assert writes(api) == 2, "once for each reserved node, whatever the number of cycles"
            assert annotations(api, *IDLE) == [{}, {}]
            api.delete("gangjobs", "late")
            await asyncio.sleep(RELEASE_AFTER_S - 2 * PASS_S)
            assert annotations(api, *RESERVED) == [BOTH, BOTH], "the next cycle may reserve them again"
            await until(lambda: annotations(api, *RESERVED) == [{}, {}])
            await asyncio.sleep(100 * PASS_S)
            assert writes(api) == 4
            assert {item for item in api.used_permissions() if item[2] == "nodes"} <= granted()

    play(played)


def test_annotations_that_others_have_set_stay() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        add_node(api, "n0", **{SCALE_DOWN: "false", "other": "1"})
        add_node(api, "n1", **{SCALE_DOWN: "true", DISRUPT: "true"})
        async with leads():
            await reserve(api)
            mixed = {SCALE_DOWN: "false", "other": "1", DISRUPT: "true", PROTECTED: DISRUPT}
            of_others = {SCALE_DOWN: "true", DISRUPT: "true"}
            await until(lambda: annotations(api, *RESERVED) == [mixed, of_others])
            add_node(api, "n1", **{SCALE_DOWN: "true"})
            await until(lambda: annotations(api, "n1")[0].get(PROTECTED) == DISRUPT)
            add_node(api, "n1", **{SCALE_DOWN: "true", DISRUPT: "false", PROTECTED: f"{DISRUPT},other"})
            api.delete("gangjobs", "late")
            left = [{SCALE_DOWN: "false", "other": "1"}, {SCALE_DOWN: "true", DISRUPT: "false"}]
            await until(lambda: annotations(api, *RESERVED) == left)
            written = writes(api)
            await asyncio.sleep(10 * PASS_S)
            assert writes(api) == written, "what others have set is not written again"

    play(played)


def test_the_next_controller_removes_what_an_earlier_one_has_written_and_no_more() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        add_node(api, "n2", **{SCALE_DOWN: "true"})
        add_node(api, "n3", **{SCALE_DOWN: "true", DISRUPT: "true", PROTECTED: SCALE_DOWN})
        async with leads():
            await reserve(api)
            await until(lambda: annotations(api, *RESERVED) == [BOTH, BOTH])
        async with leads():
            await until(lambda: annotations(api, *IDLE) == [{SCALE_DOWN: "true"}, {DISRUPT: "true"}])
            assert annotations(api, *RESERVED) == [BOTH, BOTH], "they are still reserved"
            api.delete("nodes", "n1", "")
            add_node(api, "n1")
            await until(lambda: annotations(api, *RESERVED) == [BOTH, BOTH])
        async with leads(after_ms=None):
            await until(lambda: annotations(api, *RESERVED) == [{}, {}])

    play(played)


def test_without_autoscaling_in_the_policy_nothing_is_written() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        async with leads(after_ms=None):
            await reserve(api)
            await asyncio.sleep(10 * PASS_S)
            assert writes(api) == 0

    play(played)


def test_a_write_that_fails_is_made_again() -> None:
    async def played(api: FakeApi, leads: Callable[..., Any]) -> None:
        fault = api.inject(Fault(verb="patch", resource="nodes", status=403, reason="Forbidden", times=100))
        async with leads():
            await reserve(api)
            await until(lambda: fault.struck > 4)
            fault.times = 0
            await until(lambda: annotations(api, *RESERVED) == [BOTH, BOTH])
            fault = api.inject(Fault(verb="patch", resource="nodes", status=409, reason="Conflict", times=3))
            api.delete("gangjobs", "late")
            await until(lambda: annotations(api, *RESERVED) == [{}, {}])
            assert fault.struck == 3

    play(played)
