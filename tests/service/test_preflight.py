"""The test of nodes before a large gang, on a real server: a bad node costs no retry, and the gang starts elsewhere."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.engine.service import Proposal
from ganger.errors import RequestError
from ganger.model.cluster import Node
from tests.service.world import Embedded

NODES = tuple(Node(name=f"n{number}", cpu_milli=1_000, memory_bytes=1 << 30) for number in range(1, 6))
PROGRAM = f"""#!{sys.executable} -IS
import json, os, sys
if sys.argv[1:] != ["-m", "ganger.train.preflight"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
print("world", os.environ["GANGER_RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"])
is_bad = os.environ["GANGER_ATTEMPT"] == "1" and BAD
if os.environ["GANGER_RANK"] == "0":
    finding = {{"code": "hbm", "gpu": 1, "sentence": "GPU 1: memory bandwidth is 1000 GB/s", "is_bad": True}}
    nodes = [
        {{"node": node, "performance_milli": 300 if node == 1 and is_bad else 1000,
          "findings": [finding] if node == 1 and is_bad else []}}
        for node in range(int(os.environ["WORLD_SIZE"]))
    ]
    with open(os.environ["GANGER_TASK_DIR"] + "/preflight.json", "w") as file:
        json.dump({{"nodes": nodes}}, file)
sys.exit(3 if is_bad else 0)
"""
"""A Python whose test of nodes finds the second node of the first attempt bad."""
POLICY = "node_health: {correlation: {settle: 0s}, preflight: {min_nodes: 3}}"


@pytest.fixture
def wide(tmp_path: Path, zipapp: Path) -> Iterator[Embedded]:
    world = Embedded(tmp_path, zipapp, NODES)
    yield world
    world.close()


def _python(world: Embedded, *, is_bad: bool) -> str:
    path = world.work / "python3"
    path.write_text(PROGRAM.replace("BAD", str(is_bad)))
    path.chmod(0o755)
    return str(path)


def _submit(world: Embedded, python: str, nodes: int = 3) -> str:
    (world.work / "train.py").write_text("print('trains')")
    return world.submit([python, "train.py"], nodes=nodes, retry={"max": 0})


def _events(world: Embedded, subject: str, kind: str) -> list[str]:
    return [row.sentence for row in world.service.events(after=0, gang=subject, limit=500, kinds=[kind])]


def test_a_gang_with_a_bad_node_starts_elsewhere_and_loses_no_retry(wide: Embedded) -> None:
    wide.service.apply_policy(Proposal(text=POLICY))
    job = wide.ended(_submit(wide, _python(wide, is_bad=True)))
    assert job.row.state == "succeeded"
    first, second = job.attempts
    bad = first.nodes[1]
    assert first.sentence.startswith(f"1 of 3 nodes failed the test before the start: {bad}: GPU 1: memory bandwidth")
    assert bad not in second.nodes
    health = {row.node: row for row in wide.service.node_health().nodes}
    assert health[bad].state == "cordoned"
    assert [(fault.check, fault.code) for fault in health[bad].faults] == [("preflight", "hbm")]
    assert {node: row.performance for node, row in health.items() if node != bad} == dict.fromkeys(
        {*first.nodes, *second.nodes} - {bad}, 1.0
    )
    (sentence, _) = _events(wide, job.row.id, "nodes_measured")
    assert f"{bad} has 30 % of the usual performance (GPU 1: memory bandwidth is 1000 GB/s)" in sentence


def test_nodes_that_were_tested_are_not_tested_again(wide: Embedded) -> None:
    wide.service.apply_policy(Proposal(text=POLICY))
    python = _python(wide, is_bad=False)
    for tests, nodes in ((1, 5), (1, 5), (1, 3)):
        job = wide.ended(_submit(wide, python, nodes))
        assert job.row.state == "succeeded"
        assert sum(len(_events(wide, f"node/{node.name}", "nodes_measured")) for node in NODES) == 5 * tests


def test_a_small_gang_and_one_without_the_setting_are_not_tested(wide: Embedded) -> None:
    python = _python(wide, is_bad=True)
    assert wide.ended(_submit(wide, python, 5)).row.state == "succeeded"
    wide.service.apply_policy(Proposal(text=POLICY))
    assert wide.ended(_submit(wide, python, 2)).row.state == "succeeded"
    assert wide.service.node_health().nodes == ()


def test_a_program_without_torch_starts_untested(wide: Embedded) -> None:
    wide.service.apply_policy(Proposal(text=POLICY))
    job = wide.ended(wide.submit([sys.executable, "-c", "print('trains')"], nodes=3, retry={"max": 0}))
    assert job.row.state == "succeeded"
    assert wide.service.node_health().nodes == ()


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("{min_nodes: 0}", "node_health.preflight.min_nodes"),
        ("{min_nodes: many}", "node_health.preflight.min_nodes"),
        ("{min_nodes: 2.5}", "node_health.preflight.min_nodes"),
        ("{min_nodes: true}", "node_health.preflight.min_nodes"),
        ("{every: -1h}", "node_health.preflight.every"),
        ("{timeout: 0s}", "node_health.preflight.timeout"),
        ("{timeout: [1]}", "node_health.preflight.timeout"),
        ("{rounds: 8}", "node_health.preflight.rounds"),
        ("[]", "node_health.preflight"),
    ],
)
def test_settings_that_are_none_are_refused(rules: str, says: str, wide: Embedded) -> None:
    with pytest.raises(RequestError, match=re.escape(says)):
        wide.service.apply_policy(Proposal(text=f"node_health: {{preflight: {rules}}}"))
