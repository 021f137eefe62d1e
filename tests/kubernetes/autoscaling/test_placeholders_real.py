"""Placeholder pods on a real cluster: kube-scheduler places them, and kubelets take the gang once they are gone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tools.controlled import OVER, Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until


@pytest.fixture(scope="module", name="controlled")
def its_controller(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("autoscaling")) as system:
        yield system


def apply(system: Controlled, **body: Any) -> None:
    system.on.kubectl("apply", "-f", "-", input=json.dumps(body))


def test_a_gang_takes_the_nodes_that_its_placeholders_hold(controlled: Controlled) -> None:
    nodes = json.loads(controlled.on.kubectl("get", "nodes", "-o", "json"))["items"]
    host = nodes[0]["metadata"]["name"]
    most = min(int(node["status"]["allocatable"]["cpu"]) for node in nodes)
    cpu = f"{600 * most}m"
    container = {"name": "c", "image": BASE_IMAGE, "command": ["sleep", "600"], "resources": {"requests": {"cpu": cpu}}}
    blocker = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "blocker", "namespace": controlled.namespace}}
    apply(controlled, **blocker, spec={"nodeName": host, "containers": [container], "terminationGracePeriodSeconds": 0})
    with controlled.policy(autoscaling={"after": "1s"}):
        controlled.submit("wide", nodes=len(nodes), run="echo here", resources={"cpu": cpu})

        def holders() -> list[str]:
            pods = json.loads(controlled.kubectl("get", "pods", "-l", "ganger.dev/node-request", "-o", "json"))["items"]
            return [pod["spec"].get("nodeName", "") for pod in pods]

        others = sorted(node["metadata"]["name"] for node in nodes[1:])
        until(lambda: sorted(holders()) == ["", *others], "placeholders on the other nodes: ", lambda: str(holders()))
        until(lambda: "placeholder pods" in controlled.status("wide").get("message", ""), "the pending reason")
        controlled.kubectl("delete", "pod", "blocker", "--force", "--grace-period=0")
        status = controlled.wait("wide", *OVER)
        assert (status["phase"], status["generation"]) == ("Succeeded", 1), status
        assert status["startup"]["attempt"] == 1
        until(lambda: not holders(), "the placeholders to go")
