"""Failures of jobs and faults of nodes, joined: pictures of one incident each."""

from collections.abc import Sequence
from typing import Any

import pytest

from ganger.engine.incidents.join_faults import WINDOW_MS, incident_of, join_faults
from ganger.model.decision import Cause
from ganger.model.event import Event, Failed, NodeLost, Stamped
from ganger.model.evidence import PythonError, RankEnd
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty
from ganger.model.units import MINUTE_MS
from ganger.model.views.incident_views import Incident

COMMON = 4


def fault(node: str, code: str = "xid_79", **fields: Any) -> NodeFaulty:
    given = {"severity": Severity.REBOOT, "device": "GPU-1", "gpu": 1, "sentence": f"{code} on GPU 1"} | fields
    return NodeFaulty(fault=Fault(node=node, check="xid", code=code, at_ms=1, **given))


def failure(node: str, job: str = "j", error: PythonError | None = None) -> Failed:
    """Return the end of rank 3 by SIGKILL, or of two ranks by an exception."""
    ends = tuple(RankEnd(rank=rank, node=node, at_ms=1, exit_code=1, error=error) for rank in range(2))
    ends = ends if error else (RankEnd(rank=3, node=node, at_ms=1, signal=9),)
    return Failed(
        gang=job,
        generation=1,
        node=node,
        cause=Cause.RANK_FAILED,
        rank=ends[0].rank,
        exit_code=ends[0].exit_code,
        signal=ends[0].signal,
        detail="a rank has failed",
        ends=ends,
        ranks=len(ends),
    )


def incidents(*events: tuple[int, Event], nodes: Sequence[str] = ("n1", "n2")) -> list[Incident]:
    rows = [Stamped(seq, at_ms, event) for seq, (at_ms, event) in enumerate(events, 1)]
    nodes_of = {(name, 1): tuple(nodes) for name in ("j", "k")}
    return [incident_of(evidence) for evidence in join_faults(rows, nodes_of, COMMON)]


@pytest.mark.parametrize("is_first", [False, True])
def test_a_killed_rank_and_an_xid_on_its_node_are_one_incident_that_says_gpu(is_first: bool) -> None:
    events = [(1_000, failure("n1")), (3_000, fault("n1"))]
    (incident,) = incidents(*(reversed(events) if is_first else events))
    assert (incident.id, incident.job, incident.generation, incident.rank) == ("i1", "j", 1, 3)
    assert (incident.nodes, incident.device, incident.gpu) == (("n1",), "GPU-1", 1)
    assert (incident.failure_class, incident.origin, incident.confidence) == ("gpu_fallen_off_bus", "infra", "high")
    assert incident.sentence == "n1: xid_79 on GPU 1"
    assert incident.evidence[0] == "n1: xid_79 on GPU 1"
    assert incident.remedy


def test_a_fault_of_another_node_of_the_job_explains_its_failure() -> None:
    (incident,) = incidents((1_000, failure("n1")), (3_000, fault("n2")))
    assert (incident.job, incident.nodes) == ("j", ("n2",))


def test_a_fault_elsewhere_or_at_another_time_is_another_incident() -> None:
    both = incidents((1_000, failure("n1")), (2_000, fault("n9")), (2_000 + WINDOW_MS, fault("n1")))
    assert [(incident.job, incident.nodes) for incident in both] == [("j", ("n1",)), ("", ("n9",)), ("", ("n1",))]
    assert both[0].failure_class != "gpu_fallen_off_bus"


def test_an_error_that_proves_the_program_to_be_at_fault_is_not_one_of_the_node() -> None:
    error = PythonError(type="ModuleNotFoundError", message="No module named 'x'", file="train.py", line=1)
    (incident,) = incidents((1_000, failure("n1", error=error)), (2_000, fault("n1")))
    assert (incident.failure_class, incident.origin) == ("missing_module", "user")
    assert (incident.device, incident.gpu) == ("", None)


def test_notes_and_shadow_faults_are_no_incidents() -> None:
    assert incidents((1, fault("n1", severity=Severity.NOTE)), (2, fault("n1", is_shadow=True))) == []


def test_faults_of_one_node_are_one_incident_of_the_gravest() -> None:
    (incident,) = incidents((1, fault("n1", "xid_74", severity=Severity.RESET_DEVICE)), (2, fault("n1")))
    assert (incident.failure_class, incident.sentence) == ("gpu_fallen_off_bus", "n1: xid_79 on GPU 1")


def test_equal_faults_of_many_nodes_are_one_incident() -> None:
    (incident,) = incidents(*((at_ms, fault(f"n{at_ms}")) for at_ms in range(32)))
    assert len(incident.nodes) == 32
    assert incident.sentence == "n0 and 31 others: xid_79 on GPU 1"


def test_two_jobs_on_a_bad_node_are_two_incidents_with_one_cause() -> None:
    both = incidents((1, failure("n1", "j")), (2, failure("n1", "k")), (3, fault("n1")))
    assert [(incident.job, incident.failure_class) for incident in both] == [
        ("j", "gpu_fallen_off_bus"),
        ("k", "gpu_fallen_off_bus"),
    ]


def test_a_lost_node_is_an_incident_unless_a_fault_explains_it() -> None:
    (lost,) = incidents((5, NodeLost(node="n4", detail="no heartbeat for 40 s")))
    assert (lost.failure_class, lost.nodes, lost.sentence) == (
        "node_lost",
        ("n4",),
        "node n4 is lost: no heartbeat for 40 s",
    )
    (explained,) = incidents((5, fault("n4")), (MINUTE_MS, NodeLost(node="n4", detail="no heartbeat for 40 s")))
    assert (explained.failure_class, explained.nodes) == ("gpu_fallen_off_bus", ("n4",))
