"""Failures on a real cluster, from which a gang recovers: an evicted pod, one out of memory, a lost node.

Each time generation g + 1 continues from the newest checkpoint, and nothing of the previous one is left that could
write another. And failures that must end nothing: a kubelet that is gone alone, an outage of the API server. The
cluster is this file's own, since parts of it are killed. Deleted pods: test_controller.py.
"""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.controlled import OVER, ROOT_PODS, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

API_OUTAGE_S = 31  # more than a kubelet's grace period in a test cluster
STEPS = """
import os, time
from ganger import train

newest = train.latest()
first = newest.step + 1 if newest else 0
print("begins at", first, flush=True)
for step in range(first, first + 5):
    if train.world().rank == 0:
        with train.checkpoint(step) as directory:
            (directory / "state").write_text(str(step))
    train.report(step=step)
while train.world().attempt == 1:
    step += 1
    train.report(step=step)  # or else it would be taken for hung
    if train.world().rank == 0:  # which has saved by now
        with open(os.environ["BEATS"], "a") as beats:
            beats.write("1")
    time.sleep(0.2)
"""

HANGS = """
import os, signal, time
from pathlib import Path
from ganger import train

world = train.world()
mine, other = (Path(os.environ["STEPS"]) / f"{world.attempt}-{rank}" for rank in (world.rank, 1 - world.rank))

def wait_for_other(step):
    while not other.exists() or int(other.read_text() or 0) < step:
        time.sleep(0.02)

for step in range(1, 40):
    if (world.attempt, world.rank, step) == (1, 1, 20):
        os.kill(os.getpid(), signal.SIGSTOP)
    mine.write_text(str(step))
    wait_for_other(step)
    train.report(step=step)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def system(own_cluster: Cluster, saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    folder = tmp_path_factory.mktemp("controller")
    with controlled(own_cluster, folder) as system, system.policy(pods=ROOT_PODS):
        system.lend("saved", saved)
        yield system


def begin(system: Controlled, name: str, saved: Path, **spec: Any) -> Path:
    """Run it until it waits for the failure, with five checkpoints; return the file that grows meanwhile."""
    beats = saved / f"{name}-beats"
    system.submit(
        name,
        run=["python3", "-c", STEPS],
        env={"BEATS": str(beats)},
        volumes=[{"name": "saved", "path": str(saved)}],
        checkpoint={"dir": str(saved / name)},
        **spec,
    )
    until(beats.exists, f"{name} to have made its steps")
    return beats


def come_back(system: Controlled, name: str) -> list[dict[str, Any]]:
    """Return its attempts after its end: the second one has succeeded, from the newest checkpoint of the first."""
    status = system.wait(name, *OVER)
    attempts: list[dict[str, Any]] = system.client.job(f"{name}.{system.namespace}")["attempts"]
    assert (status["phase"], status["generation"]) == ("Succeeded", 2), attempts
    assert [item["resumed_step"] for item in attempts] == [None, 4]
    return attempts


def test_an_evicted_pod_takes_its_gang_elsewhere_whole(system: Controlled, saved: Path) -> None:
    begin(system, "evicted", saved, nodes=2)
    about = {"name": "evicted-1-1", "namespace": system.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
    path = f"/api/v1/namespaces/{system.namespace}/pods/evicted-1-1/eviction"
    system.on.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    come_back(system, "evicted")


def test_a_pod_that_takes_too_much_memory_is_said_to_have(system: Controlled) -> None:
    hungry = "x = bytearray(256 << 20)"
    system.submit("hungry", nodes=2, resources={"cpu": "100m", "memory": "96Mi"}, run=["python3", "-c", hungry])
    status = system.wait("hungry", *OVER)
    assert status["phase"] == "Failed"
    assert "memory" in status["message"], status


def test_what_runs_on_without_its_kubelet_goes_on_until_its_node_is_gone_too(system: Controlled, saved: Path) -> None:
    beats = begin(system, "orphan", saved)
    (node,) = system.status("orphan")["nodes"]
    system.on.kill(node.replace("node", "kubelet"), signal.SIGKILL)
    until(lambda: is_kept(row(system, node)), "the node to be known as not ready")
    assert row(system, node)["state"] == "unready"
    assert system.status("orphan")["generation"] == 1
    assert not is_still(beats)
    system.on.kill(node)
    come_back(system, "orphan")
    assert system.status("orphan")["nodes"] != [node]
    system.on.start(node)
    system.on.wait_nodes()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_hangs_is_named_and_its_gang_starts_again_elsewhere(
    system: Controlled, saved: Path, nodes: int
) -> None:
    steps, name = saved / f"steps-{nodes}", f"hanging-{nodes}"
    steps.mkdir()
    system.submit(
        name,
        run=["python3", "-c", HANGS],
        nodes=nodes,
        nproc_per_node=2 // nodes,
        env={"STEPS": str(steps)},
        volumes=[{"name": "saved", "path": str(saved)}],
        limits={"hang_time": "5s"},
    )
    status = system.wait(name, *OVER)
    before, after = system.client.job(f"{name}.{system.namespace}")["attempts"]
    assert (status["phase"], status["generation"]) == ("Succeeded", 2), status
    assert "rank 1" in before["sentence"], before
    assert "has been stopped (state T" in before["sentence"], before
    if nodes == 1:
        assert before["nodes"] != after["nodes"]
    groups = system.client.stacks(f"{name}.{system.namespace}", 1)["groups"]
    assert [(group["ranks"], group["states"]) for group in groups if 1 in group["ranks"]] == [([1], ["stopped"])]
    (waits,) = (group["frames"] for group in groups if group["ranks"] == [0])
    assert any(frame.startswith("wait_for_other ") for frame in waits), groups


def test_an_api_server_that_was_away_ends_nothing(system: Controlled, saved: Path) -> None:
    """The outage is longer than kubelets may be silent; nodes stay not ready until the next controller read them."""
    beats = begin(system, "bystander", saved, nodes=2)
    before = uids(system, "bystander")
    kubelets = [f"kubelet-{number}" for number in system.on.shape.numbers]
    with system.restarted_on_exit():
        system.on.kill("kube-apiserver")
        for kubelet in kubelets:
            system.on.kill(kubelet, signal.SIGSTOP)
        time.sleep(API_OUTAGE_S)
        system.on.start("kube-apiserver")
        system.on.wait_api()
        until(system.serves, "the next controller")
        until(
            lambda: all(map(is_kept, system.client.nodes())), "all nodes to be not ready, and their launchers connected"
        )
        for kubelet in kubelets:
            system.on.kill(kubelet, signal.SIGCONT)
    assert system.status("bystander")["generation"] == 1
    assert uids(system, "bystander") == before
    assert not is_still(beats)
    system.kubectl("delete", "gangjob", "bystander")


def is_kept(node: dict[str, Any]) -> bool:
    return "a launcher there is connected" in node["unready"]


def row(system: Controlled, node: str) -> dict[str, Any]:
    """Return a node as the controller lists it."""
    return next(item for item in system.client.nodes() if item["name"] == node)


def uids(system: Controlled, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in system.pods(name).values()}


def is_still(beats: Path) -> bool:
    """Return whether a file that grew by each fifth of a second has not grown for two."""
    return time.time() - beats.stat().st_mtime > 2
