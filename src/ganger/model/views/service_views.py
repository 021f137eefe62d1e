"""Answers of the services: one class for each, so that CLI, REST, SDK and portal show the same figures.

Serialised by REST as they are: durations in ms, sizes in bytes, times in Unix ms.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ganger.model.decision import SaveEstimate
from ganger.model.job import JobSpec
from ganger.model.job_metrics import JobMetric, JobMetrics, Point
from ganger.model.views.queue_views import IdleNow


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonView:
    """The pending reason of a job. `sentence` is the same in all clients; `remedy` is what to type or to expect."""

    code: str
    sentence: str
    remedy: str
    holders: tuple[str, ...] = ()
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Cost of one cause of attempts' ends to a job, or several jobs; `cause` is named as in events.

    Attributes:
        failures, restarts: Attempts that failed, and attempts that were restarted; preempted attempts are restarts
            only.
        held_ms: The part of the recovery time during which nodes were held.
    """

    cause: str
    failures: int = 0
    restarts: int = 0
    detect_ms: int = 0
    recovery_ms: int = 0
    lost_ms: int = 0
    unobserved_ms: int = 0
    held_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Parts of a job's time, in ms. They add up to `total_ms`: wall time from submission to the end.

    Attributes:
        queued_ms: Before the first start was decided, and while suspended.
        starting_ms: From there to the first step, or to running if no steps are reported.
        productive_ms: Steps that were kept.
        checkpoint_ms: Saving checkpoints.
        detect_ms: From a failure until it was detected.
        recovery_ms: From there to the first step of the next attempt, including the wait for nodes.
        lost_ms: Work after the newest checkpoint, which is repeated, and the end of the last attempt.
        unobserved_ms: Work of attempts that did not succeed, of a job that has reported no step and no checkpoint.
        held_ms: The part of the total during which nodes were held.
        losses: Detect, recovery, lost and unobserved by cause.
    """

    queued_ms: int = 0
    starting_ms: int = 0
    productive_ms: int = 0
    checkpoint_ms: int = 0
    detect_ms: int = 0
    recovery_ms: int = 0
    lost_ms: int = 0
    unobserved_ms: int = 0
    total_ms: int = 0
    held_ms: int = 0
    losses: tuple[Loss, ...] = ()


PARTS: Final = ("queued", "starting", "productive", "checkpoint", "detect", "recovery", "lost", "unobserved")
"""The parts of a ledger, which add up to its total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Parts of jobs' time until `at_ms`: of all live jobs, and of those that ended at `since_ms` or later.

    Each job counts with its whole lifetime; elements of an array are jobs.

    Attributes:
        jobs: The number of jobs in each state.
        time: The sum of their ledgers.
        gpu_time: The same multiplied by the GPUs that a job held while it held them, so without queue time.
        goodput: The productive share of the GPU time held; of the wall time held where there were no GPUs; None if
            nothing was held.
    """

    at_ms: int
    since_ms: int | None
    user: str | None
    queue: str | None
    jobs: dict[str, int]
    time: Ledger
    gpu_time: Ledger
    goodput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt: when and where it ran, how it ended.

    Attributes:
        outcome: Running, finished, failed or stopped.
        resumed_step: The step of the checkpoint that it started from.
        resumed_job: The job that saved it, empty for this one.
        skipped: A sentence for each newer checkpoint that was incomplete.
        blame, failure_class: Of a failed one: user, infrastructure or unknown; its class as `ganger diagnose` names it.
        killed: Ranks that did not exit within the grace period and were killed.
        observed: It has reported a step or a checkpoint; else its progress is unknown.
        time_ms: The job's time limit over all attempts while it ran, where it was granted less than requested.
        dropped_copy: Why another node has no copy of the newest checkpoint, empty if it has, or need not.
    """

    generation: int
    started_ms: int | None
    ended_ms: int | None
    outcome: str
    nodes: tuple[str, ...]
    sentence: str = ""
    resumed_step: int | None = None
    resumed_job: str = ""
    skipped: tuple[str, ...] = ()
    blame: str = ""
    failure_class: str = ""
    killed: tuple[int, ...] = ()
    observed: bool = False
    time_ms: int | None = None
    dropped_copy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a listing.

    Attributes:
        sentence: Why it is pending, or how it ended, on one line.
        elements: Of an array: the number of its elements in each state.
        array, index: Of an element: the id of its array, and its index.
        save_ms: The time of the longest of its newest saves, None if none was measured.
        metrics: What it has reported of its metrics, over all attempts; not of an array.
    """

    id: str
    name: str
    user: str
    queue: str
    priority: int
    state: str
    shape: str
    submitted_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    generation: int = 0
    exit_code: int | None = None
    sentence: str = ""
    nodes: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    elements: dict[str, int] | None = None
    array: str | None = None
    index: int | None = None
    save_ms: int | None = None
    metrics: JobMetrics = JobMetrics()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavesView:
    """The saves of a job that has not ended.

    Attributes:
        estimate: Their time, and the expected time between two failures.
        every_ms: The interval in use, None if the script decides by itself.
        best_every_ms: The interval that costs least.
        cost, best_cost: The part of its time that the job loses with these intervals, by saves and by failures.
        warning: A sentence if a save takes, or may take, longer than the notice before a stop, else empty.
    """

    estimate: SaveEstimate
    every_ms: int | None
    best_every_ms: int
    cost: float | None
    best_cost: float
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job with all its details.

    Attributes:
        ledger: Of an array: the sum over its elements, each from its submission on, also while pending.
        git_diff_hash: Hash of the changes to the commit, which are stored as git.diff.
        code_hash: Content hash of the copied code; None for a job that runs in its directory.
        progress: The newest report of rank 0 while it runs: {"step", "metrics", "t", "phase"}.
        ends_by_ms: While it runs: when its time limit, or the time granted at its start, expires; None: no limit.
        notice_until_ms: While it is being stopped: until when it may save its work; None: no longer.
        saves: Of a job with a checkpoint section until it ends: its saves, or of the newest job of its name before it.
        idle: While it is idle, and was warned of what follows.
        resumes: The checkpoint of another job from which it begins: step 19 of bert-7f3; empty for none.
        checkpoint_directory: Where it saves, absolute; empty if only its pods know.
        checkpoints_in_copy: How many are in its copy of the code, which is deleted with the job.
    """

    row: JobRow
    spec: JobSpec
    directory: str
    git_commit: str | None
    git_dirty: bool
    attempts: tuple[AttemptView, ...]
    ledger: Ledger
    git_diff_hash: str | None = None
    code_hash: str | None = None
    checkpoint_step: int | None = None
    progress: dict[str, Any] | None = None
    reason: ReasonView | None = None
    ends_by_ms: int | None = None
    notice_until_ms: int | None = None
    saves: SavesView | None = None
    idle: IdleNow | None = None
    resumes: str = ""
    checkpoint_directory: str = ""
    checkpoints_in_copy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricView(JobMetric):
    """A metric of a job with its curve.

    Attributes:
        points: Step, Unix ms and value of at most 1,000 reports, oldest first; value null if it is not a finite number.
            Steps that a later attempt repeated are in it once, as that attempt reported them. None in a cluster, whose
            curves are not kept.
    """

    points: tuple[Point, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsView:
    """The metrics of a job; `left_out` counts those beyond the first 32, and those with names above 100 characters."""

    job: str
    metrics: tuple[MetricView, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed request with which a pending job would start now, checked by the scheduler.

    Attributes:
        flags: The options to type for it; for what has none, the key of its file: roles.ps.count=2, remove
            placement.node_selector.zone.
    """

    description: str
    flags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A factor of a job's place in the queue order.

    Attributes:
        value: Its raw value in `unit`: points, minutes, ppm of the cluster.
        weight: Points for each unit; for a share, the points for nothing used.
        points: Its contribution; None where jobs are compared by one factor after the other, in this order.
    """

    name: str
    value: int
    unit: str
    weight: int
    points: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRange:
    """The time in which a pending job is expected to start, as 8 of 10 such jobs did.

    Attributes:
        from_ms, until_ms: The range; None if the start is unknown.
        expected_ms: The most likely time in it.
        basis: `limits` if it follows from time limits, `history` if a run time is predicted from earlier jobs of the
            same user, `unknown` if neither tells.
        depends_on: A sentence for each thing that it depends on; if it is unknown, the reason for that.
    """

    from_ms: int | None
    until_ms: int | None
    expected_ms: int | None
    basis: Literal["limits", "history", "unknown"]
    depends_on: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything about a job's wait; of one that is not pending how it is doing, or why it failed.

    Attributes:
        position: Its place, from 1, among the `pending` pending jobs of its queue, in queue order.
        earliest_ms: When there is room for it by the time limits and predicted run times of running jobs, if no job
            before it takes that room; None if that cannot be forecast.
        reserved_start_ms: Its reserved start: it starts then at the latest; None without a reservation.
        forecast: When it is expected to start with all jobs before it; None if it is not pending.
        domains: One line for each domain of the lowest level, or of the level it must stay in: which jobs hold what
            there; of a job that is not pending, for each attempt that failed, each node that is not ready, and each
            spare.
        predicted: A sentence for each job without a time limit that the forecast depends on, this one included: how
            long it is expected to run, and from what that is predicted.
        changes: Changed requests with which it would start now.
        smallest_tried: If there are none: the smallest form of it that was tried, and why not even that starts.
        policy: The queue order in force.
        factors: What decides its place in that order.
        advice: Of a job that failed: what to do, the most useful first.
    """

    job: str
    state: str
    sentence: str
    reason: ReasonView | None = None
    position: int | None = None
    pending: int | None = None
    waited_ms: int | None = None
    earliest_ms: int | None = None
    reserved_start_ms: int | None = None
    forecast: StartRange | None = None
    domains: tuple[str, ...] = ()
    predicted: tuple[str, ...] = ()
    quota: str = ""
    changes: tuple[Change, ...] = ()
    smallest_tried: str = ""
    policy: str = ""
    factors: tuple[Factor, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """A running job that would be preempted; `nodes` is how many it would give up, 0 if it would be stopped."""

    job: str
    rule: str
    notice_ms: int
    unsaved_ms: int
    nodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Outcome if the job were submitted now: a start on `nodes`, or a wait for `reason`.

    Attributes:
        forecast: When it would be expected to start; None if it would start now.
        preempted: The jobs that would be preempted for it.
        environment: The variables that ganger adds for rank 0.
        saves: What is known of its saves from the newest job of its name.
        resumes: The checkpoint of another job from which it begins: step 19 of bert-7f3; empty for none.
    """

    spec: JobSpec
    shape: str
    starts_now: bool
    nodes: tuple[str, ...] = ()
    reason: ReasonView | None = None
    forecast: StartRange | None = None
    changes: tuple[Change, ...] = ()
    smallest_tried: str = ""
    preempted: tuple[Preempted, ...] = ()
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    saves: SavesView | None = None
    resumes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Threads of several ranks with the same stack.

    Attributes:
        states: The states of their processes.
        frames: `function (file:line)`, the innermost first; empty for a process without Python frames.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    thread: str
    states: tuple[str, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """The stacks of all ranks when a hang was detected: main threads first, and the rarest stacks first."""

    job: str
    attempt: int
    at_ms: int
    groups: tuple[StackGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node with its total and free resources.

    Attributes:
        domains: The domain of each level, outermost first.
        pool: Its pool in the policy.
        maintenance: Ids of the maintenances that it is, or will be, in.
        gpus_foreign: GPUs in use outside ganger.
        unready: One sentence on a node that is not ready, with the consequences for its jobs.
    """

    name: str
    domains: dict[str, str]
    state: str
    gpu_type: str
    gpus: int
    gpus_free: int
    cpu_milli: int
    cpu_free_milli: int
    memory_bytes: int
    memory_free_bytes: int
    gangs: tuple[str, ...] = ()
    pool: str = ""
    maintenance: tuple[str, ...] = ()
    gpus_foreign: int = 0
    unready: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRow:
    """A maintenance that is not over: the nodes are unavailable from `from_ms` until `until_ms`, in Unix ms."""

    id: str
    nodes: tuple[str, ...]
    from_ms: int
    until_ms: int
    note: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRow:
    """A stored secret, and when it was set. Its value is never shown."""

    name: str
    set_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An entry of the log with a sentence for users. `data` is the event as stored."""

    seq: int
    at_ms: int
    kind: str
    job: str | None
    sentence: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """The server. `health` is ok, or a sentence on what is wrong: a full disk, a clock that jumped."""

    version: str
    pid: int
    home: str
    seq: int
    policy: str
    started_ms: int
    health: str
    pending: int
    running: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerView:
    """The user under whom requests are made, and what they may change.

    Attributes:
        authentication: socket_owner, or token.
        scope: Of a token; admin for the owner of the socket.
        expires_ms: Of a token, Unix ms; None: never.
    """

    user: str
    authentication: str
    scope: str
    expires_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCommand:
    """The command that runs another command beside a rank, on the server's machine.

    Attributes:
        argv: To be followed by the generation, the rank, flags and the command itself.
    """

    job: str
    generation: int
    rank: int
    node: str
    argv: tuple[str, ...]
