"""The lives of a gang and of a node, as tables: (state, step) -> state. What is not in a table cannot happen.

Called by `core.state` for every change of a state. Durable states survive a crash of the server as they are; the others
are finished or rolled back after one. `docs/lifecycle.md` is generated from these tables.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ganger.model.cluster import NodeState as N
from ganger.model.job import GangState as G


class GangStep(StrEnum):
    """What can happen to a gang."""

    PLACED = "placed"
    STARTED = "started"
    FINISHED = "finished"
    RETRY = "retry"
    GIVE_UP = "give_up"
    GIVE_WAY = "give_way"
    END = "end"
    SUSPEND = "suspend"
    RESUME = "resume"
    DONE = "done"
    CLEARED = "cleared"


class NodeStep(StrEnum):
    """What can happen to a node."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    LOSE = "lose"
    RETURN = "return"


S = GangStep

DURABLE: Final = (G.PENDING, G.SUSPENDED, G.RUNNING, G.SUCCEEDED, G.FAILED, G.STOPPED)
"""Gang states that need no work after a restart of the server; the others are carried on from where they stand."""

GANG: Final[Mapping[tuple[G, S], G]] = {
    (G.PENDING, S.PLACED): G.STARTING,
    (G.PENDING, S.END): G.STOPPED,
    (G.PENDING, S.SUSPEND): G.SUSPENDED,
    (G.SUSPENDED, S.RESUME): G.PENDING,
    (G.SUSPENDED, S.END): G.STOPPED,
    (G.STARTING, S.STARTED): G.RUNNING,
    # A gang may be over before the server, which was away, learns that it ran.
    (G.STARTING, S.FINISHED): G.SUCCEEDED,
    (G.STARTING, S.DONE): G.FINISHING,
    (G.STARTING, S.RETRY): G.REQUEUEING,
    (G.STARTING, S.GIVE_UP): G.FAILING,
    (G.STARTING, S.GIVE_WAY): G.REQUEUEING,
    (G.STARTING, S.SUSPEND): G.SUSPENDING,
    (G.STARTING, S.END): G.STOPPING,
    (G.RUNNING, S.FINISHED): G.SUCCEEDED,
    (G.RUNNING, S.DONE): G.FINISHING,
    (G.RUNNING, S.RETRY): G.REQUEUEING,
    (G.RUNNING, S.GIVE_UP): G.FAILING,
    (G.RUNNING, S.GIVE_WAY): G.REQUEUEING,
    (G.RUNNING, S.SUSPEND): G.SUSPENDING,
    (G.RUNNING, S.END): G.STOPPING,
    (G.REQUEUEING, S.CLEARED): G.PENDING,
    (G.REQUEUEING, S.END): G.STOPPING,
    (G.SUSPENDING, S.CLEARED): G.SUSPENDED,
    (G.SUSPENDING, S.RESUME): G.REQUEUEING,
    (G.SUSPENDING, S.END): G.STOPPING,
    # A gang that ends anyway takes a second end without a change.
    (G.FINISHING, S.CLEARED): G.SUCCEEDED,
    (G.FINISHING, S.END): G.FINISHING,
    (G.FAILING, S.CLEARED): G.FAILED,
    (G.FAILING, S.END): G.FAILING,
    (G.STOPPING, S.CLEARED): G.STOPPED,
    (G.STOPPING, S.END): G.STOPPING,
}

NODE: Final[Mapping[tuple[N, NodeStep], N]] = {
    (N.READY, NodeStep.CORDON): N.CORDONED,
    (N.READY, NodeStep.DRAIN): N.CORDONED,
    (N.READY, NodeStep.LOSE): N.LOST,
    (N.CORDONED, NodeStep.UNCORDON): N.READY,
    (N.CORDONED, NodeStep.DRAIN): N.CORDONED,
    (N.CORDONED, NodeStep.LOSE): N.LOST_CORDONED,
    (N.LOST, NodeStep.RETURN): N.READY,
    (N.LOST, NodeStep.CORDON): N.LOST_CORDONED,
    (N.LOST, NodeStep.DRAIN): N.LOST_CORDONED,
    (N.LOST_CORDONED, NodeStep.RETURN): N.CORDONED,
    (N.LOST_CORDONED, NodeStep.UNCORDON): N.LOST,
    (N.LOST_CORDONED, NodeStep.DRAIN): N.LOST_CORDONED,
}


class IllegalStep(ValueError):
    """A step that the table does not have; the message lists those it has."""


def gang_next(state: G, step: S) -> G:
    """The gang's state after `step`. IllegalStep on a pair that is not in the table."""
    if (state, step) not in GANG:
        raise _illegal("gang", state, step, [s.value for at, s in GANG if at is state])
    return GANG[state, step]


def node_next(state: N, step: NodeStep) -> N:
    """The node's state after `step`. IllegalStep on a pair that is not in the table."""
    if (state, step) not in NODE:
        raise _illegal("node", state, step, [s.value for at, s in NODE if at is state])
    return NODE[state, step]


def _illegal(what: str, state: StrEnum, step: StrEnum, legal: list[str]) -> IllegalStep:
    return IllegalStep(
        f"{what} is {state}: cannot take {step}; it accepts {', '.join(sorted(legal)) or 'nothing (ended)'}"
    )


def diagram() -> str:
    """Both tables as Mermaid state diagrams in Markdown, durable gang states marked; the text of docs/lifecycle.md."""
    lines = ["# Lives of a gang and of a node", "", "Generated from `core/lifecycle.py`; do not edit.", ""]
    lines += ["## Gang", "", "States marked * are durable: they need no work after a restart of the server.", ""]
    lines += ["```mermaid", "stateDiagram-v2", "    [*] --> pending"]
    lines += [f'    state "{state} *" as {state}' for state in DURABLE]
    lines += [f"    {at} --> {to}: {step}" for (at, step), to in GANG.items()]
    lines += ["```", "", "## Node", "", "```mermaid", "stateDiagram-v2", "    [*] --> ready"]
    lines += [f"    {at} --> {to}: {step}" for (at, step), to in NODE.items()]
    return "\n".join([*lines, "```", ""])
