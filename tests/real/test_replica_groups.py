"""Replica groups of torchft for real: one is killed and comes back, the other one trains on; then their lighthouse."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.real.cluster import ROOT, Cluster, until
from tests.real.environments import python_with

pytestmark = pytest.mark.long

STEP = re.compile(r"group (\d) step (\d+) of (\d) groups")


def steps(cluster: Cluster, job: str, group: int) -> list[tuple[int, int]]:
    """Return the steps that the attempts of a group have taken, each with the number of groups that took it."""
    logs = sorted((cluster.folder / "home" / "jobs" / job / "elements" / str(group)).glob("nodes/*/*/rank-0.log"))
    texts = [
        match
        for path in sorted(logs, key=lambda path: path.stat().st_mtime)
        for match in STEP.finditer(path.read_text())
    ]
    return [(int(match[2]), int(match[3])) for match in texts]


def killed(cluster: Cluster, job: str, group: int) -> None:
    """Kill the rank of a group's first attempt."""
    path = next((cluster.folder / "home" / "jobs" / job / "elements" / str(group)).glob("nodes/*/1/started"))
    os.kill(json.loads(path.read_text())["pids"]["0"][0], signal.SIGKILL)


def test_a_killed_group_comes_back_while_the_other_trains_on(cluster: Cluster) -> None:
    shutil.copy(ROOT / "examples" / "train_torchft.py", cluster.folder)
    command = [python_with("torchft"), "train_torchft.py", "--steps", "150", "--pause", "0.2"]
    job = cluster.submit("groups", *command, framework="torch", replica_groups=2)
    until(lambda: len(steps(cluster, job, 0)) > 10 and len(steps(cluster, job, 1)) > 10, "steps of both groups")
    killed(cluster, job, 1)
    until(lambda: (steps(cluster, job, 0)[-1:] or [(0, 0)])[0][1] == 1, "a step of the other group alone")
    until(lambda: steps(cluster, job, 0)[-1][1] == 2, "a step of both again")

    keeper = json.loads((cluster.folder / "home" / "jobs" / job / "lighthouse.json").read_text())["pid"]
    before = steps(cluster, job, 0)[-1][0]
    subprocess.run(["pkill", "-KILL", "-P", str(keeper)], check=True)
    until(lambda: steps(cluster, job, 0)[-1][0] > before + 5, "steps with another lighthouse")
    until(lambda: cluster.ended(job), "the end of the job")

    rows = [cluster.client.job(f"{job}[{group}]")["row"] for group in range(2)]
    assert [(row["state"], row["generation"]) for row in rows] == [("succeeded", 1), ("succeeded", 2)]
    assert cluster.client.job(job)["row"]["state"] == "succeeded"
    first = [step for step, _ in steps(cluster, job, 0)]
    assert sorted({*first}) == list(range(150)), "the group that was not killed took every step"
    assert len({*_weights(cluster, job)}) == 1, "both end with the same weights"
    assert not (Path("/proc") / str(keeper)).exists()


def _weights(cluster: Cluster, job: str) -> list[str]:
    """Return what the groups print at their end."""
    logs = (cluster.folder / "home" / "jobs" / job).glob("elements/*/nodes/*/*/rank-0.log")
    return [match[1] for path in logs for match in re.finditer(r"has finished: (.*)", path.read_text())]
