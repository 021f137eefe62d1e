"""Nodes and pods that other programs take from a torch job on a real cluster: it saves, and goes on elsewhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.real.cluster import ROOT
from tests.real.environments import python_with
from tools.controlled import OVER, ROOT_PODS, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

STEPS: Final = 400
TAINT: Final = "aws-node-termination-handler/spot-itn"
TRAINING = """
import os, sys, time
import torch
import torch.distributed as dist
from ganger.train import checkpoint, latest, notice, report, should_checkpoint

out, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, newest = dist.get_rank(), latest()
step, weight = -1, torch.zeros(1, dtype=torch.float64)
if newest is not None:
    step, weight = newest.step, torch.load(newest.directory / "weight.pt")
while step + 1 < steps:
    step += 1
    gradient = weight - (step + rank)
    dist.all_reduce(gradient)
    weight = weight - gradient * 0.25
    report(step=step, loss=gradient.item())
    if rank == 0:
        print(step, repr(gradient.item()), file=open(out, "a"))
    if should_checkpoint():
        if rank == 0:
            with checkpoint(step) as directory:
                torch.save(weight, directory / "weight.pt")
        if notice() is not None:
            sys.exit()
    time.sleep(0.03)
"""


def _losses(steps: int) -> list[str]:
    """Return the losses of an uninterrupted run of two ranks: torch's doubles are those of Python."""
    weight, losses = 0.0, list[str]()
    for step in range(steps):
        gradient = (weight - step) + (weight - (step + 1))
        losses.append(repr(gradient))
        weight -= gradient * 0.25
    return losses


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "train.py").write_text(TRAINING)
    return folder


@pytest.fixture(scope="module", name="controlled")
def its_controller(real_cluster: Cluster, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    folder = tmp_path_factory.mktemp("controller")
    with controlled(real_cluster, folder) as system, system.policy(pods=ROOT_PODS):
        for name, path in _volumes(data).items():
            system.lend(name, path)
        yield system


def _volumes(data: Path) -> dict[str, Path]:
    return {"data": data, "checkout": ROOT, "python": Path(sys.base_prefix)}


def _submit(system: Controlled, name: str, data: Path) -> Path:
    """Submit a job of two ranks on one node, and return the file of its losses."""
    out = data / f"{name}-losses"
    system.submit(
        name,
        framework="torch",
        nproc_per_node=2,
        run=[python_with("torch"), str(data / "train.py"), str(out), str(STEPS)],
        volumes=[{"name": volume, "path": str(path)} for volume, path in _volumes(data).items()],
        checkpoint={"dir": str(data / name), "grace": "30s"},
        retry={"max": 0},
    )
    return out


WAYS = {
    "drain": "its node {node} is drained",
    "ganger": "its node {node} is drained",
    "delete": "it is evicted from its node {node}",
    "taint": "its node {node} is preempted",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gang_saves_its_newest_step_and_goes_on_elsewhere(way: str, controlled: Controlled, data: Path) -> None:
    out = _submit(controlled, way, data)
    (node,) = controlled.wait(way, "Running")["nodes"]
    (pod,) = controlled.pods(way).values()
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 30 + 5
    until(lambda: out.exists() and len(out.read_text().splitlines()) > 20, "some steps")
    try:
        _take(controlled, way, node, pod)
        assert controlled.wait(way, *OVER)["phase"] == "Succeeded"
    finally:
        controlled.on.kubectl("uncordon", node)
        controlled.on.kubectl("taint", "node", node, f"{TAINT}-") if way == "taint" else None
    first, second = controlled.client.job(f"{way}.{controlled.namespace}")["attempts"]
    assert (first["outcome"], first["sentence"]) == ("stopped", WAYS[way].format(node=node))
    lines = [line.split() for line in out.read_text().splitlines()]
    assert [int(step) for step, _ in lines] == list(range(STEPS)), "no step is done twice, as the newest was saved"
    assert [loss for _, loss in lines] == _losses(STEPS)
    assert 0 < second["resumed_step"] < STEPS - 1


def _take(system: Controlled, way: str, node: str, pod: dict[str, Any]) -> None:
    """Take the node or the pod from the job, as other programs do."""
    if way == "drain":
        system.drain(node, way)
    elif way == "ganger":
        context = system.on.kubectl("config", "current-context").strip()
        command = [Path(sys.executable).with_name("ganger"), "--context", context, "node", "drain", node]
        subprocess.run(command, env=os.environ | {"KUBECONFIG": str(system.on.kubeconfig)}, check=True)
    elif way == "delete":
        system.kubectl("delete", "pod", pod["metadata"]["name"])
    else:
        system.on.kubectl("taint", "node", node, f"{TAINT}=event-1:NoSchedule")
