"""The stops of a cycle: of gangs that end, leave nodes or pause, and of failed attempts; others are `preemption`'s."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ganger.core.cycle import resizing
from ganger.core.preemption.victim_order import unsaved_ms
from ganger.core.state import spares
from ganger.core.state.elastic_gangs import without_nodes
from ganger.core.state.gang import ACTIVE, STAYING, Gang
from ganger.core.state.state import Shares, State
from ganger.core.state.timers import deadline_ms
from ganger.model.decision import Cause, PreemptionRule, Stop
from ganger.model.job import GangState

UNSAVED: Final = (Cause.ROLLED_BACK, Cause.DIVERGED)
"""Causes of stops without a notice: the newest weights are not wanted."""


def find_stops(state: State, now_ms: int) -> Iterator[Stop]:
    """Yield stops of gangs that are to end, leave or pause, and of failed generations, oldest first."""
    # Only gangs that an event or a timer has touched, or that maintenance meets, are looked at, not all that run.
    timed_out = {name: state.gangs[name] for name in state.timers.expired(now_ms)}
    closed = frozenset(state.maintenance.affected_nodes(now_ms))
    maintained = {gang.id: gang for gang in state.on_nodes(closed) if gang.state in STAYING and gang.uses(closed)}
    for gang in sorted((state.timers.in_transition | timed_out | maintained).values(), key=lambda gang: gang.number):
        # The end of a gang comes before the end of its attempt, and both before what only moves or resizes it: each
        # cycle sends one stop, and a later one could not take an earlier one back.
        cause = _end_cause(gang, now_ms) or _failure_cause(gang) or _pause_cause(state, gang)
        cause = cause or (Cause.DRAINED if gang.id in maintained else None)
        if cause:
            stop = stop_of(gang, cause, 0 if cause in UNSAVED else _notice_left_ms(gang, now_ms))
            if cause is Cause.PREEMPTED:
                stop = _recalling_stop(state, gang, stop, now_ms)
            if cause is Cause.RESIZED:
                stop = replace(stop, shares=resizing.smaller(state, gang, gang.max_nodes))
            if cause in (Cause.DRAINED, Cause.NODE_PREEMPTED, Cause.EVICTED):
                vacates = gang.attempt.vacates or next((node for node in gang.nodes if node in closed), "")
                stop = replace(stop, node=vacates, shares=_goes_on_without(state, gang, vacates))
            if cause is Cause.NODE_LOST and gang.attempt.failure is not None:
                keeps_ms = (gang.retries.kept_until_ms or now_ms) - now_ms
                stop = replace(stop, node=gang.attempt.failure.node, shares=gang.attempt.target, keeps_ms=keeps_ms)
            yield stop


def stop_of(gang: Gang, cause: Cause, notice_ms: int) -> Stop:
    """Return the stop of a gang's attempt."""
    return Stop(gang=gang.id, generation=gang.attempt.generation, cause=cause, notice_ms=notice_ms)


def _end_cause(gang: Gang, now_ms: int) -> Cause | None:
    """Return the cause why a gang has to end, or None if there is none or it is ending already.

    One that has to leave before its notice is over, because a user wants it to end now, is stopped once more: that stop
    has no notice, and so is the last one.
    """
    attempt = gang.attempt
    is_early = attempt.leave_by_ms is not None and attempt.leave_by_ms < attempt.notice_until_ms
    if gang.state is GangState.STOPPING and is_early and gang.notice_ends_ms(now_ms) is not None:
        return gang.end_cause
    if gang.state in (GangState.FINISHING, GangState.FAILING, GangState.STOPPING):
        return None
    if gang.end_cause:
        return gang.end_cause
    if gang.has_used_its_time:
        return Cause.TIME_LIMIT
    end_ms = deadline_ms(gang)
    if end_ms is None or now_ms < end_ms:
        return None
    return Cause.QUEUE_TIME if gang.state is GangState.PENDING else Cause.TIME_LIMIT


def _failure_cause(gang: Gang) -> Cause | None:
    """Return why what is left of a failed attempt has to go, or None if nothing failed or its stop was sent."""
    attempt, is_ending = gang.attempt, gang.state in (GangState.REQUEUEING, GangState.FAILING)
    is_ending = is_ending or (gang.state is GangState.RESIZING and bool(gang.attempt.left))  # a spare takes over
    return attempt.failure.cause if attempt.failure and attempt.stop_sent is None and is_ending else None


def _pause_cause(state: State, gang: Gang) -> Cause | None:
    """Return why a gang has to be suspended, leave a node or be smaller, or why the rest of a finished one goes."""
    if gang.state in STAYING and gang.suspends:
        return gang.suspends
    if gang.state in STAYING and (node := gang.attempt.vacates):
        if node in state.health.leaving:
            return Cause.NODE_PREEMPTED
        is_drained = gang.attempt.leave_by_ms is None or state.nodes.is_cordoned(node)
        return Cause.DRAINED if is_drained else Cause.EVICTED
    if gang.state in ACTIVE and gang.goes_back:
        return Cause.ROLLED_BACK
    if gang.state in ACTIVE and gang.attempt.recalled_by:
        return Cause.PREEMPTED
    if gang.state in ACTIVE and gang.size > gang.max_nodes:
        return Cause.RESIZED
    return Cause.DONE if gang.state is GangState.FINISHING and gang.attempt.stop_sent is None else None


def _notice_left_ms(gang: Gang, now_ms: int) -> int:
    """Return the notice, at most the time that is left until a node goes away, or that a user leaves it."""
    leave_by_ms = gang.attempt.leave_by_ms
    return gang.notice_ms if leave_by_ms is None else max(0, min(gang.notice_ms, leave_by_ms - now_ms))


def _recalling_stop(state: State, gang: Gang, stop: Stop, now_ms: int) -> Stop:
    """Return the stop of a gang whose nodes are not lent to it any more, with the node that the lender has lost."""
    lender = state.gangs.get(gang.attempt.recalled_by)
    resizes = lender is not None and lender.state is GangState.RESIZING
    lost = next((node for node in lender.nodes if not lender.uses([node])), "") if lender and resizes else ""
    unsaved = unsaved_ms(gang, now_ms)
    return replace(stop, preemptor=gang.attempt.recalled_by, rule=PreemptionRule.SPARE, node=lost, unsaved_ms=unsaved)


def _goes_on_without(state: State, gang: Gang, node: str) -> Shares:
    """Return what a gang that has to leave a node goes on with at once: a spare, or fewer nodes if it is elastic."""
    closed = (node, *state.maintenance.affected_nodes(state.maintenance.now_ms))
    leaves = [name for name in gang.nodes if name in closed or not spares.is_usable(state, name)]
    if gang.id in state.timers.elastic.surplus:
        return without_nodes(state.nodes, gang, state.allocations[gang.id], leaves)
    return spares.takeover(state, gang, leaves)
