"""Overview of the cluster, its usage now, and the largest job that could start now: further answers of the services.

Serialised by REST as they are, like those of `model.views.service_views`.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ganger.model.views.service_views import QueueRow, ReasonView

Order = Literal["policy", "wait", "gpus", "priority", "user", "queue"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
"""Orders of the pending jobs in an overview, each descending in urgency; ties: the oldest first.

policy: the order of the policy; wait: longest wait; gpus: most GPUs requested; priority: highest priority; user, queue:
by name. """


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
    """

    at_ms: int
    queue: str
    user: str
    levels: tuple[str, ...]
    available_gpus: int | None
    node_time: tuple[NodeTimeRow, ...]
    items: tuple[Size, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """The current resource usage of a rank.

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
    cpu_milli: int
    memory_bytes: int
    processes: int


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
