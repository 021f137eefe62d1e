"""Decisions of a scheduling cycle: recorded by the loop before a backend carries them out."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from ganger.model.pending_reason import PendingReason


class Cause(StrEnum):
    """The reason why a gang, or one of its ranks, stopped. Stable: these are cause codes of the API."""

    RANK_FAILED = "rank_failed"
    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    START_FAILED = "start_failed"
    PORT_BUSY = "port_busy"
    ADMISSION_DENIED = "admission_denied"
    NAMESPACE_QUOTA = "namespace_quota"
    WEBHOOK_UNREACHABLE = "webhook_unreachable"
    VOLUME_UNAVAILABLE = "volume_unavailable"
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


class ReservationCause(StrEnum):
    """The reason for a reserved start time. Stable: these are codes of the API. All but the first two may delay it.

    Attributes:
        node_unavailable: One of its nodes is lost, or accepts nothing new.
        overrun: A job holds its nodes for longer than its time limit.
        predicted: A job without a time limit holds its nodes, or quota, for longer than predicted.
        maintenance: Maintenance of one of its nodes was announced.
        restarted: A job before it in the queue order failed and restarts.
        higher_priority: A job before it in the queue order has a higher priority.
        guarantee: A job of a queue that is within its guarantee, and its own queue exceeds its guarantee.
    """

    RESERVED = "reserved"
    EARLIER = "earlier"
    NODE_UNAVAILABLE = "node_unavailable"
    OVERRUN = "overrun"
    PREDICTED = "predicted"
    MAINTENANCE = "maintenance"
    POLICY_CHANGED = "policy_changed"
    RESTARTED = "restarted"
    HIGHER_PRIORITY = "higher_priority"
    GUARANTEE = "guarantee"


class PreemptionRule(StrEnum):
    """The rule by which a job is preempted for another one. Stable: these are codes of the API.

    Attributes:
        order: The preemptor precedes the victim in an order that ranks running jobs too.
        guarantee: The preemptor's queue stays within its guarantee; the victim is not within that of its own queue.
        priority: The preemptor has a higher priority.
    """

    ORDER = "order"
    GUARANTEE = "guarantee"
    PRIORITY = "priority"


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
"""Causes that are failures rather than decisions."""
UNADMITTED: Final = (Cause.NAMESPACE_QUOTA, Cause.WEBHOOK_UNREACHABLE, Cause.VOLUME_UNAVAILABLE)
"""Causes for which the cluster admits no pod of a job at present: it stays pending, and no attempt is counted."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The part of one node that a part of a gang has: its ranks there and the indices of its devices.

    A node may occur in several shares of a gang that has several parts, or a part of processes that may share a node.
    """

    node: str
    ranks: tuple[int, ...]
    devices: tuple[int, ...] = ()
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a generation of a gang, all or nothing. The ranks rendezvous at `host`:`port`, on the first node.

    Attributes:
        shares: In rank order.
        time_ms: The time limit over all attempts that this generation is granted, where less than requested; None: as
            requested.
        skipped: Steps of checkpoints that it skips because attempts failed on them.
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
    """Stop what is left of a generation. Generation 0 never started: the gang ends while pending.

    Attributes:
        notice_ms: Time to save its work; 0: at once.
        node: The node that is drained or preempted; empty: another cause.
        preemptor: The gang that it is preempted for; empty: another cause.
        rule: The rule of the preemption.
        unsaved_ms: The work since its newest checkpoint when it was decided; lost unless it is saved in the notice.
    """

    gang: str
    generation: int
    cause: Cause
    notice_ms: int = 0
    node: str = ""
    preemptor: str = ""
    rule: PreemptionRule | None = None
    unsaved_ms: int = 0
    kind: Literal["stop"] = field(default="stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A new pending reason for a job class: pending gangs of equal shape and owner. `gang_class` is its key as text."""

    gang_class: str
    reason: PendingReason
    kind: Literal["wait"] = field(default="wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedStart:
    """A reservation: the pending gang starts at `start_ms` at the latest; None: no start can be forecast any more.

    Attributes:
        nodes: Nodes reserved from then on, one for each share in rank order; the gang may start on others.
        cause: Why the reservation is made or changed now; for a late one, why it is late.
        owned: Others were stopped for it, so what comes free is the gang's: no other one may move the reservation.
    """

    gang: str
    start_ms: int | None
    nodes: tuple[str, ...] = ()
    cause: ReservationCause = ReservationCause.RESERVED
    owned: bool = False
    kind: Literal["reservation"] = field(default="reservation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """A new expected run time of a generation without a time limit, which has run for longer than predicted.

    Attributes:
        run_ms: How long it is expected to hold its nodes in all, over all attempts.
    """

    gang: str
    generation: int
    run_ms: int
    kind: Literal["expect"] = field(default="expect")


Decision = Start | Stop | Wait | ReservedStart | Expect


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """A forecast of the start of a pending gang, kept to learn from its error. It decides nothing."""

    gang: str
    start_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The outcome of one scheduling cycle.

    Attributes:
        as_of: The sequence number of the last event it was computed from; the loop refuses the plan if another event
            came since.
        forecasts: Forecasts of some starts, now and then, so that later ones know how wrong they are.
    """

    as_of: int
    decisions: tuple[Decision, ...] = ()
    next_wake_ms: int | None = None
    forecasts: tuple[StartForecast, ...] = ()
