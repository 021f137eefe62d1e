"""kube-scheduler beside ganger on real nodes: it takes a node while ganger's binding to it is on its way."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any, Final

from tools.controlled import OVER, Controlled, controlled
from tools.fakeapi import Fault, FaultProxy
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

CPU: Final = "1200m"
"""More than half of a node."""
DELAY_S: Final = 6.0


def other_pod(namespace: str) -> Any:
    container = {"name": "c", "image": BASE_IMAGE, "command": ["sleep", "600"], "resources": {"requests": {"cpu": CPU}}}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": namespace}, "spec": spec}


def nodes_of(system: Controlled, name: str) -> list[str]:
    """Return the nodes of its pods that have not ended."""
    pods = [pod for pod in system.pods(name).values() if pod["status"]["phase"] in ("Pending", "Running")]
    return [node for pod in pods if (node := pod["spec"].get("nodeName"))]


def race(cluster: Cluster, folder: Path, url: str) -> None:
    with controlled(cluster, folder, url) as system:
        system.submit("pair", nodes=2, run="true", resources={"cpu": CPU}, retry={"max": 0})
        until(lambda: len(nodes_of(system, "pair")) == 1, "the first of two pods to be bound")
        system.on.kubectl("apply", "-f", "-", input=json.dumps(other_pod(system.namespace)))
        system.kubectl("wait", "--for=condition=Ready", "pod/other", "--timeout=30s")
        assert len(nodes_of(system, "pair")) == 1, "kube-scheduler was not faster"
        system.wait("pair", "Pending")
        until(lambda: not nodes_of(system, "pair"), "nothing of it to be bound")
        system.kubectl("delete", "pod", "other")
        status = system.wait("pair", *OVER)
        assert (status["phase"], status["generation"] > 1) == ("Succeeded", True), status


def test_a_node_that_kube_scheduler_took_holds_no_half_gang(real_cluster: Cluster, tmp_path: Path) -> None:
    async def play() -> None:
        trust = ssl.create_default_context(cafile=real_cluster.shape.pki / "ca.pem")
        async with FaultProxy(real_cluster.shape.url, trust) as proxy:
            proxy.inject(Fault(verb="create", resource="pods/binding", skip=1, delay_s=DELAY_S))
            await asyncio.to_thread(race, real_cluster, tmp_path, proxy.url)

    asyncio.run(play())
