"""Changes of the health of a node by facts, decisions and requests of operators. The fold of events calls this.

The gangs on a node, and its state for placement, are changed by the fold itself.
"""

from dataclasses import replace
from typing import Final

from ganger.core.node_health.cordon_limits import fault_groups
from ganger.core.node_health.health_lifecycle import HealthStep, health_next
from ganger.core.node_health.innermost_domain import domain_of
from ganger.core.node_health.suspicion import points_milli_at, recovers_ms, suspicion_of
from ganger.core.state.state import State
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_decision import ActOnNode, GroupFaults, HealthAction, OpenHealthBreaker
from ganger.model.node_health.health_event import NodesMeasured, RepairEnded, RepairRequested
from ganger.model.node_health.health_record import (
    NOMINAL_MILLI,
    CordonRecord,
    FaultGroup,
    FaultRecord,
    HealthState,
    NodeHealth,
    OpenBreaker,
    RepairStep,
)
from ganger.model.node_health.health_rules import CHECKPOINT, NodeHealthRules
from ganger.model.units import DAY_MS, MINUTE_MS

MAX_FAULTS: Final = 16
"""Faults that are kept of a node."""
REPAIR_WINDOW_MS: Final = 7 * DAY_MS
"""Window in which repairs of a node are counted."""
IN_HAND: Final = (HealthState.REPAIRING, HealthState.VALIDATING)
"""States in which a hook runs."""
RECEIPT_GRACE_MS: Final = MINUTE_MS
"""Time after the time-out of a hook within which its end must have been reported."""


def record_of(state: State, name: str) -> NodeHealth:
    """Return the record of a node, or that of a healthy one."""
    return state.health.by_node.get(name) or NodeHealth(node=name, since_ms=state.at_ms)


def put(state: State, record: NodeHealth) -> None:
    """Replace the record of a node, and what placement holds against it."""
    record = with_derived(record, state.document.node_health)
    state.health.put(record)
    state.nodes.penalize(record.node, record.suspicion, record.slowness_milli)


def with_derived(record: NodeHealth, rules: NodeHealthRules) -> NodeHealth:
    """Return the record with what follows from its other fields and the rules."""
    return replace(record, suspicion=suspicion_of(record), acts_ms=_acts_ms(record, rules))


def note_fault(state: State, fault: Fault, at_ms: int) -> None:
    """Record a fault, or that it lasts: a report of the same fault within the window is no other one."""
    rules, before = state.document.node_health, record_of(state, fault.node)
    group = _join_group(state, fault, at_ms)
    known = next((record for record in before.faults if record.fault.key == fault.key), None)
    if known is not None and at_ms - known.last_ms < rules.correlation.window_ms:
        was_grouped = known.is_grouped and group is None  # the event is over, and the fault is still there
        again = replace(known, fault=fault, last_ms=at_ms, count=known.count + 1, is_grouped=group is not None)
        again = replace(again, is_settled=(known.is_settled and not was_grouped) or group is not None)
        faults, points = tuple(again if record is known else record for record in before.faults), 0
    else:
        is_grouped = group is not None
        new = FaultRecord(fault=fault, first_ms=at_ms, last_ms=at_ms, is_settled=is_grouped, is_grouped=is_grouped)
        others = tuple(record for record in before.faults if record is not known)
        faults = (*others, new)[-MAX_FAULTS:]
        points = 0 if fault.is_shadow or is_grouped else rules.suspicion.points(fault.severity)
    put(state, _with_points(replace(before, faults=faults), points, rules, at_ms))
    if points and fault.severity is Severity.RESTART_JOB:
        # Nothing is decided about such faults, so that they are grouped at once: a switch that fails is no lemon.
        for grouped in fault_groups(state, [fault.node], at_ms, are_grave=False):
            group_faults(state, grouped, at_ms)


def note_loss(state: State, name: str, detail: str, at_ms: int) -> None:
    """Record that a node in service was lost: it is suspect for a time when it is back, as after a fault."""
    if record_of(state, name).is_out:
        return  # a step of its repair
    sentence = detail or "it stopped responding"
    fault = Fault(node=name, check="node", code="lost", severity=Severity.RESTART_JOB, at_ms=at_ms, sentence=sentence)
    note_fault(state, fault, at_ms)


