"""A site's own topology levels, from the SchedulingPolicy: read at the start and as the policy changes.

The whole controller against the fake API server, on virtual time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import Controlled, controller
from tests.kubernetes.foreign.test_foreign_pods import bound, group, node, pending_message, pod, scene, until
from tests.kubernetes.policy.test_policy_objects import accepted, definition, policy, queue
from tools.fakeapi import FakeApi

SWITCH, HALL = "example.com/switch", "example.com/hall"
ZONE = "topology.kubernetes.io/zone"
SITE = [{"level": "hall", "labels": [HALL]}, {"level": "leaf", "labels": [SWITCH]}]
IN_FORCE = ("True", "InForce", "")


@asynccontextmanager
async def following(access: Credentials, folder: Path) -> AsyncIterator[Controlled]:
    """Run a controller whose policy comes from the objects, as in `controller.assembly`."""
    async with ApiClient(access, PROGRAM) as api:
        policies = PolicyReconciler(api, lambda: True)
        tasks = [asyncio.create_task(policies.run())]
        try:
            async with controller(access, folder, policies) as system:
                follows = policies.reconcile(system.loop, system.backend.set_policy)
                tasks.append(asyncio.create_task(follows))
                yield system
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def cluster(api: FakeApi) -> None:
    """Create two halls with a switch each, and zones that lie across them."""
    for item in (definition("queues", "Queue"), definition("schedulingpolicies", "SchedulingPolicy")):
        api.put(item)
    for name, hall, switch, zone in (("a", "h1", "s1", "z1"), ("b", "h2", "s2", "z1"), ("c", "h2", "s2", "z2")):
        node(api, name, **{"example.com_hall": hall, "example.com_switch": switch, "topology.kubernetes.io_zone": zone})


def pair(api: FakeApi, name: str, key: str) -> None:
    """Create two pods that ask for one domain of that label."""
    group(api, name, 2, schedulingConstraints={"topology": [{"key": key}]})
    for index in range(2):
        pod(api, f"{name}-{index}", name, gpus=4)


def nodes_of(api: FakeApi, name: str) -> set[str]:
    return {on for item, on in bound(api).items() if item.startswith(f"{name}-")}


def levels(system: Controlled) -> dict[str, tuple[str, ...]]:
    """Return the domains of each node, and under `levels` the names of the levels."""
    with system.loop.view() as state:
        return {"levels": state.nodes.topology.levels} | {item.name: item.domains for item in state.nodes.nodes}


BY_SITE = {"levels": ("hall", "leaf"), "a": ("h1", "s1"), "b": ("h2", "s2"), "c": ("h2", "s2")}
BY_ZONE = {"levels": ("zone",), "a": ("z1",), "b": ("z1",), "c": ("z2",)}


def test_a_policy_that_is_there_is_read_at_the_start_and_again_after_a_restart() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        cluster(api)
        api.put(policy(topology=SITE))
        async with following(access, folder) as system:
            await until(lambda: levels(system) == BY_SITE)
            await until(lambda: accepted(api, "schedulingpolicies", "default") == IN_FORCE)
            pair(api, "one", SWITCH)
            await until(lambda: len(bound(api)) == 2)
            assert len({BY_SITE[on] for on in nodes_of(api, "one")}) == 1
        async with following(access, folder) as again:
            assert levels(again) == BY_SITE, "before anything is followed"

    scene(0, play)


def test_a_change_moves_no_running_gang_and_places_the_next_by_the_new_levels() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        cluster(api)
        async with following(access, folder) as system:
            assert levels(system) == BY_ZONE, "what is read where nobody says anything"
            for index, on in enumerate(("a", "b", "c")):
                pod(api, f"fill-{index}", gpus=4, nodeSelector={"kubernetes.io/hostname": on})
                node(
                    api,
                    on,
                    **{
                        "kubernetes.io_hostname": on,
                        "example.com_hall": "h1" if on == "a" else "h2",
                        "example.com_switch": "s1" if on == "a" else "s2",
                        "topology.kubernetes.io_zone": "z2" if on == "c" else "z1",
                    },
                )
            await until(lambda: len(bound(api)) == 3)
            before = bound(api)
            pair(api, "early", SWITCH)
            await until(lambda: "which is not one topology level here" in pending_message(api, "early-0"))
            api.put(policy(topology=SITE))
            await until(lambda: nodes_of(api, "early") == {"b", "c"})
            assert levels(system) == BY_SITE
            assert before.items() <= bound(api).items()
            assert api.get("pods", "fill-0")["metadata"].get("deletionTimestamp") is None  # type: ignore[index]
            for index in range(2):
                api.delete("pods", f"early-{index}")
            api.delete("schedulingpolicies", "default", "")
            await until(lambda: levels(system) == BY_ZONE)
            assert bound(api) == before

    scene(0, play)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ([*SITE, {"level": "hall", "labels": [ZONE]}], "topology[2].level: 'hall' is used twice"),
        ([*SITE, {"level": "port", "labels": [SWITCH]}], f"'{SWITCH}' already belongs to the level leaf"),
        ([*SITE, {"level": "port", "labels": ["example.com/swich"]}], "did you mean 'example.com/switch'"),
        ([{"level": "Leaf", "labels": [SWITCH]}], "topology[0].level: 'Leaf' cannot be the name of a level"),
        ([{"level": "leaf", "labels": []}], "topology[0].labels: an empty list"),
    ],
)
def test_what_cannot_be_is_said_on_the_policy_and_what_was_in_force_still_is(topology: Any, says: str) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        cluster(api)
        api.put(policy(topology=SITE, order="fifo"))
        api.put(queue("research"))
        async with following(access, folder) as system:
            await until(lambda: accepted(api, "schedulingpolicies", "default") == IN_FORCE)
            api.put(policy(topology=topology, order="las"))
            await until(lambda: accepted(api, "schedulingpolicies", "default")[0] == "False")
            assert says in accepted(api, "schedulingpolicies", "default")[2]
            assert (levels(system), system.loop.policy.NAME) == (BY_SITE, "fifo")
            assert accepted(api, "queues", "research") == IN_FORCE

    scene(0, play)


def test_a_level_whose_labels_come_later_is_in_force_then() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        cluster(api)
        async with following(access, folder) as system:
            api.put(policy(topology=[*SITE, {"level": "port", "labels": ["example.com/port"]}]))
            await until(lambda: accepted(api, "schedulingpolicies", "default")[0] == "False")
            assert levels(system) == BY_ZONE
            node(api, "d", **{"example.com_port": "p1"})
            await until(lambda: accepted(api, "schedulingpolicies", "default") == IN_FORCE)
            assert levels(system)["d"] == ("", "", "p1")

    scene(0, play)


def test_a_list_under_which_a_live_gang_could_not_start_again_is_refused_with_its_name() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        cluster(api)
        api.put(policy(topology=SITE))
        async with following(access, folder) as system:
            await until(lambda: levels(system) == BY_SITE)
            pair(api, "kept", SWITCH)
            await until(lambda: len(bound(api)) == 2)
            api.put(policy(topology=SITE[:1]))
            await until(lambda: accepted(api, "schedulingpolicies", "default")[0] == "False")
            _, reason, message = accepted(api, "schedulingpolicies", "default")
            assert reason == "JobsStranded"
            assert "could not continue: the network has no level leaf" in message
            assert levels(system) == BY_SITE
            for index in range(2):
                api.delete("pods", f"kept-{index}")
            await until(lambda: levels(system)["levels"] == ("hall",))

    scene(0, play)
