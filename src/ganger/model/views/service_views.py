"""What faces show: one class for each answer of the service, so that CLI, REST, SDK and portal print the same figures.

Made by `engine.service`; serialised by REST as it stands (durations in ms, sizes in bytes, times in Unix ms).
"""

from dataclasses import dataclass, field
from typing import Any, Final

from ganger.model.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonView:
    """Why a job waits. `sentence` is the same on every face; `remedy` is what to type or expect."""

    code: str
    sentence: str
    remedy: str
    holders: tuple[str, ...] = ()
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one cause of ends of attempts has cost a job, or jobs: `cause` as events name it. Attempts that gave way, to
    a preemption say, are restarts without failures. held_ms: of the recovery, how long nodes were held."""

    cause: str
    failures: int = 0
    restarts: int = 0
    detect_ms: int = 0
    recovery_ms: int = 0
    lost_ms: int = 0
    held_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where a job's time went, in ms; the parts add up to `total_ms` (wall time since submission, until it ended).

    queued: before the first start was decided, and while suspended; starting: from there to the first step (or to
    running, where no steps are reported); productive: steps that were kept; checkpoint: saving them; detect: from when
    something went wrong until that was known; recovery: from there to the first step of the next attempt, waiting
    included; lost: work after the newest checkpoint, to be done again, and the end of an attempt that was the last.
    held_ms: of all that, how long nodes were held; losses: detect, recovery and lost by cause.
    """

    queued_ms: int = 0
    starting_ms: int = 0
    productive_ms: int = 0
    checkpoint_ms: int = 0
    detect_ms: int = 0
    recovery_ms: int = 0
    lost_ms: int = 0
    total_ms: int = 0
    held_ms: int = 0
    losses: tuple[Loss, ...] = ()