def note_measurements(state: State, measured: NodesMeasured, at_ms: int) -> None:
    """Record what a test of nodes measured of them. A node that is gone meanwhile is left out."""
    for one in measured.measurements:
        if one.node in state.nodes.index:
            record = replace(record_of(state, one.node), performance_milli=one.performance_milli, measured_ms=at_ms)
            put(state, replace(record, measurement=one.sentence))


def _with_points(record: NodeHealth, points: int, rules: NodeHealthRules, at_ms: int) -> NodeHealth:
    """Return the record with more points, which may make a node suspect."""
    if not points:
        return record
    milli = points_milli_at(record, at_ms, rules.suspicion.half_life_ms) + 1000 * points
    record = replace(record, points_milli=milli, points_ms=at_ms)
    if record.state is HealthState.HEALTHY and milli >= 1000 * rules.suspicion.suspect_from:
        reason = record.faults[-1].fault.sentence
        record = _step(record, HealthStep.FAULT, at_ms, reason)
    if record.state is HealthState.SUSPECT:
        record = replace(record, due_ms=recovers_ms(record, rules.suspicion))
    return record


def _join_group(state: State, fault: Fault, at_ms: int) -> FaultGroup | None:
    """Return the group that a fault is part of. It lasts while as many nodes as make one report faults."""
    domain, rules = domain_of(state.nodes, fault.node), state.document.node_health.correlation
    group = next((one for one in state.health.groups if one.until_ms > at_ms and one.has(fault, domain)), None)
    if group is None or fault.is_shadow:
        return None
    nodes = group.nodes if fault.node in group.nodes else (*group.nodes, fault.node)
    lasting = [name for name in nodes if _reports(state, name, group, at_ms - rules.window_ms)]
    until_ms = at_ms + rules.window_ms if len(lasting) >= rules.nodes else group.until_ms
    joined = replace(group, nodes=nodes, until_ms=until_ms)
    if joined != group:
        state.health.groups = tuple(joined if one is group else one for one in state.health.groups)
    return joined


def _reports(state: State, name: str, group: FaultGroup, since_ms: int) -> bool:
    record = state.health.by_node.get(name)
    faults = record.faults if record is not None else ()
    return any(
        fault.last_ms > since_ms and fault.fault.check == group.check and group.code in ("", fault.fault.code)
        for fault in faults
    )


def await_reports(state: State, at_ms: int) -> None:
    """Wait again for the ends of hooks: while no server ran one may have ended, or have been left to be begun now."""
    due_ms = at_ms + state.document.node_health.hooks.timeout_ms + RECEIPT_GRACE_MS
    for record in list(state.health.by_node.values()):
        if record.state in IN_HAND and record.has_succeeded is None:
            put(state, replace(record, due_ms=due_ms))


def repair_refusal(state: State, ended: RepairEnded) -> str | None:
    """Return the reason why a report about a hook is stale, or None."""
    record = state.health.by_node.get(ended.node)
    if record is None or record.state not in IN_HAND:
        return f"node {ended.node} is not being repaired"
    if record.repair != ended.repair or record.has_succeeded is not None:
        return f"repair {ended.repair} of node {ended.node} is over; {record.repair} is the newest"
    return None


def note_repair_end(state: State, ended: RepairEnded) -> None:
    """Record how a hook ended. A test during which the node reports a grave fault has failed."""
    record = state.health.by_node[ended.node]
    is_faulty = record.state is HealthState.VALIDATING and any(
        fault.calls_for_repair and fault.last_ms >= record.since_ms for fault in record.faults
    )
    succeeded = ended.has_succeeded and not is_faulty
    reason = ended.detail or ("the hook succeeded" if ended.has_succeeded else "the hook failed")
    if ended.has_succeeded and is_faulty:
        reason = f"during its test: {record.faults[-1].fault.sentence}"
    put(state, replace(record, has_succeeded=succeeded, reason=reason))


def vouch(state: State, name: str, by: str, at_ms: int) -> None:
    """Record that a user uncordoned a node: on that user's word it is returned untested, or suspect no more."""
    record, rules = state.health.by_node.get(name), state.document.node_health
    if record is not None and record.is_out:
        reason = f"{by or 'someone'} uncordoned it, without a test"
        returned = _returned(replace(record, has_succeeded=None), rules, at_ms)
        put(state, _step(returned, HealthStep.VOUCH, at_ms, reason))
    elif record is not None and record.state is HealthState.SUSPECT:
        cleared = replace(record, points_milli=0, points_ms=at_ms, due_ms=None)
        put(state, _step(cleared, HealthStep.VOUCH, at_ms, f"{by or 'someone'} uncordoned it"))


