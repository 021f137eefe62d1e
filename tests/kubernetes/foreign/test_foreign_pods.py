"""Foreign pods that ganger places: the whole controller against the fake API server, on virtual time."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.backends.kubernetes.nodes.node_patience import LOST_AFTER_S
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import PolicySet
from ganger.model.policy import document_of
from ganger.model.queue import Queue
from tests.examples import examples
from tests.kubernetes.binding import OFFER, controller
from tests.kubernetes.foreign.scenes import (
    bound,
    gpus_of_nodes,
    group,
    node,
    pending_message,
    pod,
    required,
    scene,
    ungate,
)
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault


def test_a_bare_pod_is_bound_to_slots_and_others_have_the_rest() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        async with controller(access, folder):
            for name in ("one", "two"):
                pod(api, name, gpus=4)
            await until(lambda: len(bound(api)) == 2)
            slots = [api.get("pods", name)["metadata"]["annotations"]["ganger.dev/devices"] for name in ("one", "two")]  # type: ignore[index]
            assert sorted(",".join(slots).split(",")) == [str(slot) for slot in range(8)]
            pod(api, "three", gpus=1)
            await until(lambda: pending_message(api, "three"))
            assert "three" not in bound(api)
            api.delete("pods", "one")
            await until(lambda: "three" in bound(api))

    scene(1, play)


def test_a_group_waits_for_as_many_as_it_needs_and_for_its_gates() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        group(api, "g", 3)
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", "g")
            pod(api, "g-2", "g", is_gated=True)
            await until(lambda: "2 of at least 3 pods" in pending_message(api, "g-0"))
            assert not bound(api)
            ungate(api, "g-2")
            await until(lambda: len(bound(api)) == 3)
            assert set(gpus_of_nodes(api).values()) == {8}

    scene(4, play)


def test_two_groups_that_come_interleaved_do_not_hold_each_other_up() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        async with controller(access, folder):
            for name in ("a", "b"):
                group(api, name, 4)
            for index in range(4):
                for name in ("a", "b"):
                    pod(api, f"{name}-{index}", name)
            await until(lambda: len(bound(api)) == 4)
            first = {name[0] for name in bound(api)}
            assert len(first) == 1, "all of one, none of the other"
            for name in bound(api):
                api.delete("pods", name)
            await until(lambda: len(bound(api)) == 4 and {name[0] for name in bound(api)} != first)

    scene(4, play)


def test_pods_bound_before_a_restart_keep_their_devices() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        async with controller(access, folder):
            pod(api, "early", gpus=6)
            await until(lambda: bound(api))
        async with controller(access, folder):
            pod(api, "large", gpus=4)
            pod(api, "small", gpus=2)
            await until(lambda: "small" in bound(api))
            await until(lambda: pending_message(api, "large"))
            assert gpus_of_nodes(api) == {"n0": 8}
            api.delete("pods", "early")
            await until(lambda: "large" in bound(api))

    scene(1, play)


def test_what_was_bound_before_a_restart_gives_way_whole_where_the_order_says_so() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        async with controller(access, folder):
            for name in ("a", "b"):
                group(api, name, 2)
                for index in range(2):
                    pod(api, f"{name}-{index}", name)
            await until(lambda: len(bound(api)) == 4)
        async with controller(access, folder) as again:
            with again.loop.view() as state:
                assert sorted(len(gang.nodes) for gang in state.gangs.values()) == [2, 2]
                queues = {**state.document.queues, "other": Queue(name="other")}
                document = replace(document_of(state.document, queues), order="max_min")
            again.loop.post(PolicySet(document=document, version=1))
            pod(api, "first", queue="other")
            await until(lambda: "first" in bound(api))
            remaining = {name[0] for name in bound(api) if name != "first"}
            assert len(remaining) == 1, "both count for their queue, and one of them went whole"

    scene(4, play)


def test_slots_that_two_pods_have_are_taken_over_once() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        for name in ("one", "two"):
            pod(api, name, gpus=4, nodeName="n0")
            actual = api.get("pods", name)
            assert actual is not None
            about = {**actual["metadata"], "annotations": {"ganger.dev/devices": "0,1,2,3"}}
            api.put({**actual, "metadata": about, "status": {"phase": "Running"}})
        async with controller(access, folder):
            pod(api, "more", gpus=1)
            await until(lambda: pending_message(api, "more"))
            assert "more" not in bound(api), "what cannot be a gang still has its GPUs"
            for name in ("one", "two"):
                api.delete("pods", name)
            await until(lambda: "more" in bound(api))

    scene(1, play)


def test_a_queue_that_is_none_is_said_on_the_pod() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        group(api, "g", 1, queue="nowhere")
        async with controller(access, folder):
            pod(api, "alone", queue="elsewhere")
            pod(api, "g-0", "g")
            await until(lambda: "there is no queue elsewhere; there are default, root" in pending_message(api, "alone"))
            await until(lambda: "there is no queue nowhere; there are default, root" in pending_message(api, "g-0"))
            assert not bound(api)
            group(api, "g", 1)
            await until(lambda: set(bound(api)) == {"g-0"})

    scene(2, play)


@pytest.mark.parametrize(
    ("expression", "where"),
    [
        ({"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}, "b"),
        ({"key": "disk", "operator": "NotIn", "values": ["hdd"]}, "b"),
        ({"key": "cores", "operator": "Exists"}, "a"),
        ({"key": "cores", "operator": "DoesNotExist"}, "b"),
        ({"key": "cores", "operator": "Gt", "values": ["31"]}, "a"),
        ({"key": "cores", "operator": "Lt", "values": ["33"]}, "a"),
    ],
)
def test_node_affinity_is_heeded(expression: dict[str, Any], where: str) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        node(api, "a", disk="hdd", cores="32")
        node(api, "b", disk="nvme")
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"p{index}", affinity=required(**expression))
            await until(lambda: len(bound(api)) == 1)
            await until(lambda: any(pending_message(api, f"p{index}") for index in range(2)))
            assert set(bound(api).values()) == {where}

    scene(0, play)


def test_a_group_stays_in_one_domain_of_the_label_that_it_asks_for() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        for name, zone in (("a", "east"), ("b", "west"), ("c", "west")):
            node(api, name, **{"topology.kubernetes.io_zone": zone})
        zone_of = {"a": "east", "b": "west", "c": "west"}
        group(api, "g", 2, schedulingConstraints={"topology": [{"key": "topology.kubernetes.io/zone"}]})
        group(api, "odd", 1, schedulingConstraints={"topology": [{"key": "example.com/shelf"}]})
        async with controller(access, folder):
            pod(api, "odd-0", "odd")
            await until(lambda: "which is not one topology level" in pending_message(api, "odd-0"))
            for index in range(2):
                pod(api, f"g-{index}", "g")
            await until(lambda: len(bound(api)) == 2)
            assert {zone_of[index] for index in bound(api).values()} == {"west"}

    scene(0, play)


def test_of_a_group_that_is_bound_in_part_the_rest_says_so() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        api.inject(Fault(verb="create", resource="pods/binding", skip=1, times=1_000, status=403))
        group(api, "g", 2)
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", "g", gpus=4)
            await until(lambda: len(bound(api)) == 1)
            remaining = next(name for name in ("g-0", "g-1") if name not in bound(api))
            await until(lambda: "403 Forbidden" in pending_message(api, remaining))
            await until(
                lambda: "1 of its pods are bound and stay; the rest could not be: " in pending_message(api, remaining)
            )

    scene(1, play)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"affinity": {"podAntiAffinity": {"x": []}}}, "does not support podAffinity or podAntiAffinity"),
        ({"affinity": required(key="a", operator="Near", values=["b"])}, "does not know the operator Near"),
        ({"affinity": required(key="a", operator="Gt", values=["b"])}, "one whole number"),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}, "there is no ResourceClaim x"),
    ],
)
def test_what_cannot_be_said_in_the_model_is_refused_on_the_pod(spec: dict[str, Any], why: str) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        async with controller(access, folder):
            pod(api, "odd", **spec)
            await until(lambda: why in pending_message(api, "odd"))
            assert not bound(api)

    scene(1, play)


def test_a_node_selector_and_a_pod_of_a_group_that_goes_are_heeded() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        group(api, "g", 2)
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", "g", nodeSelector={"pool": "a"})
            await until(lambda: pending_message(api, "g-0"))
            assert not bound(api)
            api.delete("pods", "g-1")
            for index in range(2):
                about = {"name": f"a{index}", "labels": {"pool": "a"}}
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": about, "status": OFFER})
            await until(lambda: "1 of at least 2 pods" in pending_message(api, "g-0"))
            assert not bound(api)
            pod(api, "g-1", "g", nodeSelector={"pool": "a"})
            await until(lambda: set(bound(api).values()) == {"a0", "a1"})

    scene(2, play)


def test_what_is_missing_of_a_group_is_not_kept_out_by_the_slots_that_its_own_gang_holds() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        fault = api.inject(Fault(verb="create", resource="pods/binding", skip=1, times=1_000, status=403))
        group(api, "g", 2)
        async with controller(access, folder) as system:
            for index in range(2):
                pod(api, f"g-{index}", "g", gpus=4)
            await until(
                lambda: any(
                    "binding is retried on the same node, where its slots stay allocated"
                    in pending_message(api, f"g-{index}")
                    for index in range(2)
                ),
                within_s=600,  # its thread takes as long as it takes, while virtual time goes on
            )
            pod(api, "small", gpus=4)
            api.server.faults.remove(fault)
            await until(lambda: {"g-0", "g-1"} <= bound(api).keys())
            assert "small" not in bound(api), "nobody else was given them"
            await until(lambda: system.state_of("g~1.default") == "running")

    scene(1, play)


def test_a_pod_that_was_bound_while_its_gang_waited_does_not_keep_the_others_waiting_for_its_slots() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        pod(api, "full", nodeName="n1", schedulerName="another")
        group(api, "g", 2)
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", "g")
            await until(lambda: "waiting for" in pending_message(api, "g-1"))
            actual = api.get("pods", "g-0")
            assert actual is not None
            about = {**actual["metadata"], "annotations": {"ganger.dev/devices": "0,1,2,3,4,5,6,7"}}
            api.put({**actual, "metadata": about, "spec": {**actual["spec"], "nodeName": "n0"}})  # a late bind
            api.delete("pods", "full")
            await until(lambda: bound(api) == {"g-0": "n0", "g-1": "n1"})

    scene(2, play)


def test_a_pod_that_is_bound_elsewhere_by_then_has_its_slots_to_itself() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        api.inject(Fault(verb="create", resource="pods/binding", times=2, delay_s=1.0))
        group(api, "g", 2)
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", "g")
            await asyncio.sleep(0.5)
            for index, on in enumerate(("n1", "n0")):  # in the other order than was decided
                actual = api.get("pods", f"g-{index}")
                assert actual is not None
                about = {**actual["metadata"], "annotations": {"ganger.dev/devices": "0,1,2,3,4,5,6,7"}}
                api.put({**actual, "metadata": about, "spec": {**actual["spec"], "nodeName": on}})
            pod(api, "late")
            await until(lambda: pending_message(api, "late"))
            await asyncio.sleep(60)
            assert set(bound(api)) == {"g-0", "g-1"}
            api.delete("pods", "g-0")
            await until(lambda: "late" in bound(api))

    scene(2, play)


def test_what_stands_on_a_node_that_was_lost_counts_there_when_it_comes_back() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        def ready(status: str) -> None:
            created = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}}
            api.put({**created, "status": {**OFFER, "conditions": [{"type": "Ready", "status": status}]}})

        ready("True")
        other = {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}}
        api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": other})
        async with controller(access, folder) as system:
            pod(api, "early", gpus=6)
            await until(lambda: bound(api))
            ready("Unknown")
            await asyncio.sleep(LOST_AFTER_S)
            await until(lambda: not system.state_of("early~1.default"))
            pod(api, "large", gpus=4)
            pod(api, "small", gpus=2)
            ready("True")
            await until(lambda: "small" in bound(api))
            await until(lambda: "4 free nvidia.com/gpu" in pending_message(api, "large"))
            assert gpus_of_nodes(api) == {"n0": 8}
            api.delete("pods", "early")
            await until(lambda: "large" in bound(api))

    scene(0, play)


FILLS = ((8,), (4, 4), (2, 2, 4), (6, 2), (2, 2, 2, 2), (1, 7))
"""Requests of pods that fill a node."""


@given(seed=st.integers(0, 2**32), nodes=st.lists(st.sampled_from(FILLS), min_size=1, max_size=4))
@examples(6)
def test_a_group_that_fills_the_cluster_is_whole_in_the_end_and_no_node_has_too_many(
    seed: int, nodes: list[tuple[int, ...]]
) -> None:
    rng, sizes = random.Random(seed), [size for node in nodes for size in node]
    rng.shuffle(sizes)
    members = len(sizes)

    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        for _ in range(rng.randrange(4)):
            status = rng.choice((403, 409, 429, 500, 503, 0, 0))
            skip, times = rng.randrange(members), rng.choice((1, 2, members))
            what = {"status": status} if status else rng.choice(({"lost": True}, {"dropped": True}, {"delay_s": 0.6}))
            api.inject(Fault(verb="create", resource="pods/binding", skip=skip, times=times, **what))
        group(api, "g", members)
        for index, size in enumerate(sizes):
            pod(api, f"g-{index}", "g", gpus=size)
        for _ in range(rng.randrange(3)):
            async with controller(access, folder):
                await asyncio.sleep(rng.choice((0.0, 0.05, 0.1, 0.3, 0.5, 2.0)))
        async with controller(access, folder):
            await until(lambda: len(bound(api)) == members, within_s=300)
            assert set(gpus_of_nodes(api).values()) == {8}

    scene(len(nodes), play)
