"""The reactions to an end, as a table: what follows when a process, a node or a job's time ends.

(member, ending, phase) -> reaction, with every row filled in. Source: reference/reliability.md section 1, "Job reaction
by role". `docs/reference/lifecycle.md` is generated from this table."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final

from ganger.core.state.lifecycle import Phase


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

    exited: with a code, and the cause is unknown; unreached: by a lost connection, or a time-out, of unknown cause;
        machine_error: by an exception from the machine, or one that only the loss of a peer causes; bad_node: a test of
        its nodes before the ranks start found a bad one; unadmitted: it never started, because the cluster admits none
        of its pods at present.
    """

    KILLED = "killed"
    EXITED = "exited"
    UNREACHED = "unreached"
    USER_ERROR = "user_error"
    MACHINE_ERROR = "machine_error"
    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    START_FAILED = "start_failed"
    PORT_BUSY = "port_busy"
    BAD_NODE = "bad_node"
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
    RESIZED = "resized"
    ROLLED_BACK = "rolled_back"
    ANOMALOUS = "anomalous"


class Action(StrEnum):
    """The consequence.

    retry: another attempt, once on the same nodes, then elsewhere if possible; retry elsewhere: another attempt that
        avoids the node; resize: another attempt with other nodes, which keeps those that both have; fail: no further
        attempt, the job fails.
    """

    NOTHING = "nothing"
    RETRY = "retry"
    RETRY_ELSEWHERE = "retry elsewhere"
    RESIZE = "resize"
    SUSPEND = "suspend"
    END = "end"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Reaction:
    """The consequence, and how it counts.

    counts: it counts against the retry limit, and the next attempt starts after a pause; needs_retry_max: another
        attempt would end the same way, so there is none unless `retry.max` allows it; may_recur: it may, so there is
        one, and more only if `retry.max` allows them; pauses: it does not count, and the next attempt starts after a
        pause that is longer each time. A reaction with none of these pauses only from the second consecutive time on.
        An attempt that saved a new checkpoint neither counts nor pauses, however it ended.
    """

    action: Action
    counts: bool = False
    needs_retry_max: bool = False
    may_recur: bool = False
    pauses: bool = False

    def __str__(self) -> str:
        """Return the text for a table cell in the docs."""
        if self.needs_retry_max:
            return f"{self.action}, needs retry.max"
        if self.may_recur:
            return f"{self.action} once, more needs retry.max"
        return f"{self.action}{', counts' if self.counts else ', pauses' if self.pauses else ''}"


E, P = Ending, Phase
_NOTHING, _RESIZE, _SUSPEND, _END, _FAIL = map(
    Reaction, (Action.NOTHING, Action.RESIZE, Action.SUSPEND, Action.END, Action.FAIL)
)
_COUNTS, _NEEDS_RETRY_MAX = (
    Reaction(Action.RETRY, counts=True),
    Reaction(Action.RETRY, counts=True, needs_retry_max=True),
)
_MAY_RECUR = Reaction(Action.RETRY, counts=True, may_recur=True)
_PAUSES = Reaction(Action.RETRY, pauses=True)
_RETRY, _RETRY_ELSEWHERE = Reaction(Action.RETRY), Reaction(Action.RETRY_ELSEWHERE)
_PHASES: Final = tuple(Phase)
_ALIVE: Final = (P.STARTING, P.RECOVERING, P.RUNNING)
_BY_ITSELF: Final = (E.KILLED, E.EXITED, E.UNREACHED, E.USER_ERROR, E.MACHINE_ERROR, E.OUT_OF_MEMORY)


def _row(*reactions: Reaction) -> dict[Phase, Reaction]:
    return dict(zip(_PHASES, reactions, strict=True))


_WORKER: Final[Mapping[Ending, Mapping[Phase, Reaction]]] = {
    # waiting, starting, recovering, running, resizing, clearing, stopping
    E.KILLED: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.EXITED: _row(_NOTHING, _NEEDS_RETRY_MAX, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.UNREACHED: _row(_NOTHING, _MAY_RECUR, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.USER_ERROR: _row(_NOTHING, _NEEDS_RETRY_MAX, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.MACHINE_ERROR: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.OUT_OF_MEMORY: _row(_NOTHING, _NEEDS_RETRY_MAX, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.HUNG: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.START_FAILED: _row(_NOTHING, _COUNTS, _COUNTS, _COUNTS, _NOTHING, _NOTHING, _NOTHING),
    E.PORT_BUSY: _row(_NOTHING, _RETRY, _RETRY, _RETRY, _NOTHING, _NOTHING, _NOTHING),
    E.BAD_NODE: _row(_NOTHING, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _NOTHING, _NOTHING, _NOTHING),
    E.DENIED: _row(_NOTHING, _FAIL, _FAIL, _FAIL, _NOTHING, _NOTHING, _NOTHING),
    E.UNADMITTED: _row(_NOTHING, _PAUSES, _PAUSES, _PAUSES, _NOTHING, _NOTHING, _NOTHING),
    E.LAUNCHER_LOST: _row(_NOTHING, _RETRY, _RETRY, _RETRY, _NOTHING, _NOTHING, _NOTHING),
    E.NODE_LOST: _row(
        _NOTHING, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _NOTHING, _NOTHING
    ),
    E.PREEMPTED: _row(
        _NOTHING, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _NOTHING, _NOTHING
    ),
    E.DRAINED: _row(
        _NOTHING, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _RETRY_ELSEWHERE, _NOTHING, _NOTHING
    ),
    E.SUSPENDED: _row(_SUSPEND, _SUSPEND, _SUSPEND, _SUSPEND, _SUSPEND, _SUSPEND, _NOTHING),
    E.TIME_LIMIT: _row(_END, _END, _END, _END, _END, _NOTHING, _NOTHING),
    E.QUEUE_TIME: _row(_END, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING),
    E.STOP_REQUESTED: _row(_END, _END, _END, _END, _END, _END, _NOTHING),
    E.DEPENDENCY: _row(_END, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING),
    E.DONE: _row(_END, _END, _END, _END, _END, _END, _NOTHING),
    E.RESIZED: _row(_NOTHING, _RESIZE, _RESIZE, _RESIZE, _NOTHING, _NOTHING, _NOTHING),
    E.ROLLED_BACK: _row(_NOTHING, _RETRY, _RETRY, _RETRY, _NOTHING, _NOTHING, _NOTHING),
    E.ANOMALOUS: _row(_END, _END, _END, _END, _END, _END, _NOTHING),
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
