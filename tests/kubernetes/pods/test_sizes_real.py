"""On two real kubelets: a gang is preempted for a guarantee, shrunk for another job, grown, and takes its spare."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.foreign.test_vendors import VENDORS
from tests.kubernetes.foreign.test_vendors_real import offering
from tools.controlled import Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

GPUS = 4
"""Of each node, as the fixture offers them."""
SLEEPS = "trap 'exit 0' TERM; sleep 600 & wait"
WHOLE = {"gpu": GPUS, "cpu": "100m"}


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    """Run a controller on nodes with GPUs."""
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        nodes = sorted(real_cluster.ready_nodes())
        with offering(real_cluster, dict.fromkeys(nodes, VENDORS[0])):
            until(lambda: [row["gpus"] for row in system.client.nodes()] == [GPUS] * len(nodes), "the GPUs of nodes")
            yield system


@pytest.fixture(autouse=True)
def empty(system: Controlled) -> Iterator[None]:
    """Leave no job to the next test."""
    yield
    system.kubectl("delete", "gangjobs", "--all", "--wait=true")
    until(lambda: not system.kubectl("get", "pods", "-o", "name").strip(), "the pods to be gone")


def nodes_of(system: Controlled, name: str) -> list[str]:
    """Return the nodes of the pods of a job that are not being deleted."""
    pods = [pod for pod in system.pods(name).values() if "deletionTimestamp" not in pod["metadata"]]
    return sorted(pod["spec"].get("nodeName", "") for pod in pods if pod["status"]["phase"] == "Running")


def until_on(system: Controlled, name: str, count: int) -> None:
    """Wait until a job runs on so many nodes."""
    until(lambda: len(nodes_of(system, name)) == count, f"{name} on {count} nodes", lambda: str(system.status(name)))


def put_queue(system: Controlled, name: str, **spec: Any) -> None:
    body = {"apiVersion": "ganger.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    system.on.kubectl("apply", "-f", "-", input=json.dumps(body))


def test_a_gang_beyond_its_guarantee_is_preempted_for_one_within_it(system: Controlled) -> None:
    for name in ("own", "other"):
        put_queue(system, name, nominal={"gpus": GPUS})
    system.submit("borrows", nodes=2, run=SLEEPS, queue="other", resources=WHOLE)
    until_on(system, "borrows", 2)
    system.submit("guaranteed", run="true", queue="own", resources=WHOLE)
    assert system.wait("guaranteed", "Succeeded")["generation"] == 1
    until_on(system, "borrows", 2)
    assert system.status("borrows")["generation"] == 2
    system.kubectl("delete", "gangjobs", "--all", "--wait=true")
    system.on.kubectl("delete", "queue", "own", "other")


def test_an_elastic_gang_shrinks_for_another_job_and_grows_again(system: Controlled) -> None:
    system.submit("elastic", nodes="1..2", run=SLEEPS, resources=WHOLE)
    until_on(system, "elastic", 2)
    system.submit("small", run=SLEEPS, resources=WHOLE)
    until_on(system, "small", 1)
    until_on(system, "elastic", 1)
    assert not {*nodes_of(system, "small")} & {*nodes_of(system, "elastic")}
    system.kubectl("delete", "gangjob", "small", "--wait=true")
    system.kubectl("patch", "gangjob", "elastic", "--type=merge", "-p", json.dumps({"spec": {"scale": 2}}))
    until_on(system, "elastic", 2)
    assert system.status("elastic")["generation"] == 3


def test_a_spare_is_taken_when_a_node_is_drained(system: Controlled) -> None:
    system.submit("spared", nodes=1, spares=1, run=SLEEPS, resources=WHOLE)
    until_on(system, "spared", 1)
    (first,) = nodes_of(system, "spared")
    try:
        system.drain(first, "spared")
        until(lambda: nodes_of(system, "spared") not in ([], [first]), "it goes on on its spare")
    finally:
        system.on.kubectl("uncordon", first)
    assert system.status("spared")["generation"] == 2
