"""The cluster at one glance, and how large a job may be to start now: answers of the service, as
`model.views.service_views` has them.

Made by `engine.query.cluster_overview` and `core.explain.max_fit`; serialised by REST as it stands.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ganger.model.views.service_views import QueueRow, ReasonView

Order = Literal["turn", "wait", "gpus", "priority", "user", "queue"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
"""Who of those that wait is told of first: whose turn is next; who has waited for longest; who asks for the most GPUs;
who has the highest priority; by user, by queue. Ties: the older first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The largest gang of one form that would start now: `nodes` nodes with that much of each, in one domain of `level`
    (empty: anywhere). domain: the one that has room for it. flags: what to type for it. reason: why not even one node
    would, where there are none."""

    gpu_type: str
    gpus: int
    cpu_milli: int
    level: str
    nodes: int
    domain: str = ""
    flags: str = ""
    reason: ReasonView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a user's job in a queue may be at most to start now, for each type of GPU, number of them on each node, and
    level of the network; tried by the scheduler itself. available_gpus: what the queue may use more of (None: no
    limit)."""

    at_ms: int
    queue: str
    user: str
    levels: tuple[str, ...]
    available_gpus: int | None
    items: tuple[Size, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A node, or a domain where there are too many: its GPUs (CPUs where no node has a GPU), how many of them are held,
    and how many nobody can have: others use them, or they are free on nodes that take nothing new. `state` is a
    node's."""

    name: str
    nodes: int
    whole: int
    used: int
    out: int
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A domain, and the cells inside it."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """A waiting job, and the latest start that it is promised; gpu_milli: all that it asks for, in thousandths."""

    job: str
    user: str
    queue: str
    shape: str
    gpu_milli: int
    priority: int
    waited_ms: int
    promised_ms: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The cluster and the queue at one glance. cell: what a cell is, a node or a level; nodes: how many are in each
    state; unit: what is counted, GPUs or else CPUs; out: those that nobody can have; order: of `next`, in
    that of turns the promised ones first, by their moment."""

    at_ms: int
    policy: str
    levels: tuple[str, ...]
    cell: str
    nodes: dict[str, int]
    unit: str
    whole: int
    used: int
    out: int
    blocks: tuple[Block, ...]
    queues: tuple[QueueRow, ...]
    pending: int
    running: int
    order: Order
    next: tuple[Next, ...]
