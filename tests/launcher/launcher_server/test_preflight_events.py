"""Events from the results of a test of nodes: measurements, faults of nodes, the end of the attempt."""

from dataclasses import replace
from typing import Any

from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.health.preflight_events import preflight_events
from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.health_event import NodeFaulty, NodesMeasured
from tests.launcher.launcher_server.test_dispatcher import generation_on

BAD = {"code": "hbm", "gpu": 1, "sentence": "GPU 1: slow", "is_bad": True}
WEAK = {"code": "pair_tests", "gpu": None, "sentence": "1 of 32 tests of it failed", "is_bad": False}


def generation(*, by_policy: bool = True) -> Generation:
    made = generation_on(("n1", "n2", "n3"))
    return replace(made, start=replace(made.start, preflight_ms=60_000 if by_policy else None))


def result(node: int, performance_milli: int = 1000, *findings: dict[str, Any]) -> dict[str, Any]:
    return {"node": node, "performance_milli": performance_milli, "findings": [*findings]}


def test_a_bad_node_is_charged_and_ends_the_attempt() -> None:
    events = preflight_events(generation(), [result(0), result(1, 345, BAD), result(2, 950, WEAK)])
    measured, *faults, failed = events
    assert isinstance(measured, NodesMeasured)
    assert [(one.node, one.performance_milli, one.sentence) for one in measured.measurements] == [
        ("n1", 1000, ""),
        ("n2", 345, "GPU 1: slow"),
        ("n3", 950, "1 of 32 tests of it failed"),
    ]
    assert [
        (event.fault.node, event.fault.code, event.fault.severity, event.fault.gpu)
        for event in faults
        if isinstance(event, NodeFaulty)
    ] == [("n2", "hbm", Severity.RESET_DEVICE, 1), ("n3", "pair_tests", Severity.NOTE, None)]
    assert isinstance(failed, Failed)
    assert (failed.cause, failed.node) == (Cause.PREFLIGHT_FAILED, "n2")
    assert failed.detail == "1 of 3 nodes failed the test before the start: n2: GPU 1: slow"


def test_without_a_bad_node_the_attempt_goes_on() -> None:
    events = preflight_events(generation(), [result(0), result(2, 950, WEAK)])
    assert [event.kind for event in events] == ["nodes_measured", "node_faulty"]


def test_a_test_that_a_user_runs_charges_no_node() -> None:
    events = preflight_events(generation(by_policy=False), [result(0), result(1, 345, BAD)])
    assert [event.kind for event in events] == ["nodes_measured"]


def test_a_place_that_the_gang_does_not_have_is_left_out() -> None:
    assert preflight_events(generation(), [result(3, 0, BAD), result(1 << 52, 0, BAD)]) == []


def test_of_several_ranks_on_a_node_the_worst_counts() -> None:
    measured, *_ = preflight_events(generation(), [result(1), result(1, 500), result(1, 900)])
    assert isinstance(measured, NodesMeasured)
    assert [(one.node, one.performance_milli) for one in measured.measurements] == [("n2", 500)]