def keep_cordon(state: State, name: str) -> None:
    """Record that a user drained a node: one out of service stays cordoned when it is returned."""
    record = state.health.by_node.get(name)
    if record is not None and record.is_out:
        put(state, replace(record, keeps_cordon=True))


def request_repair(state: State, request: RepairRequested, at_ms: int) -> None:
    """Begin a repair on request, whatever the budget is: the machine goes on from there."""
    record = record_of(state, request.node)
    reason = f"{request.by or 'someone'} asked for a repair" + (f": {request.reason}" if request.reason else "")
    first = request.step or RepairStep.RESET_DEVICE
    if record.state in (HealthState.CORDONED, HealthState.DRAINING):
        begun = replace(record, reason=reason, origin=reason, is_held=False, is_wanted=False, step=first, tries=0)
        return put(state, begun)
    is_cordoned = state.nodes.is_cordoned(request.node) and not record.is_out
    cordon = ActOnNode(node=request.node, action=HealthAction.CORDON, reason=reason, step=first)
    act(state, cordon, at_ms)
    if is_cordoned:
        keep_cordon(state, request.node)
    return None


def request_return(state: State, name: str) -> None:
    """Begin the test of a node that is to be returned."""
    put(state, replace(state.health.by_node[name], is_wanted=True, is_held=False))


def act(state: State, decision: ActOnNode, at_ms: int) -> None:
    """Change the record of a node as it was decided."""
    rules, record = state.document.node_health, record_of(state, decision.node)
    if decision.is_dry:
        return put(state, replace(record, faults=_settled(record), reason=decision.reason))
    before, record = record, _step(record, decision.action, at_ms, decision.reason)
    match decision.action:
        case HealthAction.CORDON | HealthAction.RETIRE:
            record = _cordoned(record, decision, rules, at_ms)
        case HealthAction.DRAIN:
            record = replace(record, due_ms=at_ms + rules.drain_timeout_ms)
        case HealthAction.REPAIR:
            is_again = before.step is decision.step and before.state is HealthState.REPAIRING
            record = _started(record, decision, rules, at_ms)
            record = replace(record, step=decision.step, tries=record.tries + 1 if is_again else 1)
            if before.state in (HealthState.CORDONED, HealthState.DRAINING):
                recent = (time_ms for time_ms in record.repairs_ms if time_ms > at_ms - REPAIR_WINDOW_MS)
                record = replace(record, repairs_ms=(*recent, at_ms))
        case HealthAction.VALIDATE:
            record = _started(record, decision, rules, at_ms)
            record = replace(record, has_succeeded=None if decision.step else True)
        case HealthAction.RETURN:
            record = _returned(record, rules, at_ms)
        case HealthAction.RELEASE | HealthAction.RECOVER:
            limit_milli = 500 * rules.suspicion.suspect_from - 1
            milli = min(limit_milli, points_milli_at(record, at_ms, rules.suspicion.half_life_ms))
            record = replace(record, points_milli=milli, points_ms=at_ms, faults=(), due_ms=None)
        case HealthAction.HOLD:
            record = replace(record, is_held=True, is_wanted=False, has_succeeded=None, due_ms=None)
    return put(state, record)


def group_faults(state: State, decision: GroupFaults, at_ms: int) -> None:
    """Record that faults of many nodes are one event, which settles them."""
    group = FaultGroup(
        check=decision.check,
        code=decision.code,
        domain=decision.domain,
        nodes=decision.nodes,
        until_ms=decision.until_ms,
    )
    state.health.groups = (*(one for one in state.health.groups if one.until_ms > at_ms), group)
    for name in decision.nodes:
        record = state.health.by_node.get(name)
        if record is not None:
            put(state, _grouped(state, record, group, decision.reason, at_ms))


