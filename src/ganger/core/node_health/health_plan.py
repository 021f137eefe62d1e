"""Decisions about faulty nodes: cordons, drains, repair steps, tests, returns. A function of state and time.

`core.cycle.cycle` asks first; what is decided here makes a cycle of its own, and the next one, at once, counts on it.
Nothing is decided twice: each decision changes the record of its node, and each hook has a number.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ganger.core.node_health.cordon_limits import CordonLimits, fault_groups
from ganger.core.node_health.innermost_domain import domain_of
from ganger.core.node_health.transitions import REPAIR_WINDOW_MS, gravest
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_decision import ActOnNode, HealthAction, HealthDecision
from ganger.model.node_health.health_record import LADDER, HealthState, NodeHealth, RepairStep
from ganger.model.node_health.health_rules import CHECKPOINT, DRY_RUN, NOW, RECORD
from ganger.model.units import SECOND_MS, format_duration

SAVE_POLL_MS: Final = 10 * SECOND_MS
"""Interval at which a cordoned node looks whether its jobs have saved: a checkpoint alone brings no cycle."""


def decide(state: State, now_ms: int) -> tuple[HealthDecision, ...]:
    """Return what is to be done about the nodes now."""
    if not state.health.is_due(now_ms):
        return ()
    records = [state.health.by_node[name] for name in state.health.due(now_ms)]
    steps = [step for record in records if (step := _next_step(state, record, now_ms)) is not None]
    moved = {step.node for step in steps}
    faulty = [record for record in records if _is_to_be_cordoned(state, record, now_ms) and record.node not in moved]
    return (*steps, *_cordons(state, faulty, now_ms))


def next_ms(state: State, now_ms: int) -> int | None:
    """Return when time alone leads to a decision."""
    if not state.health.by_node:
        return None
    is_polled = state.document.node_health.drain == CHECKPOINT and any(
        state.health.by_node[name].state is HealthState.CORDONED for name in state.health.waiting
    )
    times_ms = (state.health.next_ms(now_ms), now_ms + SAVE_POLL_MS if is_polled else None)
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def waits_for(state: State, record: NodeHealth, now_ms: int) -> str:
    """Return what keeps a faulty node in service, as the end of a sentence; empty if nothing does."""
    if record.is_out or gravest(record) is None:
        return ""
    limits = CordonLimits(state, now_ms)
    if state.document.node_health.mode == RECORD:
        return "node_health.mode is record: it stays in service"
    if state.nodes.is_cordoned(record.node):
        return "a user has cordoned it: it is left to that user"
    if limits.is_broken(record):
        return "the breaker is open: it stays in service; ganger node repair cordons it all the same"
    budget = limits.exceeded_budget(record)
    return f"it stays in service: {budget}" if budget else ""


# -- cordons -----------------------------------------------------------------------------------------------------------


def _is_to_be_cordoned(state: State, record: NodeHealth, now_ms: int) -> bool:
    if state.document.node_health.mode == RECORD or record.is_out or record.acts_ms is None:
        return False
    return record.acts_ms <= now_ms and not state.nodes.is_cordoned(record.node)


def _cordons(state: State, faulty: list[NodeHealth], now_ms: int) -> Iterator[HealthDecision]:
    """Yield the cordons of faulty nodes, the gravest first, as far as the limits allow them."""
    if not faulty:
        return
    grouped: dict[str, None] = {}
    for group in fault_groups(state, [record.node for record in faulty], now_ms):
        if not any(name not in grouped for name in group.nodes):
            continue  # the event of a domain
        grouped |= dict.fromkeys(group.nodes)
        yield group
    limits = CordonLimits(state, now_ms)
    for record in sorted(faulty, key=_urgency):
        if record.node in grouped or limits.is_broken(record):
            continue
        opened = limits.opened_breaker(record)
        if opened is not None:
            yield opened
        elif not limits.exceeded_budget(record):
            limits.count(record)
            yield _cordon(state, record, now_ms)


def _urgency(record: NodeHealth) -> tuple[int, int, str]:
    grave = gravest(record)
    assert grave is not None, "a node is cordoned for a fault"
    return -grave.fault.severity, grave.first_ms, record.node


def _cordon(state: State, record: NodeHealth, now_ms: int) -> ActOnNode:
    rules, grave = state.document.node_health, gravest(record)
    assert grave is not None, "a node is cordoned for a fault"
    repairs = sum(time_ms > now_ms - REPAIR_WINDOW_MS for time_ms in record.repairs_ms)
    is_lemon = repairs >= rules.probation.retire_after
    reason = grave.fault.sentence
    if is_lemon:
        reason += (
            f"; it was repaired {repairs} times in 7 days: it is retired; ganger node return tests it all the same"
        )
    return ActOnNode(
        node=record.node,
        action=HealthAction.RETIRE if is_lemon else HealthAction.CORDON,
        reason=reason,
        domain=domain_of(state.nodes, record.node),
        step=_first_step(record, grave.fault, rules.probation.relapse_ms, now_ms),
        is_dry=rules.mode == DRY_RUN,
    )


def _first_step(record: NodeHealth, fault: Fault, relapse_ms: int, now_ms: int) -> RepairStep:
    """Return the step that a repair begins with: the next one if the last did not cure the same fault for long."""
    first = {
        Severity.REBOOT: RepairStep.REBOOT,
        Severity.REPLACE: RepairStep.TICKET,
    }.get(fault.severity, RepairStep.RESTART_SERVICE if fault.gpu is None else RepairStep.RESET_DEVICE)
    is_back = record.returned_ms is not None and now_ms - record.returned_ms <= relapse_ms
    if is_back and record.step is not None and record.cause == (fault.check, fault.code):
        first = max(first, _after(record.step) or RepairStep.TICKET, key=LADDER.index)
    return first


def _after(step: RepairStep) -> RepairStep | None:
    rest = LADDER[LADDER.index(step) + 1 :]
    return rest[0] if rest else None


# -- one node after the other ------------------------------------------------------------------------------------------


def _next_step(state: State, record: NodeHealth, now_ms: int) -> ActOnNode | None:
    """Return the next step of a node by itself, or None."""
    is_over = record.due_ms is not None and record.due_ms <= now_ms
    match record.state:
        case HealthState.SUSPECT if is_over and not _is_faulty(state, record):
            return _act(record, HealthAction.RECOVER, "its score is low again")
        case HealthState.PROBATION if is_over and not _is_faulty(state, record):
            return _act(record, HealthAction.RELEASE, "it was on probation without a grave fault")
        case HealthState.RETIRED if record.is_wanted:
            return _validation(state, record)
        case HealthState.CORDONED if record.is_wanted:
            return _validation(state, record)
        case HealthState.CORDONED if not record.is_held:
            return _leave(state, record, now_ms)
        case HealthState.DRAINING:
            return _drained(state, record, is_over=is_over)
        case HealthState.REPAIRING if record.has_succeeded is not None or is_over:
            return _repaired(state, record)
        case HealthState.VALIDATING if record.has_succeeded is not None or is_over:
            return _validated(state, record)
        case _:
            return None


def _is_faulty(state: State, record: NodeHealth) -> bool:
    """Return whether a node has a fault for which it is to be cordoned, sooner or later."""
    return state.document.node_health.mode != RECORD and gravest(record) is not None


def _act(record: NodeHealth, action: HealthAction, reason: str) -> ActOnNode:
    return ActOnNode(node=record.node, action=action, reason=reason)


def _gangs(state: State, name: str) -> list[Gang]:
    return state.on_nodes([name])


def _leave(state: State, record: NodeHealth, now_ms: int) -> ActOnNode | None:
    """Return the repair of a cordoned node that is empty, or its drain when the time for that has come."""
    gangs, drain = _gangs(state, record.node), state.document.node_health.drain
    if not gangs:
        return _repair(state, record, record.step or RepairStep.RESET_DEVICE)
    is_over = record.due_ms is not None and record.due_ms <= now_ms
    has_saved = drain == CHECKPOINT and all(_has_saved(gang, record.since_ms, now_ms) for gang in gangs)
    if drain == NOW or is_over or has_saved:
        return _act(record, HealthAction.DRAIN, record.reason)
    return None


def _has_saved(gang: Gang, since_ms: int, now_ms: int) -> bool:
    """Return whether a gang has no unsaved work from before a time."""
    account = gang.account
    working_ms = now_ms - account.since_ms if account.part == "working" else 0
    return account.unsaved_ms + working_ms < now_ms - since_ms


def _drained(state: State, record: NodeHealth, *, is_over: bool) -> ActOnNode | None:
    gangs = _gangs(state, record.node)
    if not gangs:
        return _repair(state, record, record.step or RepairStep.RESET_DEVICE)
    if not is_over:
        return None
    timeout = format_duration(state.document.node_health.drain_timeout_ms)
    reason = f"{gangs[0].id} has not left it within {timeout}: stop that job, then: ganger node repair {record.node}"
    return _act(record, HealthAction.HOLD, reason)


def _repair(state: State, record: NodeHealth, first: RepairStep) -> ActOnNode:
    """Return the start of the first step from `first` on that has a hook, or the end of what can be done."""
    hooks = state.document.node_health.hooks
    step = hooks.next_step(first)
    if step is None:
        reason = f"{_story(record)}; there is no hook for {first} or a later step: repair it, then: "
        return _act(record, HealthAction.HOLD, f"{reason}ganger node return {record.node}")
    return ActOnNode(
        node=record.node, action=HealthAction.REPAIR, reason=_story(record), repair=record.repair + 1, step=step
    )


def _story(record: NodeHealth) -> str:
    """Return why a node is out of service, and what its last hook came to."""
    return record.origin if record.reason == record.origin else f"{record.origin}; {record.reason}"


def _validation(state: State, record: NodeHealth) -> ActOnNode:
    step = RepairStep.TEST if state.document.node_health.hooks.test else None
    reason = _story(record) if step else f"{_story(record)}; there is no hook that tests it"
    return ActOnNode(node=record.node, action=HealthAction.VALIDATE, reason=reason, repair=record.repair + 1, step=step)


def _repaired(state: State, record: NodeHealth) -> ActOnNode:
    """Return what follows a repair step."""
    step = record.step or RepairStep.RESET_DEVICE
    if record.has_succeeded and step is RepairStep.TICKET:
        reason = f"a person was asked to repair it ({record.origin}); then: ganger node return {record.node}"
        return _act(record, HealthAction.HOLD, reason)
    if record.has_succeeded:
        return _validation(state, record)
    return _escalated(state, _with_reason(record, f"{step} did not end in time"), step)


def _escalated(state: State, record: NodeHealth, step: RepairStep) -> ActOnNode:
    """Return another try of a step that failed, or the next one."""
    if record.state is HealthState.REPAIRING and record.tries < state.document.node_health.hooks.attempts:
        return _repair(state, record, step)
    after = _after(step)
    if after is None:
        reason = f"{_story(record)}; that was the last step: repair it, then: ganger node return {record.node}"
        return _act(record, HealthAction.HOLD, reason)
    return _repair(state, record, after)


def _validated(state: State, record: NodeHealth) -> ActOnNode:
    """Return what follows a test."""
    if record.has_succeeded:
        return _act(record, HealthAction.RETURN, f"it was out of service since {record.origin}")
    record = _with_reason(record, "its test did not end in time")
    if record.is_wanted or record.step is None:
        reason = f"{_story(record)}; test it again: ganger node return {record.node}"
        return _act(record, HealthAction.HOLD, reason)
    return _escalated(state, record, record.step)


def _with_reason(record: NodeHealth, timed_out: str) -> NodeHealth:
    """Return the record with another reason if its hook has not ended."""
    return record if record.has_succeeded is not None else replace(record, reason=timed_out)
