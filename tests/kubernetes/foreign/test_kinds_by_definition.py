"""Gangs of others, known by the definitions of their owners alone: the controller reads the objects that pods name."""

from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.foreign.gang_kinds import KINDS
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.binding import controller
from tests.kubernetes.foreign.scenes import bound, pending_message, pod, scene
from tests.waiting import until
from tools.fakeapi import FakeApi

PYTORCH = {"job-name": "g", "operator-name": "pytorchjob-controller", "replica-type": "worker"}
RESOURCES = {kind.name: kind.resource for kind in KINDS}


def put_owner(api: FakeApi, kind: str, spec: dict[str, Any], object_kind: str = "PodGroup") -> None:
    """Have the server serve a kind, and put one of it there."""
    resource = RESOURCES[kind]
    assert resource is not None
    versions = [{"name": resource.version, "served": True, "storage": True}]
    names = {"plural": resource.plural, "kind": object_kind}
    definition = {"group": resource.group, "names": names, "scope": "Namespaced", "versions": versions}
    metadata = {"name": f"{resource.plural}.{resource.group}"}
    version = "apiextensions.k8s.io/v1"
    api.put({"apiVersion": version, "kind": "CustomResourceDefinition", "metadata": metadata, "spec": definition})
    body = {"apiVersion": f"{resource.group}/{resource.version}", "kind": object_kind}
    api.put({**body, "metadata": {"name": "g", "namespace": "default"}, "spec": spec})


@pytest.mark.parametrize(
    ("kind", "annotations"),
    [
        ("Volcano PodGroup", {"scheduling.k8s.io/group-name": "g"}),
        ("KAI PodGroup", {"pod-group-name": "g"}),
        ("coscheduling PodGroup", {"scheduling.x-k8s.io/pod-group": "g"}),
        (
            "Koordinator gang",
            {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "3"},
        ),
    ],
)
def test_a_group_is_bound_whole(kind: str, annotations: dict[str, str]) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        if RESOURCES[kind] is not None:
            put_owner(api, kind, {"minMember": 3})
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", metadata={"annotations": annotations})
            await until(lambda: f"the {kind} g has 2 of at least 3 pods" in pending_message(api, "g-0"))
            assert not bound(api)
            pod(api, "g-2", metadata={"annotations": annotations})
            await until(lambda: len(bound(api)) == 3)

    scene(3, play)


def test_a_ray_cluster_that_scales_itself_waits_for_its_fewest_pods_only() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        def worker(index: int) -> None:
            labels = {"ray.io/cluster": "g", "ray.io/node-type": "worker", "ray.io/group": "small"}
            pod(api, f"worker-{index}", metadata={"labels": labels})

        group = {"groupName": "small", "replicas": 2, "minReplicas": 1, "maxReplicas": 9}
        spec = {"headGroupSpec": {}, "workerGroupSpecs": [group], "enableInTreeAutoscaling": True}
        put_owner(api, "RayCluster", spec, "RayCluster")
        async with controller(access, folder):
            head = {"ray.io/cluster": "g", "ray.io/node-type": "head", "ray.io/group": "headgroup"}
            pod(api, "head", metadata={"labels": head})
            await until(lambda: "has 1 of at least 2 pods" in pending_message(api, "head"))
            worker(0)
            await until(lambda: set(bound(api)) == {"head", "worker-0"})
            worker(1)
            await until(lambda: "worker-1" in bound(api))
            worker(2)  # it asks for more than before, and there is no node
            await until(lambda: pending_message(api, "worker-2"))
            assert len(bound(api)) == 3, "nothing of it is given up for what does not fit"

    scene(3, play)


def test_a_minimum_above_the_size_is_refused_on_the_pods_until_it_is_corrected() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        def elastic(least: int) -> dict[str, Any]:
            return {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}, "elasticPolicy": {"minReplicas": least}}

        labels = {f"training.kubeflow.org/{key}": value for key, value in PYTORCH.items()}
        put_owner(api, "PyTorchJob", elastic(8), "PyTorchJob")
        async with controller(access, folder):
            for index in range(2):
                pod(api, f"g-{index}", metadata={"labels": labels})
            await until(lambda: "is 8, and it has 2 pods: it could never start" in pending_message(api, "g-0"))
            assert not bound(api)
            put_owner(api, "PyTorchJob", elastic(2), "PyTorchJob")
            await until(lambda: len(bound(api)) == 2)

    scene(2, play)
