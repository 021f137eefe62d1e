"""Events and decisions about the health of nodes as text: one sentence each."""

from typing import assert_never

from ganger.model.node_health import health_event as h
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.health_decision import (
    ActOnNode,
    GroupFaults,
    HealthAction,
    HealthDecision,
    OpenHealthBreaker,
)
from ganger.model.node_health.health_record import NOMINAL_MILLI

NOTABLE_MILLI = 100
MAX_MEASUREMENTS = 4
"""Nodes that the sentence about a test names."""
SEVERITIES = {
    Severity.NOTE: "a note",
    Severity.RESTART_JOB: "its job restarts",
    Severity.RESET_DEVICE: "the device is to be reset",
    Severity.REBOOT: "the node is to be rebooted",
    Severity.REPLACE: "a part is to be replaced",
}


def health_event_text(event: h.HealthEvent) -> str:
    """Return the sentence of an event."""
    match event:
        case h.NodeFaulty(fault=fault):
            device = f" ({fault.device})" if fault.device else ""
            shadow = ", on trial" if fault.is_shadow else ""
            grade = f"{fault.check} {fault.code}: {SEVERITIES[fault.severity]}{shadow}"
            return f"node {fault.node}{device}: {fault.sentence} [{grade}]"
        case h.NodesMeasured(gang=gang, measurements=measurements):
            nodes = "1 node" if len(measurements) == 1 else f"{len(measurements)} nodes"
            return f"the test of {gang} measured {nodes}: {_measurements_text(measurements)}"
        case h.RepairEnded(node=node, repair=repair, has_succeeded=has_succeeded, detail=detail):
            end = "succeeded" if has_succeeded else "failed"
            return f"hook {repair} of node {node} {end}" + (f": {detail}" if detail else "")
        case h.RepairRequested(node=node, step=step, by=by, reason=reason):
            begin = f", beginning with {step}" if step else ""
            return f"{by or 'someone'} asked for a repair of node {node}{begin}" + (f": {reason}" if reason else "")
        case h.NodeReturnRequested(node=node, by=by):
            return f"{by or 'someone'} asked for node {node} to be tested and returned"
        case h.NodeRetired(node=node, by=by, reason=reason):
            return f"{by or 'someone'} retired node {node}" + (f": {reason}" if reason else "")
        case h.BreakerReset(by=by):
            return f"{by or 'someone'} allowed automatic cordons again"
        case _ as never:
            assert_never(never)


def _measurements_text(measurements: tuple[h.NodeMeasurement, ...]) -> str:
    """Return the slowest nodes of a test with their performance, and what is wrong with them."""
    notable = [one for one in measurements if one.sentence or one.performance_milli < NOMINAL_MILLI - NOTABLE_MILLI]
    notable.sort(key=lambda one: (one.performance_milli, one.node))
    texts = [
        f"{one.node} has {one.performance_milli / 10:.0f} % of the usual performance"
        + (f" ({one.sentence})" if one.sentence else "")
        for one in notable[:MAX_MEASUREMENTS]
    ]
    more = len(notable) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "") if texts else "none is slow"


def health_decision_text(decision: HealthDecision) -> str:
    """Return the sentence of a decision."""
    match decision:
        case GroupFaults(reason=reason) | OpenHealthBreaker(reason=reason):
            return reason
        case ActOnNode():
            return _action_text(decision)
        case _ as never:
            assert_never(never)


def _action_text(decision: ActOnNode) -> str:
    action = {
        HealthAction.RECOVER: "is healthy again",
        HealthAction.CORDON: "is taken out of service",
        HealthAction.DRAIN: "is drained",
        HealthAction.REPAIR: f"is repaired by {decision.step} (hook {decision.repair})",
        HealthAction.VALIDATE: f"is tested (hook {decision.repair})" if decision.step else "is not tested",
        HealthAction.RETURN: "is back in service, on probation",
        HealthAction.RELEASE: "is healthy again",
        HealthAction.RETIRE: "is retired",
        HealthAction.HOLD: "stays out of service until a person acts",
    }[decision.action]
    dry = "; that is a dry run: nothing is done" if decision.is_dry else ""
    return f"node {decision.node} {action}: {decision.reason}{dry}"
