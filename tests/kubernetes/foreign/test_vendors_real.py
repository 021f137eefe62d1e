"""GPUs of four vendors on real kubelets, which drop what their node does not offer: each pod asks for what it has."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kubernetes.foreign.test_vendors import VENDORS
from tools.controlled import OVER, Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

GPUS = 4


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        yield system


@contextmanager
def offering(cluster: Cluster, resource_of: Mapping[str, str]) -> Iterator[None]:
    """Have each node offer GPUs of one vendor for the duration of the context."""

    def patch(amount: str | None) -> None:
        for node, resource in resource_of.items():
            status = {"status": {field: {resource: amount} for field in ("capacity", "allocatable")}}
            cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(status))

    patch(str(GPUS))
    try:
        yield
    finally:
        patch(None)


def of_another(system: Controlled, name: str, resource: str) -> None:
    """Create a pod of somebody else, which ganger is to place."""
    needs = {"limits": {resource: "2"}}
    container = {"name": "c", "image": BASE_IMAGE, "command": ["true"], "resources": needs}
    spec = {"schedulerName": "ganger", "restartPolicy": "Never", "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": system.namespace}, "spec": spec}
    system.on.kubectl("apply", "-f", "-", input=json.dumps(body))


@pytest.mark.parametrize("vendors", [VENDORS[:2], VENDORS[2:]])
def test_each_pod_asks_for_the_resource_of_its_node(system: Controlled, vendors: tuple[str, ...]) -> None:
    resource_of = dict(zip(sorted(system.on.ready_nodes()), vendors, strict=True))
    with offering(system.on, resource_of):
        for index, (node, resource) in enumerate(resource_of.items()):
            until(lambda node=node: {row["name"]: row["gpus"] for row in system.client.nodes()}[node] == GPUS, node)
            system.submit(f"any-{index}", run="true", resources={"gpu": GPUS, "cpu": "100m"})
            of_another(system, f"their-{index}", resource)
        assert [system.wait(f"any-{index}", *OVER)["phase"] for index in range(len(vendors))] == ["Succeeded"] * 2
        until(lambda: _unfinished(system) == [], "the pods of others to run", lambda: str(_unfinished(system)))
        pods = json.loads(system.kubectl("get", "pods", "-o", "json"))["items"]
        assert len(pods) >= 2 * len(vendors)
        for pod in pods:
            asked = {name for name in pod["spec"]["containers"][0]["resources"]["limits"] if "/" in name}
            assert asked == {resource_of[pod["spec"]["nodeName"]]}, pod["metadata"]["name"]
    system.kubectl("delete", "gangjobs,pods", "--all", "--wait=true")


def _unfinished(system: Controlled) -> list[Any]:
    pods = json.loads(system.kubectl("get", "pods", "-o", "json"))["items"]
    theirs = [pod for pod in pods if pod["metadata"]["name"].startswith("their-")]
    return [(pod["metadata"]["name"], pod["status"]) for pod in theirs if pod["status"]["phase"] != "Succeeded"]
