"""Each framework for real: its example on two nodes with two processes each, which all-reduce over what ganger says.

The examples of torch are run by test_training.py too, and by tests/docs.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.real.cluster import ROOT, Cluster, until
from tests.real.environments import python_with

pytestmark = pytest.mark.long

FIT = re.compile(r"rank (\d) of 4: ranks sum to (\d+), loss (\S+)")
"""The last lines of the examples."""


def ended(cluster: Cluster, name: str, *argv: str, **spec: Any) -> str:
    """Run the example's command until it has succeeded; return the job.

    It has two nodes with two processes each unless `spec` says otherwise.
    """
    for script in (ROOT / "examples").glob("*.py"):
        shutil.copy(script, cluster.folder)
    spec = spec or {"framework": name, "nodes": 2, "nproc_per_node": 2}
    job = cluster.submit(name, *argv, retry={"max": 0}, **spec)
    until(lambda: cluster.ended(job), f"the end of {job}")
    row = cluster.client.job(job)["row"]
    assert (row["state"], row["generation"]) == ("succeeded", 1), (row, printed(cluster, job)[-40:])
    return job


def printed(cluster: Cluster, job: str) -> list[str]:
    """Return the lines that the processes wrote, read from the launchers' files."""
    log_files = sorted((cluster.folder / "home" / "jobs" / job / "nodes").glob("*/*/rank-*.log"))
    return [line.split(" ", 2)[-1] for path in log_files for line in path.read_text().splitlines()]


@pytest.mark.parametrize("framework", ["jax", "mpi", "tensorflow", "xgboost"])
def test_four_processes_sum_their_ranks_and_fit_the_same_line(cluster: Cluster, framework: str) -> None:
    job = ended(cluster, framework, python_with(framework), f"train_{framework}.py")
    matches = [match.groups() for line in printed(cluster, job) if (match := FIT.search(line))]
    assert sorted((int(rank), int(total)) for rank, total, _ in matches) == [(rank, 6) for rank in range(4)]
    assert len({loss for *_, loss in matches}) == 1
    reports = [row["metrics"]["loss"] for row in cluster.client.reports(job)]
    assert reports[-1] < reports[0] / 4


def test_a_chief_ends_the_job_of_parameter_servers_and_workers(cluster: Cluster) -> None:
    spec = YAML(typ="safe", pure=True).load(ROOT / "examples" / "parameter_server.yaml")
    script = spec.pop("run").split()[1]
    job = ended(cluster, spec.pop("name"), python_with("tensorflow"), script, **spec)
    matches = [line for line in printed(cluster, job) if "weights on" in line]
    assert [line.split(", loss")[0] for line in matches] == ["2 workers, weights on 2 servers"]
    reports = [row["metrics"]["loss"] for row in cluster.client.reports(job)]
    assert reports[-1] < reports[0] / 4
    assert cluster.client.job(job)["row"]["shape"] == "1x1 cpu + 2x1 cpu + 2x1 cpu"
    servers = [re.findall("Started server", line) for line in printed(cluster, job)]
    assert sum(map(len, servers)) == 5


def test_ray_runs_the_command_once_on_a_cluster_of_both_nodes(cluster: Cluster) -> None:
    job = ended(cluster, "ray", python_with("ray"), "train_ray.py")
    matches = [line for line in printed(cluster, job) if "actors on" in line]
    assert [line.split(", loss")[0] for line in matches] == ["4 actors on 2 nodes: ranks sum to 6"]


def test_torchrun_starts_the_processes_of_its_node(cluster: Cluster, torch_python: str) -> None:
    torchrun = str(Path(torch_python).with_name("torchrun"))
    job = ended(cluster, "torchrun", torchrun, "--standalone", "--nproc-per-node=8", "train.py", "--steps", "5")
    nodes = cluster.folder / "home" / "jobs" / job / "nodes"
    assert {path.stem for path in nodes.glob("*/1/rank-*.report")} == {f"rank-{rank}" for rank in range(4)}
    started = {rank for path in nodes.glob("*/1/started") for rank in json.loads(path.read_text())["pids"]}
    assert started == {"0", "2"}
    assert sum(line.startswith("step 4 loss") for line in printed(cluster, job)) == 1
