"""Karpenter beside ganger on a real cluster: it adds nodes for the placeholder pods of a gang, and removes them again.

Its nodes are objects alone, to which KWOK is the kubelet: gangs are bound there, and no launcher of theirs ever runs.
It skips where there is no cluster, or Karpenter is not built: `make operators` builds it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tools.controlled import Controlled, controlled
from tools.operators import OPERATORS, is_built, running_operator
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

POOL: Final = "gangs"
OF_POOL: Final = f"karpenter.sh/nodepool={POOL}"
CLASS: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": POOL}
NODE_POOL: Final = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": POOL},
    "spec": {
        "template": {"spec": {"nodeClassRef": CLASS, "requirements": [], "expireAfter": "Never"}},
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]},
    },
}
NODE_CLASS: Final = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": POOL}}
SIZE: Final = 3


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    if not is_built("karpenter"):
        pytest.skip("Karpenter is not built: `make operators` builds it")
    real_cluster.start("kwok")
    try:
        with (
            controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system,
            running_operator(OPERATORS["karpenter"], real_cluster) as log,
        ):
            for body in (NODE_CLASS, NODE_POOL):
                real_cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
            yield system
            print(log.read_text()[-4000:])
            system.kubectl("delete", "gangjobs", "--all")
            real_cluster.kubectl("delete", "nodepools", "--all")
            until(lambda: not nodes(system), "the nodes of the pool to go")
    finally:
        real_cluster.kill("kwok")


def nodes(system: Controlled) -> dict[str, Any]:
    """Return Karpenter's nodes by name."""
    listed = json.loads(system.on.kubectl("get", "nodes", "-l", OF_POOL, "-o", "json"))["items"]
    return {node["metadata"]["name"]: node for node in listed}


def placeholders(system: Controlled) -> list[Any]:
    listed: list[Any] = json.loads(system.kubectl("get", "pods", "-l", "ganger.dev/node-request", "-o", "json"))[
        "items"
    ]
    return listed


def state(system: Controlled) -> str:
    shown = system.on.kubectl("get", "nodepools,nodeclaims,nodes,pods", "--all-namespaces", "-o", "wide")
    events = system.on.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
    return f"\n{shown}\n{events[-3000:]}\n{system.log}"


def test_a_gang_is_bound_whole_to_nodes_that_karpenter_adds_and_they_go_after_it(system: Controlled) -> None:
    with system.policy(autoscaling={"after": "1s"}):
        system.submit("wide", nodes=SIZE, run="sleep 600", resources={"cpu": 48})

        def places() -> list[str]:
            return [pod["spec"].get("nodeName", "") for pod in system.pods("wide").values()]

        until(lambda: len(places()) == SIZE and all(places()), "the gang to be bound", lambda: state(system))
        added = nodes(system)
        assert sorted(places()) == sorted(added), "each pod has a node, and no node is added in vain"
        assert system.status("wide")["generation"] == 1, "it is started once"
        until(lambda: not placeholders(system), "the placeholders to go")
        system.kubectl("delete", "gangjob", "wide")
        until(lambda: not nodes(system), "Karpenter to remove its nodes", lambda: state(system))
        assert len(json.loads(system.on.kubectl("get", "nodes", "-o", "json"))["items"]) == 2, "the others stay"
