"""Conversion of the results of a test of nodes into events: what was measured, faults, and the end of the attempt.

A test that the policy asked for before the gang started charges the nodes that failed, and ends the attempt. Of one
that a user runs as a job only the measurements count: placement prefers other nodes, and none leaves service for it.
"""

import time
from typing import Any, Final

from ganger.launcher_server.generation_state import Generation
from ganger.model.decision import Cause
from ganger.model.event import Event, Failed
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty, NodeMeasurement, NodesMeasured

CHECK: Final = "preflight"
MAX_NAMES: Final = 4


def preflight_events(generation: Generation, results: list[dict[str, Any]]) -> list[Event]:
    """Return the events that follow from the results, the failure of the attempt last."""
    nodes = generation.start.nodes
    known: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result["node"] < len(nodes):
            known.setdefault(nodes[result["node"]], []).append(result)
    if not known:
        return []
    # Of several ranks on one node the worst counts.
    measured = {node: min(of_node, key=lambda result: result["performance_milli"]) for node, of_node in known.items()}
    measurements = tuple(
        NodeMeasurement(
            node=node,
            performance_milli=result["performance_milli"],
            sentence="; ".join(finding["sentence"] for finding in result["findings"]),
        )
        for node, result in measured.items()
    )
    events: list[Event] = [NodesMeasured(gang=generation.gang, measurements=measurements)]
    if generation.start.preflight_ms is None:
        return events
    now_ms = time.time_ns() // 1_000_000
    findings = {
        node: [finding for result in of_node for finding in result["findings"]] for node, of_node in known.items()
    }
    events += [_fault(node, finding, now_ms) for node, of_node in findings.items() for finding in of_node]
    bad = {node: one["sentence"] for node, of_node in findings.items() for one in reversed(of_node) if one["is_bad"]}
    if bad:
        events.append(_failure(generation, bad, len(nodes)))
    return events


def _fault(node: str, finding: dict[str, Any], at_ms: int) -> NodeFaulty:
    gpu = finding["gpu"]
    return NodeFaulty(
        fault=Fault(
            node=node,
            check=CHECK,
            code=finding["code"],
            severity=Severity.RESET_DEVICE if finding["is_bad"] else Severity.NOTE,
            device="" if gpu is None else f"gpu{gpu}",
            gpu=gpu,
            at_ms=at_ms,
            sentence=finding["sentence"],
        )
    )


def _failure(generation: Generation, bad: dict[str, str], count: int) -> Failed:
    named = "; ".join(f"{node}: {sentence}" for node, sentence in list(bad.items())[:MAX_NAMES])
    more = f"; and {len(bad) - MAX_NAMES} more" if len(bad) > MAX_NAMES else ""
    return Failed(
        gang=generation.gang,
        generation=generation.number,
        node=next(iter(bad)),
        cause=Cause.PREFLIGHT_FAILED,
        detail=f"{len(bad)} of {count} nodes failed the test before the start: {named}{more}",
    )
