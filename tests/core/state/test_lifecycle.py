"""The lifecycle tables are closed, every state leads to an end, and the docs show them as they are."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from ganger.core.failure.reactions import REACTIONS, Action, Ending, Member, reaction
from ganger.core.failure.retry import ENDINGS
from ganger.core.state.gang import LEAVING
from ganger.core.state.lifecycle import (
    DURABLE,
    GANG,
    NODE,
    GangStep,
    IllegalStep,
    NodeStep,
    Phase,
    gang_next,
    node_next,
)
from ganger.model.cluster import NodeState
from ganger.model.decision import Cause
from ganger.model.job import ENDED, GangState
from tools.generate.lifecycle_page import PAGE, page


def reachable(table: Mapping[tuple[Any, Any], Any], start: Any) -> set[Any]:
    states = {start}
    while new := {target for (origin, _), target in table.items() if origin in states} - states:
        states |= new
    return states


def test_nothing_leaves_an_end() -> None:
    assert [origin for origin, _ in GANG if origin in ENDED] == []


@pytest.mark.parametrize("state", GangState)
def test_every_state_is_reached_and_reaches_an_end(state: GangState) -> None:
    assert state in reachable(GANG, GangState.PENDING)
    assert reachable(GANG, state) & {*ENDED}


@pytest.mark.parametrize("state", [state for state in GangState if state not in ENDED])
def test_every_live_state_can_be_ended(state: GangState) -> None:
    ends = gang_next(state, GangStep.END)
    assert GangState.PENDING not in reachable(GANG, ends)


def test_every_step_is_used() -> None:
    assert {step for _, step in GANG} == {*GangStep}
    assert {step for _, step in NODE} == {*NodeStep}


def test_every_node_state_is_reached_and_comes_back() -> None:
    for state in NodeState:
        assert state in reachable(NODE, NodeState.READY)
        assert NodeState.READY in reachable(NODE, state)


def test_a_cordon_and_a_loss_do_not_touch_each_other() -> None:
    lost = {NodeState.LOST, NodeState.LOST_CORDONED}
    cordoned = {NodeState.CORDONED, NodeState.LOST_CORDONED}
    for (origin, step), target in NODE.items():
        if step in (NodeStep.CORDON, NodeStep.UNCORDON, NodeStep.DRAIN):
            assert (origin in lost) == (target in lost)
        else:
            assert (origin in cordoned) == (target in cordoned)


def test_what_is_not_in_a_table_is_an_error_that_says_what_is() -> None:
    with pytest.raises(IllegalStep, match="gang is pending: cannot take started; it accepts end, placed, suspend"):
        gang_next(GangState.PENDING, GangStep.STARTED)
    with pytest.raises(IllegalStep, match=r"it accepts nothing \(ended\)"):
        gang_next(GangState.FAILED, GangStep.RETRY)
    with pytest.raises(IllegalStep, match="node is ready: cannot take return; it accepts cordon, drain, lose"):
        node_next(NodeState.READY, NodeStep.RETURN)


def test_durable_states_need_nothing_done() -> None:
    """Check that work is left only in states in which a generation is partly started or partly stopped."""
    assert {*DURABLE} == {*GangState} - {GangState.STARTING, GangState.RESIZING, *LEAVING}


def test_every_end_has_one_reaction() -> None:
    assert {*REACTIONS} == {*product(Member, Ending, Phase)}
    assert {ENDINGS.get(cause, Ending.KILLED) for cause in Cause} | {
        Ending.EXITED,
        Ending.UNREACHED,
        Ending.USER_ERROR,
        Ending.MACHINE_ERROR,
    } == {*Ending}


@pytest.mark.parametrize(("member", "ending"), [*product(Member, Ending)])
def test_reactions_are_consistent(member: Member, ending: Ending) -> None:
    rows = {phase: reaction(member, ending, phase) for phase in Phase}
    assert rows[Phase.STOPPING].action is Action.NOTHING, "it ends already"
    assert rows[Phase.CLEARING].action in (Action.NOTHING, Action.END, Action.SUSPEND), "it is being stopped already"
    assert rows[Phase.WAITING].action in (Action.NOTHING, Action.END, Action.SUSPEND), "nothing of it runs"
    for row in rows.values():
        assert not row.counts or row.action is Action.RETRY
        assert not (row.needs_retry_max or row.may_recur) or row.counts
    not_its_fault = (Ending.NODE_LOST, Ending.LAUNCHER_LOST, Ending.PORT_BUSY, Ending.PREEMPTED, Ending.DRAINED)
    if ending in (*not_its_fault, Ending.SUSPENDED, Ending.TIME_LIMIT, Ending.QUEUE_TIME, Ending.STOP_REQUESTED):
        assert not any(row.counts for row in rows.values())
    if member is Member.MASTER:
        assert rows == {phase: reaction(Member.WORKER, ending, phase) for phase in Phase}


def test_the_page_in_the_docs_is_current_and_whole() -> None:
    assert PAGE.read_text() == page(), "make docs"
    assert page().count("| nothing | retry, needs retry.max | retry, counts | retry, counts | nothing | nothing |") == 3
