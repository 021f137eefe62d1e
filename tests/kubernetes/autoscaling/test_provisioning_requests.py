"""Nodes requested by ProvisioningRequests: when, once, with what, and what the autoscaler answers."""

import asyncio
from typing import Any

import kubernetes_validate
import pytest

from ganger.model.policy import Autoscaling
from tests.kubernetes.autoscaling.scene import CLASS, Scene, play, request_crd
from tests.kubernetes.jobs.test_gang_jobs import put
from tests.waiting import until


async def requested(scene: Scene, **spec: Any) -> Any:
    """Create a job and return the request for its nodes."""
    put(scene.api, **spec)
    await until(scene.requests)
    (request,) = scene.requests()
    return request


def test_a_gang_larger_than_the_cluster_is_requested_once_and_starts_on_the_new_nodes() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            event_loop = asyncio.get_running_loop()
            begin_s = event_loop.time()
            request = await requested(scene)
            assert event_loop.time() - begin_s >= 60, "not before the policy's time"
            assert request["metadata"]["name"] == "big.nodes-1"
            assert request["metadata"]["ownerReferences"][0]["kind"] == "GangJob"
            sets = [{"count": 2, "podTemplateRef": {"name": "big.nodes-1-0"}}]
            assert request["spec"] == {"provisioningClassName": CLASS, "podSets": sets}
            await until(lambda: "nodes are requested" in scene.message())
            scene.answer("Provisioned", "2 nodes are there")
            await until(lambda: "the autoscaler says Provisioned (2 nodes are there)" in scene.message())
            assert scene.message().startswith("needs 2 nodes")
            scene.add_node("n1")
            await until(lambda: scene.bound() == ["n0", "n1"])
            await until(lambda: not scene.requests() and not scene.api.objects("podtemplates"))
            assert system.state_of("big.default") == "starting"
            assert "autoscaler" not in scene.message()

    play(played, request_crd())


def test_the_template_asks_for_what_the_gangs_pods_will() -> None:
    async def played(scene: Scene) -> None:
        scene.add_node("n1", zone="a")
        async with scene.leads():
            await requested(
                scene,
                nodes=3,
                resources={"gpu": "h100:8", "cpu": 4, "memory": "10Gi", "extended": {"rdma/hca": 1}},
                placement={
                    "node_selector": {"zone": "a"},
                    "tolerations": ["spot=yes"],
                    "affinity": {"required": ["cores>32", "!broken"]},
                },
            )
            (template,) = scene.api.objects("podtemplates")
            spec: Any = template["template"]["spec"]
            (container,) = spec["containers"]
            amounts = {"memory": str(10 << 30), "nvidia.com/gpu": "8", "rdma/hca": "1"}
            assert container["resources"] == {"requests": {"cpu": "4000m", **amounts}, "limits": amounts}
            assert spec["nodeSelector"] == {"zone": "a"}
            assert spec["tolerations"] == [{"key": "spot", "operator": "Equal", "value": "yes"}]
            required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            of_type = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]}
            assert [term["matchExpressions"] for term in required["nodeSelectorTerms"]] == [
                [{"key": "cores", "operator": "Gt", "values": ["32"]}, of_type],
                [{"key": "broken", "operator": "DoesNotExist"}, of_type],
            ]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
            kubernetes_validate.validate(pod, "1.33", strict=True)

    play(played, request_crd())


def test_a_gpu_type_that_no_node_has_had_is_not_guessed() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            put(scene.api, resources={"gpu": "b200:8"})
            await until(lambda: "it is not known by which label to ask for them" in scene.message())
            assert not scene.requests()

    play(played, request_crd())


