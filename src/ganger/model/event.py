"""Events: the only content of the log, and the input from which the state is folded.

Facts come from backends, requests from users through the services of `engine`, and `Decided` from the loop. A fact
carries its generation, which distinguishes a late fact from a current one. Events carry no time: the loop stamps them.
"""

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from ganger.model.affinity import Term
from ganger.model.cluster import RACK, Node
from ganger.model.decision import Cause, Move, Plan
from ganger.model.evidence import FlawedCheckpoint, RankEnd, RuleMatch, StepWork
from ganger.model.idle.idle_event import Idle
from ganger.model.job import Job
from ganger.model.job_metrics import JobMetrics
from ganger.model.node_health.health_event import HealthFact, HealthRequest
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue
from ganger.model.watch.watch_event import Anomaly, RollbackRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStarted:
    """A server took over: it plans nothing until its backend has listed what runs."""

    version: str
    kind: Literal["server_started"] = field(default="server_started")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesListed:
    """The complete list of nodes: makes the state ready for planning.

    A node that is missing from it is gone; a node in it responds, unless it is also in `lost`. `levels` are the
    topology levels of the nodes' domains, outermost first.
    """

    nodes: tuple[Node, ...]
    levels: tuple[str, ...] = RACK
    lost: tuple[str, ...] = ()
    kind: Literal["nodes_listed"] = field(default="nodes_listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """Capacity, readiness, foreign devices or images of a listed node changed (`model.cluster.is_same_node`)."""

    listed: Node
    kind: Literal["node_changed"] = field(default="node_changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node stopped responding; everything that ran on it is lost."""

    node: str
    detail: str = ""
    kind: Literal["node_lost"] = field(default="node_lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned:
    """A lost node responds again; nothing that ran on it before still runs."""

    node: str
    kind: Literal["node_returned"] = field(default="node_returned")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned:
    """A user took a node out of service: running jobs continue, nothing new starts there."""

    node: str
    by: str = ""
    reason: str = ""
    kind: Literal["node_cordoned"] = field(default="node_cordoned")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned:
    """A user put a node back into service."""

    node: str
    by: str = ""
    kind: Literal["node_uncordoned"] = field(default="node_uncordoned")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """A user took a node out of service, and its jobs are to restart on other nodes."""

    node: str
    by: str = ""
    reason: str = ""
    kind: Literal["node_drained"] = field(default="node_drained")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePreempted:
    """The provider takes a node back `notice_ms` from now, as with spot instances.

    Its jobs have that long to save their work, and restart on other nodes; the loss itself is a `NodeLost`.
    """

    node: str
    notice_ms: int
    by: str = ""
    kind: Literal["node_preempted"] = field(default="node_preempted")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSet:
    """A user announced maintenance: these nodes are unavailable from `from_ms` until `until_ms`, in Unix ms.

    A job that would still run there at `from_ms` does not start; a job that does run there is restarted elsewhere.
    """

    id: str
    nodes: tuple[str, ...]
    from_ms: int
    until_ms: int
    note: str = ""
    by: str = ""
    kind: Literal["maintenance_set"] = field(default="maintenance_set")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceCleared:
    """A maintenance was cancelled, or ended early."""

    id: str
    by: str = ""
    kind: Literal["maintenance_cleared"] = field(default="maintenance_cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragRequested:
    """A user asked for running jobs to be moved, all of them or none; a pending job `gang` gets the room."""

    moves: tuple[Move, ...]
    gang: str = ""
    by: str = ""
    kind: Literal["defrag_requested"] = field(default="defrag_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSet:
    """A queue was created or changed."""

    queue: Queue
    by: str = ""
    kind: Literal["queue_set"] = field(default="queue_set")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDeleted:
    """An empty queue was deleted."""

    queue: str
    by: str = ""
    kind: Literal["queue_deleted"] = field(default="queue_deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """A new policy document is in force from the next scheduling cycle on.

    Attributes:
        version: One more than the version before; a request based on an older version is refused.
        forced: Live jobs whose queue the document lacks move to the nearest queue above that it has; without it, the
            document has the queues of all live jobs.
    """

    document: PolicyDocument
    version: int
    by: str = ""
    note: str = ""
    forced: bool = False
    kind: Literal["policy_set"] = field(default="policy_set")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job was accepted and is pending."""

    job: Job
    kind: Literal["submitted"] = field(default="submitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A user asked for a job to be stopped; `now`: without time to save its work, or without the rest of that time."""

    gang: str
    by: str = ""
    now: bool = False
    kind: Literal["stop_requested"] = field(default="stop_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequested:
    """A user asked for a job to release its nodes and to wait until it is resumed."""

    gang: str
    by: str = ""
    kind: Literal["suspend_requested"] = field(default="suspend_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """A user asked for a suspended job to be queued again."""

    gang: str
    by: str = ""
    kind: Literal["resume_requested"] = field(default="resume_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChanged:
    """The priority of a live job changed."""

    gang: str
    priority: int
    by: str = ""
    kind: Literal["priority_changed"] = field(default="priority_changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequested:
    """A user asked for another number of nodes of an elastic job."""

    gang: str
    nodes: int
    by: str = ""
    kind: Literal["scale_requested"] = field(default="scale_requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRestricted:
    """The volumes of a job without nodes allow other nodes: one of the terms `required` must hold; without any, all."""

    gang: str
    required: tuple[Term, ...] = ()
    kind: Literal["nodes_restricted"] = field(default="nodes_restricted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """An ended job was removed from the listings."""

    gang: str
    by: str = ""
    kind: Literal["deleted"] = field(default="deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A user changed the labels or notes of a job, also after its end; the scheduler ignores both.

    Attributes:
        labels: A merge patch: None removes a label.
        notes: None leaves them unchanged.
    """

    gang: str
    labels: dict[str, str | None] = field(default_factory=dict)
    notes: str | None = None
    by: str = ""
    kind: Literal["described"] = field(default="described")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The plan of a scheduling cycle, recorded before it is carried out; `policy` and `version` name its code."""

    plan: Plan
    policy: str
    version: str
    kind: Literal["decided"] = field(default="decided")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfGeneration:
    gang: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_OfGeneration):
    """Every rank on these nodes runs."""

    nodes: tuple[str, ...]
    kind: Literal["started"] = field(default="started")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(_OfGeneration):
    """The gang's slowest rank has finished `step`: the first of a generation at once, then at most one every 10 s."""

    step: int
    kind: Literal["progressed"] = field(default="progressed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(_OfGeneration):
    """A complete checkpoint of `step` became visible.

    Attributes:
        took_ms: How long the ranks took to save it, as they reported.
        saved_ms: When it became visible, by the clock of its node, None if unknown: work since then is not in it.
    """

    step: int
    took_ms: int = 0
    saved_ms: int | None = None
    kind: Literal["checkpointed"] = field(default="checkpointed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(_OfGeneration):
    """The checkpoint that a generation resumed from, None for the beginning: reported if another was expected.

    Attributes:
        skipped: Newer checkpoints that were skipped: incomplete, or an attempt failed on them.
        older_step: The newest complete checkpoint before it, None if there is none.
        source: The job that saved it, empty for the gang itself.
    """

    step: int | None
    skipped: tuple[FlawedCheckpoint, ...] = ()
    older_step: int | None = None
    source: str = ""
    kind: Literal["resumed"] = field(default="resumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDropped(_OfGeneration):
    """The checkpoint of `step` on `node` was not copied to `peer`, for this reason; a later one may be."""

    node: str
    peer: str
    step: int
    reason: str
    kind: Literal["copy_dropped"] = field(default="copy_dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsKept(_OfGeneration):
    """The metrics that a generation has reported: one event, before the last of the generation is gone."""

    metrics: JobMetrics
    kind: Literal["metrics_kept"] = field(default="metrics_kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(_OfGeneration):
    """A straggler: reported once for each rank and generation.

    Its steps take `step_ms`, its peers' `peers_ms`; or it works through a step in which these wait (`work`).
    """

    node: str
    rank: int
    step_ms: int
    peers_ms: int
    work: StepWork | None = None
    peers_work: StepWork | None = None
    kind: Literal["slow"] = field(default="slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet(_OfGeneration):
    """No rank has written anything for longer than usual, if there is a usual time: not a failure.

    `places` has the places of the ranks, and the one that differs from the others, as far as their stacks show it.
    """

    quiet_ms: int
    usual_ms: int | None
    places: str = ""
    kind: Literal["quiet"] = field(default="quiet")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEdited(_OfGeneration):
    """A further attempt of a job that runs in place has other code than the first one.

    `files` were edited since the first start, relative to the job's directory: the first few, and `more`.
    """

    directory: str
    files: tuple[str, ...]
    more: int = 0
    kind: Literal["code_edited"] = field(default="code_edited")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted(_OfGeneration):
    """The pod of this generation on a node is evicted or deleted, or the node shuts down, in `notice_ms`.

    Its ranks have that long to save their work; the job restarts on other nodes.
    """

    node: str
    notice_ms: int
    kind: Literal["evicted"] = field(default="evicted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(_OfGeneration):
    """Every rank on these nodes exited with code 0."""

    nodes: tuple[str, ...]
    kind: Literal["finished"] = field(default="finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(_OfGeneration):
    """All ranks that decide the end of the job exited with code 0: its other ranks are not needed any more."""

    kind: Literal["done"] = field(default="done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_OfGeneration):
    """The first failure on a node.

    Attributes:
        rank: None if it happened before any rank started, or in the launcher itself.
        exit_code, signal: As the operating system reports them: exactly one is set for a rank that died.
        detail: One sentence.
        tail: The last lines that the rank wrote.
        match: The retry rule that decides what follows, None without one.
        ends: How the ranks of all nodes that had ended by then ended, oldest first.
        ranks: The number of ranks of the generation, 0 if unknown.
        since_ms: When it happened, in Unix ms by the node's clock, None if only the event's own time is known.
    """

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
class Cleared(_OfGeneration):
    """Nothing of this generation is left on these nodes.

    Attributes:
        killed: Ranks that did not exit within the grace period and were ended by SIGKILL.
        grace_ms: How long they had to save their work, 0 without notice.
    """

    nodes: tuple[str, ...]
    killed: tuple[int, ...] = ()
    grace_ms: int = 0
    kind: Literal["cleared"] = field(default="cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A row of the log that was set aside, given to readers in its place: it is unreadable, or contradicts others.

    `event_kind` should have been its kind, and `subjects` are the jobs, queues and nodes that it concerns, if known.
    """

    event_kind: str
    reason: str
    subjects: tuple[str, ...] = ()
    kind: Literal["unreadable"] = field(default="unreadable")


_SizeOrPriority = PriorityChanged | ScaleRequested
ChangeRequest = StopRequested | SuspendRequested | ResumeRequested | _SizeOrPriority | RollbackRequested
"""Requests that change a live job."""
_QueueRequest = QueueSet | QueueDeleted | PolicySet
_NodeRequest = NodeCordoned | NodeUncordoned | NodeDrained | MaintenanceSet | MaintenanceCleared | DefragRequested
Request = Submitted | ChangeRequest | Deleted | Described | _QueueRequest | _NodeRequest | HealthRequest
"""Events that a user asks for and that the loop may refuse; all others are facts."""

REQUESTS: Final = frozenset[str](request.__dataclass_fields__["kind"].default for request in get_args(Request))
"""The kinds of requests."""

ProgressFact = Resumed | CopyDropped | MetricsKept | Slow | Quiet | CodeEdited | Anomaly | Idle
_Report = Started | Progressed | Checkpointed | ProgressFact
GenerationFact = _Report | Evicted | Finished | Done | Failed | Cleared
"""Facts about one generation of a gang."""
ClusterFact = ServerStarted | NodesListed | NodeChanged | NodeLost | NodeReturned | NodePreempted
Event = Request | ClusterFact | HealthFact | NodesRestricted | Decided | GenerationFact | Unreadable


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event as stored in the log: numbered from 1 without gaps, at a time that never decreases.

    Attributes:
        closes: Marks the last event of a batch: a scheduling cycle was planned after it, at its time.
    """

    seq: int
    at_ms: int
    event: Event
    closes: bool = True
