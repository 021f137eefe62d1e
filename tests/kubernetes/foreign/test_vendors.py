"""GPUs of several vendors in one cluster: every pod stands on a node that has the resource that it asks for.

A kubelet drops an extended resource that its node does not have: the pod would run there without a device, and succeed.
"""

from pathlib import Path
from typing import Any

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import controller
from tests.kubernetes.foreign.scenes import bound, group, pending_message, scene
from tests.waiting import until
from tools.fakeapi import FakeApi

VENDORS = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/xe")
NOBODYS = "huawei.com/Ascend910"
GPUS = 8


def nodes_of_all_vendors(api: FakeApi) -> dict[str, str]:
    """Put a node of each vendor; return the resources by node."""
    resources = {f"node-{index}": resource for index, resource in enumerate(VENDORS)}
    for name, resource in resources.items():
        offer = {"cpu": "64", "memory": "512Gi", "pods": "110", resource: str(GPUS)}
        api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": offer}})
    return resources


def pod(api: FakeApi, name: str, of: str = "", **limits: str) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    spec: dict[str, Any] = {"schedulerName": "ganger", "containers": [container]}
    spec |= {"schedulingGroup": {"podGroupName": of}} if of else {}
    about = {"name": name, "namespace": "default"}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": {"phase": "Pending"}})


def asking(resource: str, amount: int) -> dict[str, str]:
    return {resource: str(amount)}


def test_foreign_pods_are_bound_to_nodes_with_the_resource_that_they_ask_for() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        resources = nodes_of_all_vendors(api)
        asked = {f"pod-{index}": VENDORS[(3 * index) % len(VENDORS)] for index in range(4 * len(VENDORS))}
        async with controller(access, folder):
            for name, resource in asked.items():
                pod(api, name, **asking(resource, 2))
            pod(api, "nobodys", **asking(NOBODYS, 1))
            pod(api, "of-two", **asking(VENDORS[0], 1), **asking(VENDORS[1], 1))
            await until(lambda: len(bound(api)) == len(asked))
            await until(lambda: f"1 free {NOBODYS}: no node" in pending_message(api, "nobodys"))
            await until(lambda: "ask for one of them" in pending_message(api, "of-two"))
            assert {name: resources[node] for name, node in bound(api).items()} == asked
            pod(api, "too-many", **asking(VENDORS[1], 1))
            await until(lambda: f"waiting for 1 node with 1 free {VENDORS[1]}" in pending_message(api, "too-many"))
            api.delete("pods", next(name for name, resource in asked.items() if resource == VENDORS[1]))
            await until(lambda: resources[bound(api).get("too-many", "node-0")] == VENDORS[1])

    scene(0, play)


def test_a_group_of_pods_without_and_with_gpus_gets_nodes_of_both_kinds() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        resources = nodes_of_all_vendors(api)
        offer = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cpus"}, "status": {"allocatable": offer}})
        group(api, "g", 2)
        async with controller(access, folder):
            pod(api, "launcher", "g", cpu="64")
            pod(api, "worker", "g", **asking(VENDORS[2], GPUS), cpu="64")
            await until(lambda: len(bound(api)) == 2)
            assert resources[bound(api)["worker"]] == VENDORS[2]

    scene(0, play)
