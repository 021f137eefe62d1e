"""The lifecycles of a gang and of a node, as tables: (state, step) -> state. What is not in a table cannot happen.

A third table says what follows when a process, a node or a job's time ends: (member, ending, phase) -> reaction, with
every row filled in. Durable states survive a crash of the server as they are; the others are finished or rolled back
after one. Source of the reactions: reference/reliability.md section 1, "Job reaction by role".
`docs/reference/lifecycle.md` is generated from these tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
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
    (G.RUNNING, S.FINISHED): G.SUCCEEDED,
    (G.RUNNING, S.DONE): G.FINISHING,
    (G.RUNNING, S.RETRY): G.REQUEUEING,
    (G.RUNNING, S.FAIL): G.FAILING,
    (G.RUNNING, S.REQUEUE): G.REQUEUEING,
    (G.RUNNING, S.SUSPEND): G.SUSPENDING,
    (G.RUNNING, S.END): G.STOPPING,
    (G.REQUEUEING, S.CLEARED): G.PENDING,
    (G.REQUEUEING, S.END): G.STOPPING,
    (G.SUSPENDING, S.CLEARED): G.SUSPENDED,
    (G.SUSPENDING, S.RESUME): G.REQUEUEING,
    (G.SUSPENDING, S.END): G.STOPPING,
    # A gang that is ending accepts another end without a change.
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


class Member(StrEnum):
    """The part of a gang that ended.

    The node of rank 0 is the master: ganger, not a worker, runs the rendezvous, so its loss is like that of any other.
    Critical and optional members are processes of roles with `on_failure` `fail` and `ignore`; a process counts as
    optional only while all ranks run, since before that the others may wait for it."""

    WORKER = "worker"
    MASTER = "master"
    CRITICAL = "critical"
    OPTIONAL = "optional"


class Ending(StrEnum):
    """The way a member ended, or is to end.

    exited: with a code, and the cause is unknown; machine_error: by an exception from the machine, or one that only the
        loss of a peer causes; unadmitted: it never started, because the cluster admits none of its pods at present.
    """

    KILLED = "killed"
    EXITED = "exited"
    USER_ERROR = "user_error"
    MACHINE_ERROR = "machine_error"
    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    START_FAILED = "start_failed"
    PORT_BUSY = "port_busy"
    DENIED = "admission_denied"
    UNADMITTED = "unadmitted"
    LAUNCHER_LOST = "launcher_lost"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    SUSPENDED = "suspended"
    TIME_LIMIT = "time_limit"
    QUEUE_TIME = "queue_time"
    STOP_REQUESTED = "stop_requested"
    DEPENDENCY = "dependency"
    DONE = "done"


class Phase(StrEnum):
    """The phase of a gang as the reactions see it.

    waiting: it holds nothing; starting: it has never reported a step; recovering: an earlier generation has, this one
        not yet; clearing: its generation is being stopped, and it continues later; stopping: its generation is being
        stopped, and it ends.
    """

    WAITING = "waiting"
    STARTING = "starting"
    RECOVERING = "recovering"
    RUNNING = "running"
    CLEARING = "clearing"
    STOPPING = "stopping"


class Action(StrEnum):
    """The consequence.

    retry: another attempt, once on the same nodes, then elsewhere if possible; retry elsewhere: another attempt that
        avoids the node; fail: no further attempt, the job fails.
    """

    NOTHING = "nothing"
    RETRY = "retry"
    RETRY_ELSEWHERE = "retry elsewhere"
    SUSPEND = "suspend"
    END = "end"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Reaction:
    """The consequence, and how it counts.

    counts: it counts against the retry limit, and the next attempt starts after a pause; needs_retry_max: another
        attempt would end the same way, so there is none unless `retry.max` allows it; pauses: it does not count, and
        the next attempt starts after a pause that is longer each time. A reaction with none of these pauses only from
        the second consecutive time on. An attempt that saved a new checkpoint neither counts nor pauses, however it
        ended.
    """

    action: Action
    counts: bool = False
    needs_retry_max: bool = False
    pauses: bool = False

    def __str__(self) -> str:
        """Return the text for a table cell in the docs."""
        if self.needs_retry_max:
            return f"{self.action}, needs retry.max"
        return f"{self.action}{', counts' if self.counts else ', pauses' if self.pauses else ''}"


E, P = Ending, Phase
_NOTHING, _SUSPEND, _END, _FAIL = (
    Reaction(action) for action in (Action.NOTHING, Action.SUSPEND, Action.END, Action.FAIL)
)
_COUNTS, _NEEDS_RETRY_MAX = (
    Reaction(Action.RETRY, counts=True),
    Reaction(Action.RETRY, counts=True, needs_retry_max=True),
)
_PAUSES = Reaction(Action.RETRY, pauses=True)
_RETRY, _RETRY_ELSEWHERE = Reaction(Action.RETRY), Reaction(Action.RETRY_ELSEWHERE)
_PHASES: Final = tuple(Phase)
_ALIVE: Final = (P.STARTING, P.RECOVERING, P.RUNNING)
_BY_ITSELF: Final = (E.KILLED, E.EXITED, E.USER_ERROR, E.MACHINE_ERROR, E.OUT_OF_MEMORY)


def _row(*reactions: Reaction) -> dict[Phase, Reaction]:
    return dict(zip(_PHASES, reactions, strict=True))


_WORKER: Final[Mapping[Ending, Mapping[Phase, Reaction]]] = {
    #                       waiting   starting    recovering  running     clearing  stopping
    E.KILLED: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING),
    E.EXITED: _row(_NOTHING, _NEEDS_RETRY_MAX, _COUNTS, _COUNTS, _NOTHING, _NOTHING),
    E.USER_ERROR: _row(_NOTHING, _NEEDS_RETRY_MAX, _COUNTS, _COUNTS, _NOTHING, _NOTHING),
    E.MACHINE_ERROR: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING),
    E.OUT_OF_MEMORY: _row(_NOTHING, _NEEDS_RETRY_MAX, _COUNTS, _COUNTS, _NOTHING, _NOTHING),
    E.HUNG: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING),
    E.START_FAILED: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING),
    E.PORT_BUSY: _row(_NOTHING, _RETRY, _RETRY, _RETRY, _NOTHING, _NOTHING),
    E.DENIED: _row(_NOTHING, _FAIL, _FAIL, _FAIL, _NOTHING, _NOTHING),
    E.UNADMITTED: _row(_NOTHING, _PAUSES, _PAUSES, _PAUSES, _NOTHING, _NOTHING),
    E.LAUNCHER_LOST: _row(_NOTHING, _RETRY, _RETRY, _RETRY, _NOTHING, _NOTHING),
    E.NODE_LOST: _row(_NOTHING, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _NOTHING, _NOTHING),
    E.PREEMPTED: _row(_NOTHING, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _NOTHING, _NOTHING),
    E.DRAINED: _row(_NOTHING, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _NOTHING, _NOTHING),
    E.SUSPENDED: _row(_SUSPEND, _SUSPEND, _SUSPEND, _SUSPEND, _SUSPEND, _NOTHING),
    E.TIME_LIMIT: _row(_END, _END, _END, _END, _NOTHING, _NOTHING),
    E.QUEUE_TIME: _row(_END, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING),
    E.STOP_REQUESTED: _row(_END, _END, _END, _END, _END, _NOTHING),
    E.DEPENDENCY: _row(_END, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING),
    E.DONE: _row(_NOTHING, _END, _END, _END, _NOTHING, _NOTHING),
}
_DIFFERENCES: Final[Mapping[Member, Mapping[tuple[Ending, Phase], Reaction]]] = {
    Member.WORKER: {},
    Member.MASTER: {},
    Member.CRITICAL: dict.fromkeys(product(_BY_ITSELF, _ALIVE), _FAIL),
    Member.OPTIONAL: dict.fromkeys(product((*_BY_ITSELF, E.HUNG, E.LAUNCHER_LOST, E.NODE_LOST), _ALIVE), _NOTHING),
}
"""The differences from a worker's reactions."""

