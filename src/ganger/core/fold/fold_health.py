"""The fold of events and decisions about the health of nodes.

A node that is taken out of service is cordoned, and its jobs are drained as an operator's `drain` does it; a node that
is returned is uncordoned.
"""

from typing import assert_never

from ganger.core.fold import fold_cluster
from ganger.core.node_health import transitions
from ganger.core.state.gang import Gang
from ganger.core.state.lifecycle import NODE, NodeStep, node_next
from ganger.core.state.state import State
from ganger.model.node_health import health_event as h
from ganger.model.node_health.health_decision import (
    ActOnNode,
    GroupFaults,
    HealthAction,
    HealthDecision,
    OpenHealthBreaker,
)
from ganger.model.node_health.health_record import HealthState

Touched = tuple[Gang, ...]
RETURNABLE = (HealthState.CORDONED, HealthState.RETIRED)


def refusal(state: State, event: h.HealthEvent) -> str | None:
    """Return the reason why the event cannot be folded now, or None."""
    if isinstance(event, h.BreakerReset | h.NodesMeasured):
        return None
    name = event.fault.node if isinstance(event, h.NodeFaulty) else event.node
    if name not in state.nodes.index:
        return f"there is no node {name}"
    record = state.health.by_node.get(name)
    health = HealthState.HEALTHY if record is None else record.state
    match event:
        case h.RepairEnded():
            return transitions.repair_refusal(state, event)
        case h.RepairRequested():
            return f"node {name} is {health}: wait for the end of its hook" if health in transitions.IN_HAND else None
        case h.NodeReturnRequested():
            return None if health in RETURNABLE else f"node {name} is {health}: it is not held out of service"
        case h.NodeRetired():
            if health is HealthState.RETIRED:
                return f"node {name} is retired already"
            return f"node {name} is {health}: wait for the end of its hook" if health in transitions.IN_HAND else None
        case h.NodeFaulty():
            return None


def fold(state: State, event: h.HealthEvent, at_ms: int) -> Touched:
    """Fold an event about the health of nodes; return the gangs that it changed."""
    match event:
        case h.NodeFaulty(fault=fault):
            transitions.note_fault(state, fault, at_ms)
        case h.NodesMeasured():
            transitions.note_measurements(state, event, at_ms)
        case h.RepairEnded():
            transitions.note_repair_end(state, event)
        case h.RepairRequested(node=node):
            transitions.request_repair(state, event, at_ms)
            _take(state, node, NodeStep.CORDON)
        case h.NodeReturnRequested(node=node):
            transitions.request_return(state, node)
        case h.NodeRetired(node=node, by=by, reason=reason):
            text = f"{by or 'someone'} retired it" + (f": {reason}" if reason else "")
            transitions.act(state, ActOnNode(node=node, action=HealthAction.RETIRE, reason=text), at_ms)
            _take(state, node, NodeStep.CORDON)
            return fold_cluster.drain(state, node, None, at_ms)
        case h.BreakerReset():
            transitions.reset_breaker(state)
        case _ as never:
            assert_never(never)
    return ()


def decide(state: State, decision: HealthDecision, at_ms: int) -> Touched:
    """Fold a decision about the health of nodes; return the gangs that it changed."""
    match decision:
        case GroupFaults():
            transitions.group_faults(state, decision, at_ms)
        case OpenHealthBreaker():
            transitions.open_breaker(state, decision, at_ms)
        case ActOnNode():
            return _act(state, decision, at_ms)
    return ()


def _act(state: State, decision: ActOnNode, at_ms: int) -> Touched:
    node, action = decision.node, decision.action
    before = transitions.record_of(state, node)
    transitions.act(state, decision, at_ms)
    if decision.is_dry:
        return ()
    if action in (HealthAction.CORDON, HealthAction.RETIRE):
        transitions.count_cordon(state, decision, at_ms)
        _take(state, node, NodeStep.CORDON)
    if action in (HealthAction.DRAIN, HealthAction.RETIRE):
        return fold_cluster.drain(state, node, None, at_ms)
    if action is HealthAction.RETURN and not before.keeps_cordon:
        _take(state, node, NodeStep.UNCORDON)
    return ()


def _take(state: State, name: str, step: NodeStep) -> None:
    """Cordon or uncordon a node unless it is so already."""
    current = state.nodes.states[state.nodes.index[name]]
    if (current, step) in NODE:
        state.nodes.set_state(name, node_next(current, step))