PARTS: Final = ("queued", "starting", "productive", "checkpoint", "detect", "recovery", "lost")
"""Of a ledger: together they are its total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Where the time of jobs went until `at_ms`: of all that live, and of those that ended at `since_ms` or later, each
    with its whole life. Elements of an array are jobs.

    jobs: how many are in each state; time: their ledgers added up; gpu_time: the same for each GPU that a job held, as
    long as it held it, so without waiting; goodput: the productive share of the GPU time held, of the jobs' own time
    held where there were no GPUs, None where nothing was held.
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
    """One generation: when, where, how it ended. `outcome` is running, finished, failed or stopped; `blame` of one that
    failed user, infrastructure or unknown."""

    generation: int
    started_ms: int | None
    ended_ms: int | None
    outcome: str
    nodes: tuple[str, ...]
    sentence: str = ""
    resumed_step: int | None = None
    """Of the checkpoint that it began from."""
    passed: tuple[str, ...] = ()
    """A sentence for each newer one, which was not whole."""
    blame: str = ""
    killed: tuple[int, ...] = ()
    """Ranks that did not end in the time that a stop gave them, so that they were killed."""
    time_ms: int | None = None
    """The job's time limit while it ran, over all attempts, where it was granted less than the job asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a listing."""

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
    """Why it waits, or how it ended: one line."""
    nodes: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    elements: dict[str, int] | None = None
    """Of an array: how many of its elements are in each state."""
    array: str | None = None
    index: int | None = None
    """Of an element: the id of its array, and which one it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job in full."""

    row: JobRow
    spec: JobSpec
    directory: str
    git_commit: str | None
    git_dirty: bool
    attempts: tuple[AttemptView, ...]
    ledger: Ledger
    """Of an array: those of all its elements added up, of each from its submission on, also while it waits."""
    git_diff_hash: str | None = None
    """Tells the changes to the commit, kept as git.diff, from those of another job."""
    code_hash: str | None = None
    """Of the copy of the code, by content; None for a job that runs in its directory."""
    checkpoint_step: int | None = None
    progress: dict[str, Any] | None = None
    """Newest report of rank 0 while it runs: {"step", "metrics", "t", "phase"}."""
    reason: ReasonView | None = None
    ends_by_ms: int | None = None
    """While it runs: when its time limit, or what its start was granted of it, is over. None: it has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that would let a waiting job start now, checked by the scheduler itself. flags: what to type with it;
    for processes of a role a line of its file: roles.ps.count=2."""

    say: str
    flags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One of the things that decide a job's place in the order: its raw value in `unit` (points, minutes, ppm of the
    cluster), and what it is worth: `weight` points for each, of a share all of them for nothing used. `points` is None
    where jobs are compared by one factor after the other, in this order."""

    name: str
    value: int
    unit: str
    weight: int
    points: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything about a job's wait, or one sentence about its state when it does not wait.

    position is 1-based among `waiting` jobs of its queue, in the order they are tried. It is expected between
    earliest_ms and promised_ms: earliest_ms is when there is room for it by the limits of what runs, or by what is
    predicted of it, if nobody before it takes that (None: nothing tells when somebody in the way ends); promised_ms is
    by when it starts at the latest (None: that is not promised yet).
    """

    job: str
    state: str
    sentence: str
    reason: ReasonView | None = None
    position: int | None = None
    waiting: int | None = None
    waited_ms: int | None = None
    earliest_ms: int | None = None
    promised_ms: int | None = None
    where: tuple[str, ...] = ()
    """One line for each domain, of the lowest level or the one it must stay in: who holds what there."""
    predicted: tuple[str, ...] = ()
    """A sentence for each job without a limit that this counts on, itself too: how long it is expected to run, and from
    what that is predicted."""
    quota: str = ""
    changes: tuple[Change, ...] = ()
    proof: str = ""
    """Where none would help: the smallest form of it that was tried, and why not even that starts."""
    policy: str = ""
    """The order in force."""
    factors: tuple[Factor, ...] = ()
    """What decides its place in that order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What would happen if the job were submitted now: placed on `nodes`, or waiting for `reason`."""

    spec: JobSpec
    shape: str
    starts_now: bool
    nodes: tuple[str, ...] = ()
    reason: ReasonView | None = None
    earliest_ms: int | None = None
    changes: tuple[Change, ...] = ()
    proof: str = ""
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """What ganger adds to rank 0's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Threads of several ranks that were at the same place: `frames` are `function (file:line)`, the innermost first,
    none where a process showed no Python; `states` what their processes did."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    thread: str
    states: tuple[str, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Where every rank was when the gang was found standing still. Main threads first, of those the rarest."""

    job: str
    attempt: int
    at_ms: int
    groups: tuple[StackGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue with what it may use and what is used in it and below it. None is no limit; amounts are {"gpus",
    "cpu_milli", "memory_bytes"}: figures with "gpu_types", an amount by type, what is used and available with
    "gpus.TYPE" for each type that some queue has a figure for."""

    name: str
    parent: str | None
    weight: int
    nominal: dict[str, int | dict[str, int] | None]
    borrowing: dict[str, int | dict[str, int] | None]
    lending: dict[str, int | dict[str, int] | None]
    used: dict[str, float]
    available: dict[str, float | None]
    user_limits: dict[str, int | None]
    default_time_ms: int | None
    fair_gpus: int
    """What is fair to it of the GPUs there are, by guarantee, weight and what its jobs hold and wait for."""
    pending: int
    """Jobs that wait in it and below it."""
    running: int
    """Jobs there that neither wait nor are suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What one key of the policy document was and is, as it is written there; None: not written, "" a mapping."""

    path: str
    before: str | int | None
    after: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedJob:
    """A live job that would be in a queue that is gone, or could not start again, under another policy."""

    job: str
    state: str
    queue: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWarning:
    """A guarantee of a policy document beyond what all nodes have together. It holds all the same: nodes come and go.
    resource: as in a queue's figures, gpus.TYPE for a type; guaranteed, there: in its unit."""

    queue: str
    resource: str
    guaranteed: int
    there: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """A version of the policy document: the one in force, or an earlier one. Version 0 is what nobody set; `document`
    is as it is written, without what is as it is anyway; `text` the same as YAML; warnings: what of it the nodes that
    there are now are too few for."""

    version: int
    at_ms: int | None
    by: str
    note: str
    document: dict[str, Any]
    text: str
    warnings: tuple[PolicyWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One row of the policy's history. changes: None where the version before is not kept any more."""

    version: int
    at_ms: int
    by: str
    note: str
    what: str
    changes: tuple[PolicyChange, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a waiting job in the order of its queue, under the policy in force and under another; from 1."""

    job: str
    queue: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTrial:
    """What another policy would change. `against`: the version that it is compared with; stranded: why it would be
    refused unless it is forced; warnings: what of it the nodes that there are now are too few for. The rest is of the
    next round, and empty where only the documents were compared: starts: jobs that it would start and that now would
    wait; waits: the other way round; moved: how many waiting jobs would have another place, and places: the first of
    them."""

    against: int
    changes: tuple[PolicyChange, ...]
    stranded: tuple[StrandedJob, ...]
    warnings: tuple[PolicyWarning, ...] = ()
    starts: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    moved: int = 0
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node with what it has and what is free. domains: by level, outermost first, the domain that it is in;
    gpus_foreign: how many others use, whom ganger does not place; maintenance: ids of those that it is in, or will
    be; unready: one sentence on a node that is not ready, with what becomes of its jobs."""

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
    """That of the policy which it is in."""
    maintenance: tuple[str, ...] = ()
    gpus_foreign: int = 0
    unready: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRow:
    """Maintenance that is not over: these nodes are not there from a moment until another, in Unix ms."""

    id: str
    nodes: tuple[str, ...]
    from_ms: int
    until_ms: int
    note: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRow:
    """A secret that is kept, and when it was set. Its value is shown nowhere."""

    name: str
    set_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One row of the log with a sentence a person reads. `data` is the event as the log has it."""

    seq: int
    at_ms: int
    kind: str
    job: str | None
    sentence: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """The server itself. `health` is ok, or a sentence that says what is wrong (a full disk, a clock that jumped)."""

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
class Entrance:
    """How a command is run beside a rank, on the server's machine: `argv`, then the generation, the rank, flags and the
    command itself."""

    job: str
    generation: int
    rank: int
    node: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """What a rank uses at the moment: thousandths of a processor, resident memory of all its processes. `devices` are
    those that it has of its node; `rank` is None for processes that have none, as mpirun has."""

    job: str
    queue: str
    rank: int | None
    node: str
    devices: tuple[int, ...]
    cpu_milli: int
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What is used of one device of a node at the moment, by whomever."""

    node: str
    device: int
    busy_percent: int
    memory_used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What is used at `at_ms`; `gpus` has those that the driver tells about. It is kept nowhere."""

    at_ms: int
    ranks: tuple[RankSample, ...]
    gpus: tuple[GpuSample, ...]
