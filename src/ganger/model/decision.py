"""Decisions of a scheduling cycle: recorded by the loop before a backend carries them out."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from ganger.model.node_health.health_decision import HealthDecision
from ganger.model.pending_reason import PendingReason
from ganger.model.watch.rollback import Rollback


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
    DEVICES_UNAVAILABLE = "devices_unavailable"
    INSTALLATION_FAULT = "installation_fault"
    PREFLIGHT_FAILED = "preflight_failed"
    LAUNCHER_LOST = "launcher_lost"
    NODE_LOST = "node_lost"
    USER = "user"
    TIME_LIMIT = "time_limit"
    QUEUE_TIME = "queue_time"
    PREEMPTED = "preempted"
    SUSPENDED = "suspended"
    DRAINED = "drained"
    NODE_PREEMPTED = "node_preempted"
    EVICTED = "evicted"
    RESIZED = "resized"
    MOVED = "moved"
    ROLLED_BACK = "rolled_back"
    DIVERGED = "diverged"
    STALLED = "stalled"
    IDLE_SUSPEND = "idle_suspend"
    IDLE_STOP = "idle_stop"
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
        fair_share: The preemptor's queue has no greater share afterwards than that of the victim.
        priority: The preemptor has a higher priority.
        surplus: The victim is an elastic gang that has more nodes than its minimum, and keeps that.
        spare: The victim is on spare nodes of the preemptor, which needs them, or does not hold them any more.
    """

    ORDER = "order"
    GUARANTEE = "guarantee"
    FAIR_SHARE = "fair_share"
    PRIORITY = "priority"
    SURPLUS = "surplus"
    SPARE = "spare"


FAILURES: Final = (
    Cause.RANK_FAILED,
    Cause.OUT_OF_MEMORY,
    Cause.HUNG,
    Cause.START_FAILED,
    Cause.PORT_BUSY,
    Cause.ADMISSION_DENIED,
    Cause.PREFLIGHT_FAILED,
    Cause.LAUNCHER_LOST,
    Cause.NODE_LOST,
)
"""Causes that are failures rather than decisions."""
FINISHES_IN_NOTICE: Final = (
    Cause.TIME_LIMIT,
    Cause.PREEMPTED,
    Cause.SUSPENDED,
    Cause.DRAINED,
    Cause.NODE_PREEMPTED,
    Cause.EVICTED,
    Cause.RESIZED,
    Cause.MOVED,
    Cause.IDLE_SUSPEND,
)
"""Causes of a stop that a gang outruns: if all its ranks finish within the notice, it has succeeded."""
UNADMITTED: Final = (
    Cause.NAMESPACE_QUOTA,
    Cause.WEBHOOK_UNREACHABLE,
    Cause.VOLUME_UNAVAILABLE,
    Cause.DEVICES_UNAVAILABLE,
    Cause.INSTALLATION_FAULT,
)
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


FIRST_SAVE_MS: Final = 600_000
"""Longest time until the first save where none was measured yet."""
UNKNOWN_SAVE_MS: Final = 30_000
"""Time of a save before any was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEstimate:
    """The saves of a gang, as far as known.

    Attributes:
        save_ms: The usual time of a save, None before any was measured.
        longest_ms: The longest of the newest ones.
        failure_ms: The expected time between two failures of the gang.
        node_failure_ms: The node time in which one failure is expected in the whole cluster.
    """

    save_ms: int | None
    longest_ms: int | None
    failure_ms: int
    node_failure_ms: int = 0

    @property
    def best_interval_ms(self) -> int:
        """The interval that costs least; never less than twice the time of a save.

        An interval T costs, of the time of the job, save / T for saving and T / 2 / failure_ms for work that is lost;
        the sum is least at sqrt(2 * save * failure_ms) (Young 1974, Daly 2006).
        """
        save_ms = UNKNOWN_SAVE_MS if self.save_ms is None else max(1, self.save_ms)
        return max(2 * save_ms, math.isqrt(2 * save_ms * self.failure_ms))

    def cost(self, interval_ms: int) -> float:
        """Return the part of its time that the job loses with that interval."""
        save_ms = UNKNOWN_SAVE_MS if self.save_ms is None else self.save_ms
        return save_ms / interval_ms + interval_ms / (2 * self.failure_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a generation of a gang, all or nothing. The ranks rendezvous at `host`:`port`, on the first node.

    Attributes:
        shares: In rank order.
        time_ms: The time limit over all attempts that this generation is granted, where less than requested; None: as
            requested.
        skipped: Steps of checkpoints that it skips because attempts failed on them.
        rollback: The return to an older checkpoint that the job is to make, until another one is saved.
        saves: What is known of its saves, if their interval follows from that.
        spares: What it holds beside that, for the loss of a node; without ranks.
        preflight_ms: The time limit of the test of its nodes before its ranks start; None: they are not tested.
        lenders: The gangs whose spares it starts on, one for each share; empty: it holds its nodes itself.
    """

    gang: str
    generation: int
    shares: tuple[NodeShare, ...]
    host: str
    port: int
    time_ms: int | None = None
    skipped: tuple[int, ...] = ()
    rollback: Rollback | None = None
    saves: SaveEstimate | None = None
    spares: tuple[NodeShare, ...] = ()
    lenders: tuple[str, ...] = ()
    preflight_ms: int | None = None
    kind: Literal["start"] = field(default="start")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, each once, in the order of their first rank."""
        return tuple(dict.fromkeys(share.node for share in self.shares))

    def save_interval_ms(self, every_ms: int | None) -> int | None:
        """Return the interval at which it begins to save, given that of the job; None if the script decides."""
        if self.saves is None:
            return every_ms or None
        best_ms = self.saves.best_interval_ms
        return best_ms if self.saves.save_ms is not None else min(best_ms, FIRST_SAVE_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop what is left of a generation. Generation 0 never started: the gang ends while pending.

    Attributes:
        notice_ms: Time to save its work; 0: at once.
        node: The node that is drained, preempted or lost, or in whose place a spare is taken back; else empty.
        preemptor: The gang that it is preempted for; empty: another cause.
        rule: The rule of the preemption.
        unsaved_ms: The work since its newest checkpoint when it was decided; lost unless it is saved in the notice.
        shares: What the next generation gets if it is resized, moved, or gets a spare: it keeps what both have.
        keeps_ms: For how long at most the gang keeps the shares though they are too few, because a node was lost.
        gives_up: It gives up what it has kept so, and queues again.
    """

    gang: str
    generation: int
    cause: Cause
    notice_ms: int = 0
    node: str = ""
    preemptor: str = ""
    rule: PreemptionRule | None = None
    unsaved_ms: int = 0
    shares: tuple[NodeShare, ...] = ()
    keeps_ms: int = 0
    gives_up: bool = False
    kind: Literal["stop"] = field(default="stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The nodes on which a running generation of a gang is to go on as the next one."""

    gang: str
    generation: int
    shares: tuple[NodeShare, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Defragmented:
    """The scheduled search for moves took place; the moves are stops of gangs, if there are any."""

    gangs: tuple[str, ...] = ()
    kind: Literal["defragmented"] = field(default="defragmented")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareNodes:
    """The spare nodes that a generation holds from now on: it has lost some, or takes nodes that have come free.

    Attributes:
        shares: All of them; without ranks.
        lost: Those that are out of service, which it has given up already.
    """

    gang: str
    generation: int
    shares: tuple[NodeShare, ...] = ()
    lost: tuple[str, ...] = ()
    kind: Literal["spares"] = field(default="spares")


Decision = Start | Stop | Wait | ReservedStart | Expect | Defragmented | SpareNodes | HealthDecision


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
