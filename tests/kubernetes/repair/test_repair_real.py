"""Repair of a real node: a cordon that its kubelet and kubectl know, hooks as Jobs, a controller that is killed."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tools.controlled import OWN, Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

RESET = "echo no device $GANGER_GPU on $GANGER_NODE >&2; exit 3"
HOOKS: dict[str, Any] = {
    "image": BASE_IMAGE,
    "reset_device": ["sh", "-c", RESET],
    "reboot": ["sh", "-c", "sleep 3"],
    "test": ["sh", "-c", "sleep 3"],
    "timeout": "2m",
}


@pytest.fixture(scope="module")
def system(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(own_cluster, tmp_path_factory.mktemp("controller")) as system:
        yield system


def node_of(system: Controlled, name: str) -> Any:
    return json.loads(system.on.kubectl("get", "node", name, "-o", "json"))


def health(system: Controlled, name: str) -> Any:
    """Return the health of a node as the controller lists it."""
    rows = system.client.node_health()["nodes"]
    return next((row for row in rows if row["node"] == name), {"state": "healthy"})


def jobs(system: Controlled, name: str) -> list[tuple[str, str]]:
    """Return step and node of the pods of each Job of a node, in order of creation."""
    listed = system.on.kubectl(
        "get", "jobs", "-n", OWN, "-l", "ganger.dev/repair", "--sort-by=.metadata.creationTimestamp", "-o", "json"
    )
    items = [job for job in json.loads(listed)["items"] if job["metadata"]["annotations"]["ganger.dev/node"] == name]
    return [(job["metadata"]["labels"]["ganger.dev/repair"], job["metadata"]["name"]) for job in items]


def node_of_pod(system: Controlled, job: str) -> str:
    """Return the node on which the pod of a Job ran."""
    listed = system.on.kubectl("get", "pods", "-n", OWN, "-l", f"batch.kubernetes.io/job-name={job}", "-o", "json")
    (pod,) = json.loads(listed)["items"]
    return str(pod["spec"]["nodeName"])


def test_a_node_is_cordoned_repaired_tested_and_back_with_a_controller_killed_in_between(
    system: Controlled, capsys: pytest.CaptureFixture[str]
) -> None:
    name = min(system.on.ready_nodes())
    with system.policy(node_health={"hooks": HOOKS, "probation": {"time": "1h"}}):
        begun_s = time.monotonic()
        system.client.repair_node(name, reason="Xid 79")
        until(lambda: node_of(system, name)["spec"].get("unschedulable"), "the node to be cordoned")
        until(lambda: len(jobs(system, name)) == 2, "the second hook", lambda: str(health(system, name)))
        assert "the hook exited with code 3: no device" in health(system, name)["sentence"]
        system.end(kill=True)
        system.start()
        assert health(system, name)["state"] in ("repairing", "validating"), "the next controller knows it"
        until(lambda: health(system, name)["state"] == "probation", "its return", lambda: str(health(system, name)))
        took_s = time.monotonic() - begun_s
        until(lambda: not node_of(system, name)["spec"].get("unschedulable"), "the cordon to be undone")
        assert "ganger.dev/cordoned" not in node_of(system, name)["metadata"]["annotations"]
        ran = jobs(system, name)
        assert [step for step, _ in ran] == ["reset_device", "reboot", "test"]
        places = {step: node_of_pod(system, job) for step, job in ran}
        assert places["reset_device"] == places["test"] == name
        assert places["reboot"] != name
        with capsys.disabled():
            print(f"\ntime to pool: {took_s:.1f} s, with a controller killed and restarted in between")
        system.on.kubectl("delete", "jobs", "-n", OWN, "-l", "ganger.dev/repair")


def test_a_person_who_undoes_the_cordon_returns_the_node(system: Controlled) -> None:
    name = max(system.on.ready_nodes())
    with system.policy(node_health={"hooks": {"test": ["true"]}}):
        system.client.retire_node(name, reason="a part is on its way")
        until(lambda: node_of(system, name)["spec"].get("unschedulable"), "the node to be cordoned")
        system.on.kubectl("uncordon", name)
        until(lambda: health(system, name)["state"] == "probation", "its return", lambda: str(health(system, name)))
        until(lambda: "ganger.dev/cordoned" not in node_of(system, name)["metadata"]["annotations"], "the mark to go")
        assert not node_of(system, name)["spec"].get("unschedulable")
