"""What a round may decide.

Made by `core.cycle.plan`, recorded by the loop before the world changes, carried out by a backend."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from ganger.model.pending_reason import PendingReason


class Cause(StrEnum):
    """Why a gang, or one of its ranks, stopped. Stable: these are cause codes of the API."""

    RANK_FAILED = "rank_failed"
    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    START_FAILED = "start_failed"
    PORT_BUSY = "port_busy"
    ADMISSION_DENIED = "admission_denied"
    NAMESPACE_QUOTA = "namespace_quota"
    WEBHOOK_UNREACHABLE = "webhook_unreachable"
    LAUNCHER_LOST = "launcher_lost"
    NODE_LOST = "node_lost"
    USER = "user"
    TIME_LIMIT = "time_limit"
    QUEUE_TIME = "queue_time"
    PREEMPTED = "preempted"
    SUSPENDED = "suspended"
    DRAINED = "drained"
    NODE_PREEMPTED = "node_preempted"
    DONE = "done"
    DEPENDENCY = "dependency"


class Moved(StrEnum):
    """Why a promised start is when it is. Stable: these are codes of the API. All but the first two may move it back.

    node_out: one of its nodes is lost, or takes nothing new; overrun: somebody holds its nodes for longer than a limit
    said; predicted: somebody without a limit holds them, or quota, for longer than was predicted; maintenance: one of
    its nodes is to be maintained meanwhile; restarted: one before it in the order failed, and goes on.
    """

    RESERVED = "reserved"
    EARLIER = "earlier"
    NODE_OUT = "node_out"
    OVERRUN = "overrun"
    PREDICTED = "predicted"
    MAINTENANCE = "maintenance"
    POLICY_CHANGED = "policy_changed"
    RESTARTED = "restarted"


FAILURES: Final = (
    Cause.RANK_FAILED,
    Cause.OUT_OF_MEMORY,
    Cause.HUNG,
    Cause.START_FAILED,
    Cause.PORT_BUSY,
    Cause.ADMISSION_DENIED,
    Cause.LAUNCHER_LOST,
    Cause.NODE_LOST,
)
"""Causes of something that went wrong, rather than was decided."""
UNADMITTED: Final = (Cause.NAMESPACE_QUOTA, Cause.WEBHOOK_UNREACHABLE)
"""Causes for which a cluster takes none of a job's pods at present: it waits, and no attempt is counted."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What a part of a gang has of one node: its ranks there and the indices of its devices. A node may occur in
    several shares of a gang that has several parts, or a part of processes that may share a node."""

    node: str
    ranks: tuple[int, ...]
    devices: tuple[int, ...] = ()
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start generation `generation`, whole. `shares` in rank order; ranks meet at `host`:`port`, on the first node.

    time_ms: the job's time limit, over all attempts, for as long as this generation runs, where it is granted less than
    it asks for; None: as it asks. skipped: steps of checkpoints that it passes over, since attempts failed on them.
    """

    gang: str
    generation: int
    shares: tuple[NodeShare, ...]
    host: str
    port: int
    time_ms: int | None = None
    skipped: tuple[int, ...] = ()
    kind: Literal["start"] = field(default="start")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, each once, in the order of their first rank."""
        return tuple(dict.fromkeys(share.node for share in self.shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop what is left of a generation. `notice_ms` is the time it has to save its work; 0 is at once.

    Generation 0 was never started: the gang ends where it waits.
    """

    gang: str
    generation: int
    cause: Cause
    notice_ms: int = 0
    kind: Literal["stop"] = field(default="stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A new answer for a class of equal pending gangs (`gang_class` is the class's key as text)."""

    gang_class: str
    reason: PendingReason
    kind: Literal["wait"] = field(default="wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedStart:
    """A waiting gang is promised to start at `start_ms` at the latest. From then on these nodes are kept for it, one
    for each share in rank order; they may be others in the end. None: no moment can be told any more.

    cause: why this is decided now; of one that is late, why it is.
    """

    gang: str
    start_ms: int | None
    nodes: tuple[str, ...] = ()
    cause: Moved = Moved.RESERVED
    kind: Literal["reserve"] = field(default="reserve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """A generation without a time limit runs for longer than was predicted: from now on it is expected to hold its
    nodes for `run_ms` in all, over all attempts."""

    gang: str
    generation: int
    run_ms: int
    kind: Literal["expect"] = field(default="expect")


Decision = Start | Stop | Wait | ReservedStart | Expect


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One round. `as_of` is the seq of the last event it was computed from; the loop
    refuses it if another came since."""

    as_of: int
    decisions: tuple[Decision, ...] = ()
    next_wake_ms: int | None = None