def test_a_controller_that_takes_over_requests_nothing_twice_and_removes_what_is_not_wanted() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            request = await requested(scene)
        async with scene.leads():
            await until(lambda: "since" in scene.message())
            await asyncio.sleep(60)
            assert scene.requests() == [request]
        scene.api.delete("gangjobs", "big")
        await until(lambda: not scene.requests())

        put(scene.api)
        async with scene.leads():
            await until(scene.requests)
        stopped: Any = scene.api.get("gangjobs", "big")
        scene.api.put(stopped | {"spec": stopped["spec"] | {"stop": True}})
        async with scene.leads():
            await until(lambda: not scene.requests() and not scene.api.objects("podtemplates"))

    play(played, request_crd())


@pytest.mark.parametrize("how", ["deleted", "edited", "emptied"])
def test_a_request_that_others_delete_or_edit_is_made_again(how: str) -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            request = await requested(scene)
            if how == "deleted":
                scene.api.delete("provisioningrequests", "big.nodes-1")
            else:
                spec = {} if how == "emptied" else request["spec"] | {"provisioningClassName": "dear"}
                scene.api.put(request | {"spec": spec})
            await until(lambda: [item["spec"] for item in scene.requests()] == [request["spec"]])

    play(played, request_crd())


def test_what_the_autoscaler_does_not_do_is_said_and_asked_for_again_later() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            request = await requested(scene)
            for type_ in ("CapacityRevoked", "BookingExpired", "Failed"):
                scene.answer(type_, "out of stock")
                await until(lambda said=type_: f"the autoscaler says {said} (out of stock)" in scene.message())
            await asyncio.sleep(300)
            assert [item["metadata"]["uid"] for item in scene.requests()] == [request["metadata"]["uid"]]
            await asyncio.sleep(600)
            (again,) = scene.requests()
            assert again["metadata"]["uid"] != request["metadata"]["uid"]
            await until(lambda: "has not answered yet" in scene.message())

    play(played, request_crd())


def test_a_status_of_another_form_ends_nothing() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            request = await requested(scene)
            for status in ({"conditions": None}, {"conditions": [{"type": None}]}, {"conditions": "none"}):
                scene.api.put(request | {"status": status})
                await asyncio.sleep(20)
                await until(lambda: "has not answered yet" in scene.message())
            scene.answer("Failed", "", time="some day")
            await until(lambda: "says Failed" in scene.message())
            assert len(scene.requests()) == 1

    play(played, request_crd())


def test_a_request_of_that_name_that_is_not_gangers_is_named_and_left() -> None:
    async def played(scene: Scene) -> None:
        theirs = {
            "apiVersion": "autoscaling.x-k8s.io/v1",
            "kind": "ProvisioningRequest",
            "metadata": {"name": "big.nodes-1", "namespace": "default"},
            "spec": {},
        }
        scene.api.put(theirs)
        async with scene.leads():
            put(scene.api)
            await until(lambda: "there is another ProvisioningRequest big.nodes-1" in scene.message())
            (left,) = scene.requests()
            assert left["spec"] == {}

    play(played, request_crd())


def test_without_the_policy_a_gang_larger_than_the_cluster_waits_and_nothing_is_requested() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads(Autoscaling()):
            put(scene.api)
            await until(lambda: scene.message().startswith("needs 2 nodes"))
            await asyncio.sleep(120)
            assert not scene.requests()

    play(played, request_crd())


def test_devices_of_claims_are_asked_of_no_autoscaler() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            put(scene.api, resources={"gpu": 8, "extended": {"devices.ganger.dev/nic-1": 1}})
            await until(lambda: "no autoscaler knows the devices of its claims; add nodes" in scene.message())
            await asyncio.sleep(30)
            assert not scene.requests()
            assert not scene.api.objects("podtemplates")

    play(played, request_crd())


def test_nodes_are_requested_for_a_network_that_no_node_is_on_yet() -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads():
            request = await requested(scene, placement={"network": "ib"})
            assert request["spec"]["podSets"] == [{"count": 2, "podTemplateRef": {"name": "big.nodes-1-0"}}]

    play(played, request_crd())
