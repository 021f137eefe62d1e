"""Records of the health of nodes that are kept on the nodes: what is refused, and how often they are written."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.health_checkpoint import MAX_CHARACTERS, HealthCheckpoint, decode, encode
from ganger.gang_jobs.object_names import HEALTH
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty
from ganger.model.node_health.health_record import FaultRecord, HealthState, NodeHealth, RepairStep
from tests.kubernetes.repair.repair_scene import Scene, health, play, report_fault
from tests.waiting import until

REPAIRING = NodeHealth(
    node="n1", state=HealthState.REPAIRING, since_ms=5, due_ms=9, repair=2, step=RepairStep.REBOOT, reason="x"
)
KEPT: dict[str, Any] = json.loads(encode(HealthCheckpoint(record=REPAIRING)))


def changed(**record: Any) -> str:
    return json.dumps(KEPT | {"record": KEPT["record"] | record})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is not a JSON object"),
        ("[]", "it is not a JSON object"),
        ("{", "it is not a JSON object"),
        ("{}", "its version is None"),
        (json.dumps(KEPT | {"v": 2}), "its version is 2, and this controller reads 1"),
        (json.dumps({"v": 1}), "record"),
        (changed(node="n2"), "it is of node n2"),
        (changed(state="fine"), "record.state"),
        (changed(since_ms="soon"), "record.since_ms"),
        (changed(since_ms=-1), "a time before 1970"),
        (changed(due_ms=1 << 62), "after 2199"),
        (changed(due_ms=None), "it is repairing without an end"),
        (changed(repair=-1), "a number out of range"),
        (changed(repair=0), "it is repairing and has no number"),
        (changed(step=None), "it is repairing without a step"),
        (changed(step="test"), "test is not a step of a repair"),
        (changed(points_milli=1 << 70), "a number out of range"),
        (changed(performance_milli=1001), "it has 1001 thousandths of the usual performance"),
        (changed(performance_milli=-1), "it has -1 thousandths of the usual performance"),
        (changed(performance_milli="fast"), "record.performance_milli"),
        (changed(measured_ms=-1), "a time before 1970"),
        (json.dumps(KEPT) + " " * MAX_CHARACTERS, f"more than {MAX_CHARACTERS}"),
    ],
)
def test_what_is_no_record_of_the_node_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        decode(text, "n1")
    assert "\n" not in str(refused.value)


def test_a_record_is_read_as_it_was_written() -> None:
    checkpoint = HealthCheckpoint(record=REPAIRING)
    assert decode(encode(checkpoint), "n1") == checkpoint


def test_what_was_measured_of_a_healthy_node_is_kept() -> None:
    record = NodeHealth(node="n1", since_ms=5, performance_milli=700, measured_ms=9, measurement="GPU 1: slow")
    checkpoint = HealthCheckpoint(record=record)
    assert checkpoint.is_worth_keeping
    assert decode(encode(checkpoint), "n1") == checkpoint


def test_a_node_with_all_faults_that_are_kept_is_below_the_limit() -> None:
    fault = Fault(node="n1", check="c" * 30, code="d" * 30, severity=Severity.REBOOT, at_ms=0, sentence="\u1234" * 300)
    faults = tuple(FaultRecord(fault=fault, first_ms=index, last_ms=index) for index in range(16))
    record = NodeHealth(node="n1", since_ms=0, faults=faults, reason="\u1234" * 1000, origin="\u1234" * 1000)
    record = replace(record, measurement="\u1234" * 1000, measured_ms=1)
    assert len(encode(HealthCheckpoint(record=record))) < MAX_CHARACTERS


def test_a_record_that_cannot_be_read_means_healthy_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def played(scene: Scene) -> None:
        scene.annotate(health=changed())
        async with scene.leads() as system:
            record = health(system)
            assert record is not None
            assert record.state is HealthState.REPAIRING
        scene.annotate(health=changed(node="n2"))
        async with scene.leads() as system:
            record = health(system)
            assert record is not None
            assert record.state is HealthState.HEALTHY
            assert "cannot be read, so it counts as healthy: it is of node n2" in record.reason
            assert scene.annotations()[HEALTH] == changed(node="n2"), "it is left for a person to read"
            report_fault(system)
            await until(lambda: scene.kept_state() == "probation")

    play(tmp_path, played)
    assert "it is of node n2" in caplog.text


def test_a_fault_that_lasts_is_not_written_each_time(tmp_path: Path) -> None:
    def writes(scene: Scene) -> int:
        calls = scene.api.server.calls.items()
        return sum(count for call, count in calls if (call.verb, call.resource) == ("patch", "nodes"))

    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            report_fault(system)
            await until(scene.is_cordoned)
            await asyncio.sleep(1)
            before = writes(scene)
            for _ in range(60):
                report_fault(system)
                await asyncio.sleep(10)
            assert 5 <= writes(scene) - before <= 10, "once a minute"
            note = Fault(node="n0", check="x", code="y", severity=Severity.NOTE, at_ms=0, sentence="a note")
            system.loop.post(NodeFaulty(fault=note))
            await asyncio.sleep(60)
            assert HEALTH not in scene.annotations("n0"), "it is healthy"
            record = health(system)
        async with scene.leads() as system:
            assert health(system) == record

    play(tmp_path, played, {"correlation": {"settle": "1s"}})