REACTIONS: Final[Mapping[tuple[Member, Ending, Phase], Reaction]] = {
    (member, ending, phase): _DIFFERENCES[member].get((ending, phase), of_worker)
    for member in Member
    for ending, row in _WORKER.items()
    for phase, of_worker in row.items()
}


def reaction(member: Member, ending: Ending, phase: Phase) -> Reaction:
    """Return what follows when a member of a gang ends that way in that phase."""
    return REACTIONS[member, ending, phase]


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


def page() -> str:
    """Return the text of docs/reference/lifecycle.md.

    State diagrams in Mermaid with durable states marked, and the tables of reactions.
    """
    lines = ["# Lifecycles of a gang and of a node", "", "Generated from `core/state/lifecycle.py`; do not edit.", ""]
    lines += ["## Gang", "", "States marked * are durable: they need no work after a restart of the server.", ""]
    lines += ["```mermaid", "stateDiagram-v2", "    [*] --> pending"]
    lines += [f'    state "{state} *" as {state}' for state in DURABLE]
    lines += [f"    {origin} --> {target}: {step}" for (origin, step), target in GANG.items()]
    lines += ["```", "", "## Node", "", "```mermaid", "stateDiagram-v2", "    [*] --> ready"]
    lines += [f"    {origin} --> {target}: {step}" for (origin, step), target in NODE.items()]
    return "\n".join([*lines, "```", "", *_reactions(), ""])


def _reactions() -> list[str]:
    """Return a table for each member; after the first, only the rows that differ from it."""
    lines = ["## Reactions to an end", ""]
    for terms in (Member, Phase, Action, Reaction):
        lines += [f"*{terms.__name__}.* {' '.join((terms.__doc__ or '').split())}", ""]
    lines += [f"*Ending.* {' '.join((Ending.__doc__ or '').split())}", ""]
    for member in Member:
        rows = {ending: [str(REACTIONS[member, ending, phase]) for phase in Phase] for ending in Ending}
        worker = {ending: [str(REACTIONS[Member.WORKER, ending, phase]) for phase in Phase] for ending in Ending}
        different = {ending: row for ending, row in rows.items() if member is Member.WORKER or row != worker[ending]}
        lines += [f"### {member}", ""]
        if different:
            lines += [f"| | {' | '.join(Phase)} |", "|---" * (1 + len(Phase)) + "|"]
            lines += [f"| {ending} | {' | '.join(row)} |" for ending, row in different.items()] + [""]
        if member is not Member.WORKER:
            lines += [f"{'All others' if different else 'All'} as for a worker.", ""]
    return lines[:-1]
