"""Overview of the cluster, its usage now, and the largest job that could start now: further answers of the services.

Serialised by REST as they are, like those of `model.views.service_views`.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ganger.model.views.queue_views import QueueRow
from ganger.model.views.service_views import ReasonView

Order = Literal["policy", "wait", "gpus", "priority", "user", "queue"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
"""Orders of the pending jobs in an overview, each descending in urgency; ties: the oldest first.

policy: the order of the policy; wait: longest wait; gpus: most GPUs requested; priority: highest priority; user, queue:
by name. """


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestGang:
    """The largest gang of one form in one domain of a level, limits of queues and users aside.

    Attributes:
        gpus: GPUs of each of its nodes; empty type: any.
        level: Empty: in the whole cluster.
        nodes: Its nodes with the capacity that is free now.
        nodes_defragmented: Its nodes if all free GPUs were together: what consolidation could gain at most.
    """

    gpu_type: str
    gpus: int
    level: str
    nodes: int
    nodes_defragmented: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    """A running job that consolidation moves.

    Attributes:
        leaves, gets: The nodes that it gives up, and those that it gets for them.
        unsaved_ms: The work since its newest checkpoint, lost unless it is saved within the notice.
        gpu_ms: GPU-milliseconds that the move wastes: unsaved work, and the time to start again.
    """

    job: str
    leaves: tuple[str, ...]
    gets: tuple[str, ...]
    unsaved_ms: int
    notice_ms: int
    gpu_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragPlan:
    """Moves of running jobs after which a larger gang fits; without moves, none are possible or worth it.

    Attributes:
        job: The pending job that room is made for; empty: none, the largest gang becomes larger.
        largest: Gangs of whole nodes in one domain of the level: how large before the moves.
        nodes_after: The nodes of the largest gang of each of `largest` after the moves.
        moves: What moves where, all at once.
        gpu_ms: GPU-milliseconds that all moves waste.
        is_cheapest: No other moves would waste less.
    """

    at_ms: int
    level: str
    job: str
    largest: tuple[LargestGang, ...]
    nodes_after: tuple[int, ...]
    moves: tuple[MoveRow, ...]
    gpu_ms: int
    is_cheapest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The largest gang of one form that would start now: `nodes` nodes of these resources in one domain of `level`.

    Attributes:
        level: Empty: in any domains.
        domain: The domain that has room for it.
        flags: The options to submit it with.
        reason: Why not even one node would start; only without nodes.
    """

    gpu_type: str
    gpus: int
    cpu_milli: int
    level: str
    nodes: int
    domain: str = ""
    flags: str = ""
    reason: ReasonView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimeRow:
    """A limit of the node time that the user may use in a period, in a queue and those below it.

    Attributes:
        used_ms: What the user's ended jobs used in it.
        running_ms: What the user's jobs with nodes may use in it.
    """

    queue: str
    limit_ms: int
    per_ms: int
    used_ms: int
    running_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The largest jobs that a user could start in a queue now, computed by the scheduler.

    There is one for each GPU type, number of GPUs on each node, and topology level.

    Attributes:
        available_gpus: How many more GPUs the queue may use; None: no limit.
        node_time: The limits of the queue, and of those above it, on node time used in a period.
        fragmentation: The largest gang of each form and level without regard to limits, now and defragmented.
    """

    at_ms: int
    queue: str
    user: str
    levels: tuple[str, ...]
    available_gpus: int | None
    node_time: tuple[NodeTimeRow, ...]
    items: tuple[Size, ...]
    fragmentation: tuple[LargestGang, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A node, or a domain where there are too many nodes to show.

    Attributes:
        total: Its GPUs; CPUs if no node has GPUs.
        used: Those that are allocated.
        unavailable: Those that no job can use: in use outside ganger, or free on nodes where nothing new starts.
        state: That of a node.
    """

    name: str
    nodes: int
    total: int
    used: int
    unavailable: int
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A domain, and the cells inside it."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextJob:
    """A pending job.

    Attributes:
        gpu_milli: All that it requests, in thousandths of a GPU.
        reserved_start_ms: Its reserved start.
    """

    job: str
    user: str
    queue: str
    shape: str
    gpu_milli: int
    priority: int
    waited_ms: int
    reserved_start_ms: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The cluster and its queues at a glance.

    Attributes:
        cell: What a cell is: a node or a level.
        nodes: The number of nodes in each state.
        unit: What is counted: GPUs, or else CPUs.
        unavailable: Those that no job can use.
        order: That of `next`; in the order `policy`, jobs with a reserved start come first, by that start.
        fragmentation: The largest gang of each form and level, now and defragmented.
    """

    at_ms: int
    policy: str
    levels: tuple[str, ...]
    cell: str
    nodes: dict[str, int]
    unit: str
    total: int
    used: int
    unavailable: int
    blocks: tuple[Block, ...]
    queues: tuple[QueueRow, ...]
    pending: int
    running: int
    order: Order
    next: tuple[NextJob, ...]
    fragmentation: tuple[LargestGang, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """The current resource usage of a rank; null is "not measured", as in pods.

    Attributes:
        rank: None for processes without a rank, such as mpirun.
        devices: Its devices of the node.
        cpu_milli: Thousandths of a CPU in use.
        memory_bytes: Resident memory of all its processes.
    """

    job: str
    queue: str
    rank: int | None
    node: str
    devices: tuple[int, ...]
    cpu_milli: int | None
    memory_bytes: int | None
    processes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """The current usage of one device of a node, by all processes."""

    node: str
    device: int
    busy_percent: int
    memory_used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Resource usage at `at_ms`, which is not stored; `gpus` has the devices that the driver reports."""

    at_ms: int
    ranks: tuple[RankSample, ...]
    gpus: tuple[GpuSample, ...]
