"""Elastic jobs of real frameworks: attempts with one node and with two, each resuming where the last one was."""

import shutil
from itertools import pairwise
from typing import Any

import pytest

from tests.real.cluster import ROOT, Cluster, until
from tests.real.environments import python_with

pytestmark = pytest.mark.long

LOOP = """
import os, sys, time
from ganger import train

{start}
newest = train.latest()
step, total = (newest.step, float((newest.directory / "total").read_text())) if newest else (0, 0.0)
while not os.path.exists("end"):  # created when there is one node
    total += sum_of_ranks_and_one()
    step += 1
    train.report(step=step, total=total, processes=processes)
    if step % 5 == 0 and is_first:
        with train.checkpoint(step) as directory:
            (directory / "total").write_text(str(total))
    if train.should_checkpoint() and train.notice():
        sys.exit()
    time.sleep(0.05)
"""
STARTS = {
    "tensorflow": """
import tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, processes = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
is_first = rank == 0


@tf.function
def summed():
    parts = strategy.run(lambda: tf.constant(float(rank + 1)))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)


def sum_of_ranks_and_one():
    return float(summed())
""",
    "ray": """
import ray

ray.init(log_to_driver=False)
processes, is_first = len(ray.nodes()), True


@ray.remote(num_cpus=2, scheduling_strategy="SPREAD")
class Worker:
    def __init__(self, rank):
        self.rank = rank

    def part(self):
        return self.rank + 1.0, ray.get_runtime_context().get_node_id()


workers = [Worker.remote(rank) for rank in range(processes)]


def sum_of_ranks_and_one():
    parts = ray.get([worker.part.remote() for worker in workers])
    assert len({node for _, node in parts}) == processes
    return sum(part for part, _ in parts)
""",
}
"""Framework -> a program with `processes`, of which each has a rank, and one that may save."""
SERVERS = """
import tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster.task_type != "chief":
    tf.distribute.Server(cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id).join()
assert cluster.cluster_spec().num_tasks("ps") == 1
coordinator = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(cluster))
with coordinator.strategy.scope():
    on_server = tf.Variable(0.0)
processes, is_first = cluster.cluster_spec().num_tasks("worker"), True


@tf.function
def add():
    on_server.assign_add(1.0)


def sum_of_ranks_and_one():
    before = float(on_server)
    for _ in range(processes):
        coordinator.schedule(add)
    coordinator.join()
    return float(on_server) - before
"""
"""A program whose chief has every worker add one on the parameter server in each step."""


def resized(cluster: Cluster, name: str, *argv: str, least: int = 1, **spec: Any) -> list[int]:
    """Run a job with its least size, with one more, and with its least, each until it has saved something new.

    Return the number of nodes of each attempt.
    """
    blocker = cluster.submit("blocks", "sleep", "300", resources={"cpu": 4})
    until(lambda: cluster.state(blocker) == "running", "the other job")
    job = cluster.submit(name, *argv, retry={"max": 0}, **spec)
    saved(cluster, job, attempt=1)
    cluster.client.stop(blocker)
    cluster.client.change(job, nodes=str(least + 1))
    saved(cluster, job, attempt=2)
    cluster.client.change(job, nodes=str(least))
    saved(cluster, job, attempt=3)
    (cluster.folder / "end").touch()
    until(lambda: cluster.ended(job), "the end of the job")
    view: dict[str, Any] = cluster.client.job(job)
    assert view["row"]["state"] == "succeeded"
    resumed = [attempt["resumed_step"] for attempt in view["attempts"]]
    assert resumed[0] is None
    assert 0 < resumed[1] < resumed[2] < view["checkpoint_step"]
    return [len(attempt["nodes"]) for attempt in view["attempts"]]


def saved(cluster: Cluster, job: str, attempt: int) -> None:
    """Wait until an attempt has saved a checkpoint."""

    def has_saved() -> bool:
        view = cluster.client.job(job)
        newest = view["attempts"][-1] if view["attempts"] else {"generation": 0}
        return newest["generation"] == attempt and (view["checkpoint_step"] or 0) > (newest["resumed_step"] or 0)

    until(has_saved, f"a checkpoint of attempt {attempt}")


def test_torch_ranks_go_on_with_another_world_size(cluster: Cluster, torch_python: str) -> None:
    shutil.copy(ROOT / "examples" / "train.py", cluster.folder)
    command = [torch_python, "train.py", "--steps", "900", "--checkpoint-steps", "10", "--hold", "900", "end"]
    nodes = resized(cluster, "torch", *command, framework="torch", nodes="1..2", checkpoint={"grace": "1h"})
    assert nodes == [1, 2, 1]


@pytest.mark.parametrize("framework", STARTS)
def test_a_world_of_another_size_goes_on_with_what_was_saved(cluster: Cluster, framework: str) -> None:
    (cluster.folder / "sum.py").write_text(LOOP.format(start=STARTS[framework]))
    command = [python_with(framework), "sum.py"]
    resources = {"cpu": 2}  # each node is a worker of its own
    spec = {"framework": framework, "nodes": "1..2", "resources": resources, "checkpoint": {"grace": "9s"}}
    assert resized(cluster, framework, *command, **spec) == [1, 2, 1]
    check_totals(cluster, framework, {1: 1.0, 2: 3.0})  # by the ranks from 1 on


def test_workers_beside_a_parameter_server_are_two_three_and_two(cluster: Cluster) -> None:
    (cluster.folder / "servers.py").write_text(LOOP.format(start=SERVERS))
    one = {"count": 1, "resources": {"cpu": 1}}
    roles = {"chief": one, "ps": one, "worker": one | {"count": "2..3"}}
    spec = {"framework": "tensorflow", "roles": roles, "stop_when": "chief", "checkpoint": {"grace": "4s"}}
    nodes = resized(cluster, "servers", python_with("tensorflow"), "servers.py", least=2, **spec)
    assert nodes[:2] == [1, 2], "four processes have one node, and five have two"
    check_totals(cluster, "servers", {2: 2.0, 3: 3.0})


def check_totals(cluster: Cluster, name: str, added: dict[int, float]) -> None:
    """Check that each step of a job is counted once, with what is added at the size that it had."""
    (job,) = (row["id"] for row in cluster.client.jobs(all=True)["items"] if row["name"] == name)
    metrics = [(row["step"], row["metrics"]) for row in cluster.client.reports(job)]
    for (before, old), (after, new) in pairwise(metrics):
        if after == before + 1:
            assert new["total"] - old["total"] == added[new["processes"]], (before, after)
    assert {new["processes"] for _, new in metrics} == {*added}
    total = sum(added[new["processes"]] for _, new in {step: (step, new) for step, new in metrics}.values())
    assert metrics[-1][1]["total"] == total, "each step is counted once, with the size that it had"
