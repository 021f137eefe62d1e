"""A faulty node under a running job, on a real server with hooks of the site that are real programs."""

import re
import sys
import time
from pathlib import Path

import pytest

from ganger.engine.service import Proposal
from ganger.errors import RequestError
from ganger.model.event import NodeReturned
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty, RepairEnded
from ganger.model.views.health_views import NodeHealthRow
from tests.service.world import Embedded
from tests.waiting import wait_until

POLICY = """
node_health:
  correlation: {{settle: 0s}}
  probation: {{time: 1h}}
  hooks: {{reset_device: [{hook}, reset], reboot: [{hook}, reboot], test: [{hook}, test], timeout: 30s}}
"""
HOOK = """#!{python} -IS
import os, sys
line = " ".join([sys.argv[1], *(os.environ["GANGER_" + name] for name in ("NODE", "STEP", "CODE", "GPU"))])
open({log!r}, "a").write(line + "\\n")
print("the bus does not answer")
sys.exit(sys.argv[1] == "reset")
"""


def _fault(node: str) -> NodeFaulty:
    sentence = "Xid 79: GPU 2 has fallen off the bus"
    return NodeFaulty(
        fault=Fault(
            node=node,
            check="xid",
            code="xid_79",
            severity=Severity.RESET_DEVICE,
            gpu=2,
            at_ms=round(1000 * time.time()),
            sentence=sentence,
        )
    )


def _apply_hooks(world: Embedded, directory: Path) -> Path:
    """Put hooks in force that write what they get into a log, and of which `reset` fails; return the log."""
    hook, log = directory / "hook", directory / "hooks.log"
    hook.write_text(HOOK.format(python=sys.executable, log=str(log)))
    hook.chmod(0o755)
    world.service.apply_policy(Proposal(text=POLICY.format(hook=hook), filename="policy.yaml"))
    return log


def _health(world: Embedded, node: str) -> NodeHealthRow | None:
    return next((row for row in world.service.node_health().nodes if row.node == node), None)


def _is(world: Embedded, node: str, state: str) -> bool:
    row = _health(world, node)
    return row is not None and row.state == state


def test_a_node_with_a_fault_is_repaired_tested_and_returned(world: Embedded, tmp_path: Path) -> None:
    log = _apply_hooks(world, tmp_path)
    name = world.submit(resources={"gpu": 4}, nodes=1)
    before = world.until(name, "running").row.nodes[0]
    world.loop.post(_fault(before))
    wait_until(lambda: _is(world, before, "probation"), "it is back, on probation")
    after = world.until(name, "running").row.nodes[0]
    assert after != before, "the job went on elsewhere"
    steps = [f"{word} {before} {step} xid_79 2" for word, step in (("reset", "reset_device"), ("reboot", "reboot"))]
    assert log.read_text().splitlines() == [*steps, f"test {before} test xid_79 2"]
    sentences = [row.sentence for row in world.service.events(after=0, gang=f"node/{before}", limit=100)]
    assert any("the hook exited with code 1: the bus does not answer" in sentence for sentence in sentences), sentences
    assert "GPU 2 has fallen off the bus" in sentences[0]
    assert any(f"node {before} is back in service, on probation" in sentence for sentence in sentences)
    assert {row.name: row.state for row in world.service.nodes()}[before] == "ready"


def test_without_hooks_a_faulty_node_is_held(world: Embedded) -> None:
    """Cordon and drain it, and say how a person returns it."""
    world.service.apply_policy(Proposal(text="node_health: {correlation: {settle: 0s}}", filename="policy.yaml"))
    world.loop.post(_fault("n1"))
    wait_until(lambda: _is(world, "n1", "cordoned") and "ganger node return n1" in str(_health(world, "n1")), "held")
    assert world.service.return_node("n1").state in ("cordoned", "ready")
    wait_until(lambda: _is(world, "n1", "probation"), "a person returned it")


def test_reports_about_nothing_change_nothing(world: Embedded) -> None:
    posted = [
        world.loop.post(_fault("nowhere")),
        world.loop.post(RepairEnded(node="n1", repair=7, has_succeeded=True)),
        world.loop.post(RepairEnded(node="nowhere", repair=1, has_succeeded=True)),
        world.loop.post(NodeReturned(node="n1")),
    ]
    assert [done.result() for done in posted] == [0, 0, 0, 0]
    assert world.service.node_health().nodes == ()


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ("{hooks: {reboot: ipmitool power cycle}}", "'ipmitool power cycle' is not a list of words"),
        ("{hooks: {reboot: ['', x]}}", "is not a list of words"),
        ("{hooks: {reboot: [1]}}", "is not a list of words"),
        ("{hooks: {resett: [x]}}", "reset_device"),
        ("{budget: {percent: 101}}", "101 is not a share in percent"),
        ("{suspicion: {half_life: 0s}}", "half_life"),
        ("{mode: on}", "is not a mode of node health"),
    ],
)
def test_wrong_rules_are_refused(world: Embedded, rules: str, error: str) -> None:
    with pytest.raises(RequestError, match=re.escape(error)):
        world.service.apply_policy(Proposal(text=f"node_health: {rules}", filename="policy.yaml"))
