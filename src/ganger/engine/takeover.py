"""Work in progress that a server finds when it takes over, and gives to its backend."""

from collections.abc import Iterator
from typing import Final

from ganger.core.state.gang import ACTIVE
from ganger.core.state.state import State
from ganger.model.decision import Stop
from ganger.model.node_health.health_decision import ActOnNode, HealthAction
from ganger.model.node_health.health_record import HealthState, NodeHealth, RepairStep
from ganger.model.units import DAY_MS
from ganger.ports import Backend, LiveGeneration, RepairCall

BEGUN_WITHIN_MS: Final = DAY_MS
"""Time within which a hook is begun by a later server, if the one that decided it did not do so."""


def live_generations(state: State, now_ms: int) -> Iterator[LiveGeneration]:
    """Yield the generations that hold nodes by the log; a stopping one with the rest of its notice."""
    for gang in state.gangs.values():
        if gang.attempt.start is None or not gang.attempt.left:
            continue
        stopping = None
        if gang.attempt.stop_sent and gang.state not in ACTIVE:
            left_ms = max(0, gang.attempt.notice_until_ms - now_ms)
            stopping = Stop(
                gang=gang.id, generation=gang.attempt.generation, cause=gang.attempt.stop_sent, notice_ms=left_ms
            )
        held_nodes = {share.node for share in state.allocations[gang.id]}
        lost = tuple(node for node in gang.attempt.left if node not in held_nodes)
        yield LiveGeneration(job=gang.job, start=gang.attempt.start, stopping=stopping, lost=lost)


def repair_calls(state: State, now_ms: int) -> Iterator[RepairCall]:
    """Yield the hooks whose end is not in the log."""
    for record in state.health.by_node.values():
        if record.has_succeeded is None and record.state is HealthState.REPAIRING and record.step is not None:
            yield _repair_call(state, record, record.step, now_ms)
        elif record.has_succeeded is None and record.state is HealthState.VALIDATING:
            yield _repair_call(state, record, RepairStep.TEST, now_ms)


def carry_out(state: State, backend: Backend, decision: ActOnNode) -> None:
    """Pass on to the backend what was decided about a node: a hook to run, a cordon to show."""
    record = state.health.by_node.get(decision.node)
    if decision.is_dry or record is None:
        return
    match decision.action:
        case HealthAction.REPAIR | HealthAction.VALIDATE if decision.step is not None:
            backend.repair_node(_repair_call(state, record, decision.step, state.at_ms))
        case HealthAction.CORDON | HealthAction.RETIRE:
            backend.cordon_node(decision.node, cordoned=True, reason=decision.reason)
        case HealthAction.RETURN if not state.nodes.is_cordoned(decision.node):
            backend.cordon_node(decision.node, cordoned=False, reason=decision.reason)


def _repair_call(state: State, record: NodeHealth, step: RepairStep, now_ms: int) -> RepairCall:
    hooks = state.document.node_health.hooks
    faults = [one.fault for one in record.faults if (one.fault.check, one.fault.code) == record.cause]
    check, code = record.cause
    return RepairCall(
        node=record.node,
        address=state.nodes.nodes[state.nodes.index[record.node]].address,
        repair=record.repair,
        begun_ms=record.since_ms,
        step=step,
        argv=hooks.of(step),
        timeout_ms=hooks.timeout_ms,
        is_over=record.since_ms + BEGUN_WITHIN_MS <= now_ms,
        check=check,
        code=code,
        device=faults[-1].device if faults else "",
        gpu=faults[-1].gpu if faults else None,
        image=hooks.image,
        template=hooks.template,
        is_on_node=step in hooks.on_node,
    )