def _grouped(state: State, record: NodeHealth, group: FaultGroup, reason: str, at_ms: int) -> NodeHealth:
    """Return the record with the faults of a group settled, which do not count against the node any more."""
    domain, rules = domain_of(state.nodes, record.node), state.document.node_health.suspicion
    new = [fault for fault in record.faults if not fault.is_grouped and group.has(fault.fault, domain)]
    new = [fault for fault in new if not fault.fault.is_shadow]
    points = sum(rules.points(fault.fault.severity) for fault in new if not fault.is_settled)
    milli = max(0, points_milli_at(record, at_ms, rules.half_life_ms) - 1000 * points)
    faults = tuple(replace(one, is_settled=True, is_grouped=True) if one in new else one for one in record.faults)
    record = replace(record, faults=faults, points_milli=milli, points_ms=at_ms)
    record = record if record.is_out else replace(record, reason=reason)
    return replace(record, due_ms=recovers_ms(record, rules)) if record.state is HealthState.SUSPECT else record


def open_breaker(state: State, decision: OpenHealthBreaker, at_ms: int) -> None:
    """Record that automatic cordons are stopped."""
    opened = OpenBreaker(domain=decision.domain, until_ms=decision.until_ms)
    state.health.breakers = (*(one for one in state.health.breakers if one.until_ms > at_ms), opened)


def reset_breaker(state: State) -> None:
    """Close all breakers, and forget the cordons that opened them."""
    state.health.breakers, state.health.cordons = (), ()


# -- parts -------------------------------------------------------------------------------------------------------------


def _step(record: NodeHealth, step: HealthStep | HealthAction, at_ms: int, reason: str) -> NodeHealth:
    return replace(record, state=health_next(record.state, step), since_ms=at_ms, reason=reason)


def _settled(record: NodeHealth) -> tuple[FaultRecord, ...]:
    """Return the faults, with those that call for a repair settled."""
    return tuple(replace(fault, is_settled=True) if fault.calls_for_repair else fault for fault in record.faults)


def _cordoned(record: NodeHealth, decision: ActOnNode, rules: NodeHealthRules, at_ms: int) -> NodeHealth:
    grave = gravest(record)
    due_ms = at_ms + rules.drain_timeout_ms if rules.drain == CHECKPOINT else None
    if decision.action is HealthAction.RETIRE:
        due_ms = None
    return replace(
        record,
        faults=_settled(record),
        due_ms=due_ms,
        step=decision.step or record.step,
        tries=0,
        has_succeeded=None,
        is_held=False,
        is_wanted=False,
        cause=record.cause if grave is None else (grave.fault.check, grave.fault.code),
        origin=decision.reason,
    )


def count_cordon(state: State, decision: ActOnNode, at_ms: int) -> None:
    """Count a node that was taken out of service by decision, for the breaker."""
    window_ms = state.document.node_health.breaker.window_ms
    recent = (cordon for cordon in state.health.cordons if cordon.at_ms > at_ms - window_ms)
    counted = CordonRecord(node=decision.node, domain=decision.domain, at_ms=at_ms)
    state.health.cordons = (*recent, counted)


def _started(record: NodeHealth, decision: ActOnNode, rules: NodeHealthRules, at_ms: int) -> NodeHealth:
    due_ms = at_ms + rules.hooks.timeout_ms + RECEIPT_GRACE_MS
    return replace(record, repair=decision.repair, has_succeeded=None, is_held=False, due_ms=due_ms)


def _returned(record: NodeHealth, rules: NodeHealthRules, at_ms: int) -> NodeHealth:
    return replace(
        record,
        faults=(),
        due_ms=at_ms + rules.probation.time_ms,
        has_succeeded=None,
        is_held=False,
        is_wanted=False,
        keeps_cordon=False,
        returned_ms=at_ms,
        performance_milli=NOMINAL_MILLI,
        measured_ms=None,
        measurement="",
    )


def gravest(record: NodeHealth) -> FaultRecord | None:
    """Return the gravest fault that calls for a repair, the first of equal ones."""
    faults = [fault for fault in record.faults if fault.calls_for_repair]
    return max(faults, key=lambda fault: fault.fault.severity, default=None)


def _acts_ms(record: NodeHealth, rules: NodeHealthRules) -> int | None:
    """Return when a node that is in service is to be cordoned."""
    if record.is_out:
        return None
    begun = (fault.first_ms for fault in record.faults if fault.calls_for_repair)
    first_ms = min(begun, default=None)
    return None if first_ms is None else first_ms + rules.correlation.settle_ms
