"""Nodes requested by placeholder pods, where the cluster has no ProvisioningRequests that ganger knows."""

import asyncio
from typing import Any

import kubernetes_validate
import pytest

from ganger.backends.kubernetes.nodes.placeholders import Placeholders
from ganger.controller.autoscaling.node_demand import NodeDemand
from ganger.controller.autoscaling.placeholder_pods import PlaceholderPods
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.gang_jobs.node_request_template import PodSet, RequestNames
from ganger.gang_jobs.pod_template import owner_reference
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.objects import Key
from ganger.model.policy import Autoscaling
from tests.kubernetes.autoscaling.scene import Scene, play, request_crd
from tests.kubernetes.jobs.test_gang_jobs import put
from tests.waiting import until
from tools.fakeapi import Fault


def schedule(scene: Scene, index: int, node: str) -> None:
    """Bind a placeholder as the default scheduler does."""
    pod: Any = scene.api.get("pods", f"big.nodes-1-{index}")
    scene.api.put(pod | {"spec": pod["spec"] | {"nodeName": node}})


@pytest.mark.parametrize("definitions", [(), (request_crd("v2alpha1"),)], ids=["none", "an unknown version"])
def test_placeholders_stand_for_the_gang_until_its_nodes_are_there(definitions: tuple[Any, ...]) -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            put(scene.api)
            await until(lambda: len(scene.placeholders()) == 2)
            for pod in scene.placeholders():
                spec = pod["spec"]
                assert (spec["schedulerName"], spec["priorityClassName"]) == ("default-scheduler", "ganger-placeholder")
                assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
                (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                assert apart["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
                assert [owner["kind"] for owner in pod["metadata"]["ownerReferences"]] == ["GangJob"]
                kubernetes_validate.validate(pod, "1.33", strict=True)
            schedule(scene, 0, "n0")
            await until(lambda: "by placeholder pods (1 of 2 have one)" in scene.message())
            with system.loop.view() as state:
                assert not state.nodes.nodes[0].foreign, "what a placeholder has is free for the gang"
            scene.add_node("n1")
            schedule(scene, 1, "n1")
            await until(lambda: scene.bound() == ["n0", "n1"])
            assert not scene.placeholders(), "they are gone before the gang is bound"

    play(played, *definitions)


def test_one_that_is_preempted_or_deleted_is_made_again_and_a_forged_one_is_removed() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            put(scene.api)
            await until(lambda: len(scene.placeholders()) == 2)
            names = [pod["metadata"]["name"] for pod in scene.placeholders()]
            first: Any = scene.api.get("pods", names[0])
            scene.api.put(first | {"status": {"phase": "Failed", "reason": "Preempted"}})
            scene.api.delete("pods", names[1])
            forged = first | {"metadata": {"name": "forged", "namespace": "default"}}
            scene.api.put(forged)
            await until(lambda: scene.api.get("pods", "forged") is None)
            await until(lambda: [pod["metadata"]["name"] for pod in scene.placeholders()] == names)
            await until(lambda: all(pod["status"].get("phase") != "Failed" for pod in scene.placeholders()))

    play(played)


def test_a_controller_that_takes_over_makes_none_twice_and_a_policy_without_them_removes_them() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            put(scene.api)
            await until(lambda: len(scene.placeholders()) == 2)
            before = [pod["metadata"]["uid"] for pod in scene.placeholders()]
        async with scene.leads():
            await asyncio.sleep(120)
            assert [pod["metadata"]["uid"] for pod in scene.placeholders()] == before
        async with scene.leads(Autoscaling()):
            await until(lambda: not scene.placeholders())

    play(played)


def test_a_namespace_that_may_not_have_them_says_so() -> None:
    async def played(scene: Scene) -> None:
        refusal = 'pods "big.nodes-1-0" is forbidden: exceeded quota: few'
        scene.api.inject(Fault(verb="create", resource="pods", status=403, message=refusal, times=100))
        async with scene.leads():
            put(scene.api)
            await until(lambda: "exceeded quota: few" in scene.message())

    play(played)


def test_a_gang_is_bound_although_its_kubelet_does_not_end_a_placeholder() -> None:
    async def played(scene: Scene) -> None:
        scene.api.kubelet.stop_s = 600
        async with scene.leads() as system:
            put(scene.api)
            await until(lambda: len(scene.placeholders()) == 2)
            schedule(scene, 0, "n0")
            await until(lambda: system.backend.pods[Key("default", "big.nodes-1-0")].spec.node_name == "n0")
            scene.add_node("n1")
            await until(lambda: scene.bound() == ["n0", "n1"])

    play(played)


@pytest.mark.parametrize("status", [403, 409])
def test_a_placeholder_that_cannot_be_deleted_costs_no_attempt(status: int) -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            put(scene.api)
            await until(lambda: len(scene.placeholders()) == 2)
            schedule(scene, 0, "n0")
            await until(lambda: system.backend.pods[Key("default", "big.nodes-1-0")].spec.node_name == "n0")
            scene.api.inject(Fault(verb="delete", resource="pods", status=status, times=1_000))
            scene.add_node("n1")
            await until(lambda: scene.bound() == ["n0", "n1"])
            with system.loop.view() as state:
                assert state.gangs["big.default"].attempt.generation == 1

    play(played)


def test_one_whose_gang_starts_while_it_is_being_created_does_not_stay() -> None:
    async def played(scene: Scene) -> None:
        creating = [scene.api.inject(Fault(verb="create", resource="pods", delay_s=delay_s)) for delay_s in (20, 60)]
        deleting = scene.api.inject(Fault(verb="delete", resource="pods", name="big.nodes-*", times=1_000))
        async with scene.leads():
            put(scene.api)
            await until(lambda: all(fault.struck for fault in creating))
            scene.add_node("n1")
            await until(lambda: scene.bound() == ["n0", "n1"])
            assert not deleting.struck, "they are still being created"
            await until(lambda: deleting.struck == 1)  # at once, not with the next pass: this one still creates
            assert not scene.placeholders()

    play(played)


def test_none_is_created_for_a_gang_that_is_being_bound_or_without_the_lease() -> None:
    async def played(scene: Scene) -> None:
        put(scene.api)
        job: Any = scene.api.get("gangjobs", "big")
        key, leads = Key("default", "big.nodes-1"), False
        names = RequestNames(
            key.name, key.namespace, "big", owner_reference(Key("default", "big"), job["metadata"]["uid"])
        )
        pod = {"containers": [{"name": "ganger-placeholder", "image": "i"}]}
        async with ApiClient(scene.access, PROGRAM) as api:
            known = Placeholders(api, lambda: True)
            placeholders = PlaceholderPods(api, known, lambda: leads)
            await placeholders.reconcile({key: NodeDemand(names, [PodSet(2, pod)])})
            assert not scene.placeholders()
            leads = True
            await known.clear(["n0"], key)
            await placeholders.reconcile({key: NodeDemand(names, [PodSet(2, pod)])})
            assert not scene.placeholders()
            known.cleared.clear()
            await placeholders.reconcile({key: NodeDemand(names, [PodSet(2, pod)])})
            assert len(scene.placeholders()) == 2

    play(played)
