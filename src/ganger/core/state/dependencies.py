"""Gangs that come after others: who waits for whom, and what an end means to them. Called by `core.state.state` alone.

A gang that waits for others is pending and in no class. It joins its class when all it waits for has come to what it
asks; when one of them cannot any more, it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganger.core.state.gang import Gang
from ganger.model.decision import Cause
from ganger.model.job import GangState

if TYPE_CHECKING:
    from ganger.core.state.state import State


def waits(state: State, gang: Gang) -> None:
    """Note whom a gang waits for, unless that has come to an end it cannot use."""
    for name in dict.fromkeys(after.job for after in gang.awaits):
        if state.is_live(name):
            state.dependents.setdefault(name, []).append(gang.id)


def forget(state: State, gang: Gang) -> None:
    """A gang that ends waits for nobody any more."""
    for name in dict.fromkeys(after.job for after in gang.awaits):
        others = state.dependents.get(name, [])
        if gang.id in others:
            others.remove(gang.id)
        if not others:
            state.dependents.pop(name, None)


def settle(state: State, name: str, ended: GangState, at_ms: int) -> tuple[Gang, ...]:
    """A gang, or a whole array, has ended: tell those that wait for it; gives them."""
    told = tuple(state.gangs[other] for other in state.dependents.pop(name, ()))
    for gang in told:
        missed = [after for after in gang.awaits if after.job == name and not after.holds(ended)]
        if missed:
            forget(state, gang)
            gang.awaits, gang.end_cause = missed[:1], gang.end_cause or Cause.DEPENDENCY
            continue
        gang.awaits = [after for after in gang.awaits if after.job != name]
        if not gang.awaits:
            # Its wait begins now: until here nothing could have started it.
            gang.since_ms = at_ms
            if gang.state is GangState.PENDING:
                state.enqueue(gang)
    return told
