"""The test of nodes for real: eight gloo processes exchange data in pairs, and one of them fails one time in five."""

import json

import pytest

from tests.real.cluster import Cluster, until

pytestmark = pytest.mark.long

FLAKY = '''
"""The program of the test of nodes, with a fault in the rank that it is given: one test in five breaks off."""

import random
import sys

import torch.distributed as dist

from ganger.train.launcher_environment import rank
from ganger.train.preflight import measure_pairs
from ganger.train.preflight.__main__ import main

exchange, chance = measure_pairs.all_reduce, random.Random(5)


def break_off(store, place):
    if chance.random() >= 0.2:
        return exchange(store, place)
    dist.ProcessGroupGloo(store, place, 2, dist.default_pg_timeout)  # the partner meets it, and then it is gone
    raise RuntimeError("the network is down")


if rank() == int(sys.argv[1]):
    measure_pairs.all_reduce = break_off
sys.exit(main([]))
'''


def test_the_one_bad_node_of_eight_is_named(cluster: Cluster, torch_python: str) -> None:
    """Check it with eight ranks on the two nodes of the test, each of which stands for a node."""
    (cluster.folder / "flaky.py").write_text(FLAKY)
    shape = {"framework": "torch", "nodes": 2, "nproc_per_node": 4, "retry": {"max": 0}}
    job = cluster.submit("preflight", torch_python, "flaky.py", "3", **shape)
    until(lambda: cluster.ended(job), "the end of the test of nodes")
    log = cluster.folder / "home" / "jobs" / job / "nodes" / "n1" / "1" / "rank-0.log"
    lines = [line.split(" ", 2)[2] for line in log.read_text().splitlines()]
    result = json.loads(lines[-1])
    assert [*result["bad"]] == ["3"]
    assert any(line.startswith("node 3 (") and " is bad: " in line for line in lines)
    assert "exited with code 3" in cluster.client.job(job)["attempts"][-1]["sentence"]
    health = {row["node"]: row for row in cluster.client.node_health()["nodes"]}
    assert {node: (row["state"], row["faults"]) for node, row in health.items()} == dict.fromkeys(
        ("n1", "n2"), ("healthy", [])
    ), "a test that a user runs charges no node"
    assert all(0 <= row["performance"] <= 1 for row in health.values())
