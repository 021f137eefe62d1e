"""The lifecycles of a gang and of a node, as tables: (state, step) -> state. What is not in a table cannot happen.

Durable states survive a crash of the server as they are; the others are finished or rolled back after one.
`docs/reference/lifecycle.md` is generated from these tables."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ganger.model.cluster import NodeState as N
from ganger.model.job import GangState as G


class GangStep(StrEnum):
    """A step of a gang's lifecycle."""

    PLACED = "placed"
    STARTED = "started"
    FINISHED = "finished"
    RETRY = "retry"
    FAIL = "fail"
    REQUEUE = "requeue"
    END = "end"
    SUSPEND = "suspend"
    RESUME = "resume"
    RESIZE = "resize"
    DONE = "done"
    CLEARED = "cleared"


class NodeStep(StrEnum):
    """A step of a node's lifecycle."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    LOSE = "lose"
    RETURN = "return"


S = GangStep

DURABLE: Final = (G.PENDING, G.SUSPENDED, G.RUNNING, G.SUCCEEDED, G.FAILED, G.STOPPED)
"""Gang states that need no work after a restart of the server; work in the other states is resumed."""

GANG: Final[Mapping[tuple[G, S], G]] = {
    (G.PENDING, S.PLACED): G.STARTING,
    (G.PENDING, S.END): G.STOPPED,
    (G.PENDING, S.SUSPEND): G.SUSPENDED,
    (G.SUSPENDED, S.RESUME): G.PENDING,
    (G.SUSPENDED, S.END): G.STOPPED,
    (G.STARTING, S.STARTED): G.RUNNING,
    # A gang may finish while the server is down, before the server learns that it ran.
    (G.STARTING, S.FINISHED): G.SUCCEEDED,
    (G.STARTING, S.DONE): G.FINISHING,
    (G.STARTING, S.RETRY): G.REQUEUEING,
    (G.STARTING, S.FAIL): G.FAILING,
    (G.STARTING, S.REQUEUE): G.REQUEUEING,
    (G.STARTING, S.SUSPEND): G.SUSPENDING,
    (G.STARTING, S.END): G.STOPPING,
    (G.STARTING, S.RESIZE): G.RESIZING,
    (G.RUNNING, S.FINISHED): G.SUCCEEDED,
    (G.RUNNING, S.DONE): G.FINISHING,
    (G.RUNNING, S.RETRY): G.REQUEUEING,
    (G.RUNNING, S.FAIL): G.FAILING,
    (G.RUNNING, S.REQUEUE): G.REQUEUEING,
    (G.RUNNING, S.SUSPEND): G.SUSPENDING,
    (G.RUNNING, S.END): G.STOPPING,
    (G.RUNNING, S.RESIZE): G.RESIZING,
    # Its nodes stay allocated when the generation is gone, and the next one starts on them.
    (G.RESIZING, S.CLEARED): G.RESIZING,
    # A gang that finishes while it is being stopped has succeeded: it finished within the notice.
    (G.RESIZING, S.FINISHED): G.SUCCEEDED,
    (G.RESIZING, S.PLACED): G.STARTING,
    (G.RESIZING, S.REQUEUE): G.REQUEUEING,
    (G.RESIZING, S.SUSPEND): G.SUSPENDING,
    (G.RESIZING, S.END): G.STOPPING,
    (G.REQUEUEING, S.CLEARED): G.PENDING,
    (G.REQUEUEING, S.FINISHED): G.SUCCEEDED,
    (G.REQUEUEING, S.END): G.STOPPING,
    (G.SUSPENDING, S.CLEARED): G.SUSPENDED,
    (G.SUSPENDING, S.FINISHED): G.SUCCEEDED,
    (G.SUSPENDING, S.RESUME): G.REQUEUEING,
    (G.SUSPENDING, S.END): G.STOPPING,
    # A gang that is ending accepts another end without a change.
    (G.FINISHING, S.CLEARED): G.SUCCEEDED,
    (G.FINISHING, S.END): G.FINISHING,
    (G.FAILING, S.CLEARED): G.FAILED,
    (G.FAILING, S.END): G.FAILING,
    (G.STOPPING, S.CLEARED): G.STOPPED,
    (G.STOPPING, S.FINISHED): G.SUCCEEDED,
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


class Phase(StrEnum):
    """The phase of a gang as the reactions see it.

    waiting: it holds nothing; starting: it has never reported a step; recovering: an earlier generation has, this one
        not yet; resizing: its generation is being stopped, and the next one keeps its nodes; clearing: its generation
        is being stopped, and it continues later; stopping: its generation is being stopped, and it ends.
    """

    WAITING = "waiting"
    STARTING = "starting"
    RECOVERING = "recovering"
    RUNNING = "running"
    RESIZING = "resizing"
    CLEARING = "clearing"
    STOPPING = "stopping"


class IllegalStep(ValueError):
    """A step that the table does not contain; the message lists the legal ones."""


def gang_next(state: G, step: S) -> G:
    """Return the gang's state after `step`; raise IllegalStep for a pair that is not in the table."""
    if (state, step) not in GANG:
        raise _illegal("gang", state, step, [allowed.value for origin, allowed in GANG if origin is state])
    return GANG[state, step]


def node_next(state: N, step: NodeStep) -> N:
    """Return the node's state after `step`; raise IllegalStep for a pair that is not in the table."""
    if (state, step) not in NODE:
        raise _illegal("node", state, step, [allowed.value for origin, allowed in NODE if origin is state])
    return NODE[state, step]


def _illegal(subject: str, state: StrEnum, step: StrEnum, legal: list[str]) -> IllegalStep:
    return IllegalStep(
        f"{subject} is {state}: cannot take {step}; it accepts {', '.join(sorted(legal)) or 'nothing (ended)'}"
    )
