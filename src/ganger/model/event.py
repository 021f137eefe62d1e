"""What happened. The log holds these and nothing else; the state of the world is their fold.

Made by backends (facts), by `engine.service` (what people asked for) and by the loop (`Decided`). A fact carries the
generation it speaks of, so that a late one is told from a current one. Events carry no time: the loop stamps them.
"""

from dataclasses import dataclass, field
from typing import Literal

from ganger.model.cluster import RACK, Node
from ganger.model.decision import Cause, Plan
from ganger.model.evidence import FlawedCheckpoint, RankEnd
from ganger.model.job import Job
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStarted:
    """A server took over: nothing is planned until its backend has listed what runs."""

    version: str
    kind: Literal["server_started"] = field(default="server_started")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesListed:
    """The nodes there are, whole: a node that is not in it is gone, one that is does answer, unless it is among the
    `lost`; and the levels that their domains are of, outermost first. Makes the state ready for planning."""

    nodes: tuple[Node, ...]
    levels: tuple[str, ...] = RACK
    lost: tuple[str, ...] = ()
    kind: Literal["nodes_listed"] = field(default="nodes_listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node stopped answering, with everything on it."""

    node: str
    detail: str = ""
    kind: Literal["node_lost"] = field(default="node_lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned:
    """A lost node answers again; nothing of before runs on it."""

    node: str
    kind: Literal["node_returned"] = field(default="node_returned")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned:
    """A person took a node out of service: what runs there goes on, nothing new starts."""

    node: str
    by: str = ""
    why: str = ""
    kind: Literal["node_cordoned"] = field(default="node_cordoned")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned:
    """A person put a node back into service."""

    node: str
    by: str = ""
    kind: Literal["node_uncordoned"] = field(default="node_uncordoned")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """A person took a node out of service, and what runs there is to start again elsewhere."""

    node: str
    by: str = ""
    why: str = ""
    kind: Literal["node_drained"] = field(default="node_drained")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePreempted:
    """Whoever owns a node takes it back `notice_ms` from now, as with spot machines: what runs there has that long to
    save its work, and starts again elsewhere; the loss itself is a `NodeLost`."""

    node: str
    notice_ms: int
    by: str = ""
    kind: Literal["node_preempted"] = field(default="node_preempted")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSet:
    """Somebody said that these nodes are not there from a moment until another, in Unix ms: what would still run there
    then does not start, and what runs there at the beginning is to start again elsewhere."""

    id: str
    nodes: tuple[str, ...]
    from_ms: int
    until_ms: int
    note: str = ""
    by: str = ""
    kind: Literal["maintenance_set"] = field(default="maintenance_set")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceCleared:
    """A maintenance was called off, or is over before its time."""

    id: str
    by: str = ""
    kind: Literal["maintenance_cleared"] = field(default="maintenance_cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSet:
    """A queue was made or changed."""

    queue: Queue
    by: str = ""
    kind: Literal["queue_set"] = field(default="queue_set")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDeleted:
    """An empty queue was taken away."""

    queue: str
    by: str = ""
    kind: Literal["queue_deleted"] = field(default="queue_deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """Another policy document is in force from the next round on. `version` is one more than that of the one before:
    whoever saw an older one is refused. `forced`: live jobs whose queue it does not have go to the nearest queue above
    that it has; without it, it has the queues of all."""

    document: PolicyDocument
    version: int
    by: str = ""
    note: str = ""
    forced: bool = False
    kind: Literal["policy_set"] = field(default="policy_set")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job was accepted and waits."""

    job: Job
    kind: Literal["submitted"] = field(default="submitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody asked for a job to end."""

    gang: str
    by: str = ""
    kind: Literal["stop_requested"] = field(default="stop_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequested:
    """Somebody asked for a job to give its nodes back and wait until it is resumed."""

    gang: str
    by: str = ""
    kind: Literal["suspend_requested"] = field(default="suspend_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """Somebody asked for a suspended job to wait for its turn again."""

    gang: str
    by: str = ""
    kind: Literal["resume_requested"] = field(default="resume_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChanged:
    """A live job has another priority from now on."""

    gang: str
    priority: int
    by: str = ""
    kind: Literal["priority_changed"] = field(default="priority_changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """An ended job was taken out of the listings."""

    gang: str
    by: str = ""
    kind: Literal["deleted"] = field(default="deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Somebody changed what listings show of a job: `labels` as a merge patch, None takes one away; `notes` None leaves
    them as they are. No matter to the scheduler, and possible after the end."""

    gang: str
    labels: dict[str, str | None] = field(default_factory=dict)
    notes: str | None = None
    by: str = ""
    kind: Literal["described"] = field(default="described")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A round's plan, recorded before the world changes. `policy` and `version` say by which code."""

    plan: Plan
    policy: str
    version: str
    kind: Literal["decided"] = field(default="decided")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Every rank on these nodes runs."""

    gang: str
    generation: int
    nodes: tuple[str, ...]
    kind: Literal["started"] = field(default="started")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """The gang's slowest rank has finished `step`. The first of a generation at once, then at most every 10 s."""

    gang: str
    generation: int
    step: int
    kind: Literal["progressed"] = field(default="progressed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """A checkpoint of `step` became visible, complete. took_ms: how long the ranks were about it, as they said."""

    gang: str
    generation: int
    step: int
    took_ms: int = 0
    kind: Literal["checkpointed"] = field(default="checkpointed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """From where a generation goes on: the checkpoint of `step`, None for the beginning. `passed`: newer ones, which
    are not whole, or which an attempt failed on; `older_step`: the newest whole one before it, None where there is
    none. Told where it is otherwise than was known."""

    gang: str
    generation: int
    step: int | None
    passed: tuple[FlawedCheckpoint, ...] = ()
    older_step: int | None = None
    kind: Literal["resumed"] = field(default="resumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Of a step: for how long the first thread of a rank ran, and for how long it waited for a processor."""

    ran_ms: int
    queued_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank takes longer for its steps than its peers: `step_ms` where they take `peers_ms`; or it is at work for all
    of a step, where its peers wait for much of it: `work` and `peers_work`. Told once of a rank and generation."""

    gang: str
    generation: int
    node: str
    rank: int
    step_ms: int
    peers_ms: int
    work: StepWork | None = None
    peers_work: StepWork | None = None
    kind: Literal["slow"] = field(default="slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Every rank on these nodes exited with 0."""

    gang: str
    generation: int
    nodes: tuple[str, ...]
    kind: Literal["finished"] = field(default="finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """All ranks whose end is the end of the job exited with 0: what else runs of it is not needed any more."""

    gang: str
    generation: int
    kind: Literal["done"] = field(default="done")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
    """The rule of `retry.rules` that fits a failure: its index, and what it says to do.

    node: where the line stands that its pattern is found in, or, of a rule by cause alone, where the failure was; rank:
    whose line it is, None without a pattern; line: its text, cut to what a tail shows.
    """

    rule: int
    do: str
    node: str
    rank: int | None = None
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The first thing that went wrong on a node. `rank` None: before any rank, or the launcher itself.

    exit_code and signal as the operating system gave them (exactly one set for a rank that died); `detail` is one
    sentence; `tail` the last lines the rank wrote; `match` the rule that decides what it leads to, None without one;
    `ends` how the ranks ended that had by then, on all nodes, oldest first; `ranks` how many the generation has, 0
    where nobody said; `since_ms` when it went wrong, in Unix ms by the node's clock, None where only the event's own
    time is known.
    """

    gang: str
    generation: int
    node: str
    cause: Cause
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    tail: tuple[str, ...] = ()
    match: RuleMatch | None = None
    ends: tuple[RankEnd, ...] = ()
    ranks: int = 0
    since_ms: int | None = None
    kind: Literal["failed"] = field(default="failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Nothing of this generation is left on these nodes. `killed`: ranks there that did not end in the time that a stop
    gave them, so that SIGKILL ended them; `grace_ms`: how long they had to save their work, 0 without notice."""

    gang: str
    generation: int
    nodes: tuple[str, ...]
    killed: tuple[int, ...] = ()
    grace_ms: int = 0
    kind: Literal["cleared"] = field(default="cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A row of the log that was set aside: it cannot be read, or does not follow from those before it. It changes
    nothing, and is never written: whoever reads the log finds it in place of the row.

    was: the kind of event that the row should have.
    why: the fault, as a sentence.
    about: the jobs, queues and nodes that it is about, as far as that can be told.
    """

    was: str
    why: str
    about: tuple[str, ...] = ()
    kind: Literal["unreadable"] = field(default="unreadable")


Event = (
    ServerStarted
    | NodesListed
    | NodeLost
    | NodeReturned
    | NodeCordoned
    | NodeUncordoned
    | NodeDrained
    | NodePreempted
    | MaintenanceSet
    | MaintenanceCleared
    | QueueSet
    | QueueDeleted
    | PolicySet
    | Submitted
    | StopRequested
    | SuspendRequested
    | ResumeRequested
    | PriorityChanged
    | Deleted
    | Described
    | Decided
    | Started
    | Progressed
    | Checkpointed
    | Resumed
    | Slow
    | Finished
    | Done
    | Failed
    | Cleared
    | Unreadable
)


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event as the log has it: numbered from 1 without a gap, at a time that never decreases.

    `closes` marks the last event of a batch: a round was planned after it, at its time.
    """

    seq: int
    at_ms: int
    event: Event
    closes: bool = True
