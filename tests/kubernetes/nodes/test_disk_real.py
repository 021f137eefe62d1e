"""Disk of real nodes: gangs and foreign pods are placed where it is free, and kubelets admit them."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tools.controlled import OVER, Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

DISK: Final = "ephemeral-storage"


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        offer(real_cluster, "20Gi")
        yield system
        offer(real_cluster, None)


def offer(cluster: Cluster, size: str | None) -> None:
    """Have the nodes offer disk: their kubelets do not measure it, and keep what is written there."""
    status = {"status": {name: {DISK: size} for name in ("capacity", "allocatable")}}
    for node in cluster.ready_nodes():
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", json.dumps(status))


def create(system: Controlled, name: str, size: str, **spec: Any) -> None:
    needs = {"requests": {"cpu": "10m", DISK: size}}
    container = {"name": "c", "image": BASE_IMAGE, "command": ["sleep", "600"], "resources": needs}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": system.namespace}, "spec": spec}
    system.on.kubectl("apply", "-f", "-", input=json.dumps(body))


def pod_of(system: Controlled, name: str) -> Any:
    return json.loads(system.kubectl("get", "pod", name, "-o", "json"))


def test_disk_is_where_pods_go_and_what_they_wait_for(system: Controlled) -> None:
    create(system, "theirs", "5Gi")
    system.kubectl("wait", "--for=condition=Ready", "pod/theirs", "--timeout=60s")
    shared = pod_of(system, "theirs")["spec"]["nodeName"]
    system.submit("scratch", run="sleep 600", resources={"cpu": "100m", "extended": {DISK: "16Gi"}})
    until(lambda: [pod["status"]["phase"] for pod in system.pods("scratch").values()] == ["Running"], "it to run")
    (pod,) = system.pods("scratch").values()
    assert pod["spec"]["nodeName"] != shared
    assert pod["spec"]["containers"][0]["resources"]["limits"][DISK] == str(16 << 30)
    create(system, "ours", "12Gi", schedulerName="ganger")
    system.kubectl("wait", "--for=condition=Ready", "pod/ours", "--timeout=60s")
    assert pod_of(system, "ours")["spec"]["nodeName"] == shared

    asked = {"cpu": "100m", "extended": {DISK: "10Gi"}}
    system.submit("wide", nodes=2, run="true", resources=asked)
    until(
        lambda: "10Gi free ephemeral-storage" in message(system, "wide"),
        "why it waits",
        lambda: message(system, "wide"),
    )
    system.kubectl("delete", "gangjob", "scratch")
    system.kubectl("delete", "pod", "ours")
    assert system.wait("wide", *OVER)["phase"] == "Succeeded"
    system.submit("huge", run="true", resources={"cpu": "100m", "extended": {DISK: "21Gi"}})
    waits = "no node in the cluster could hold it, even if idle"  # but a larger one may join
    until(lambda: waits in message(system, "huge"), "that it is too large", lambda: message(system, "huge"))


def message(system: Controlled, name: str) -> str:
    return json.dumps(system.status(name))
