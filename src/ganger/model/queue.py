"""Queues: a tree with quotas, weights and limits for each user. The arithmetic is in `core.queues.quota`.

Terms are Kueue's: nominal quota, borrowing limit, lending limit.
"""

from dataclasses import dataclass
from typing import Final

from ganger.model.described import described, naming
from ganger.model.idle.idle_rules import IdleRules
from ganger.model.units import DAY_MS, HOUR_MS

ROOT: Final = "root"
"""The root queue; its limits are those of the cluster."""
DEFAULT: Final = "default"
"""The queue of a job that names none."""
MAX_WEIGHT: Final = 1_000
MAX_FIGURE: Final = (1 << 53) - 1
"""The largest amount of a quota, in any unit: every JSON reader represents it exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A quantity of each resource that quotas count; None: not specified.

    Attributes:
        gpu_types: GPUs by lower-case type; a type that is not named has no quota.
        extended: Other resources by name; one that is not named has no quota.
    """

    gpus: int | None = described("GPUs of all types", form="figure", default=None)
    cpu_milli: int | None = described("CPUs: 512, or 500m", form="cpus", key="cpu", default=None)
    memory_bytes: int | None = described("memory: 2Ti", form="memory", key="memory", default=None)
    gpu_types: dict[str, int] = described("GPUs by type: {h100: 8}", form="gpu_figures", factory=dict)
    extended: dict[str, int] = described(
        "other resources, by the names that nodes have for them: {rdma/hca: 4}", form="extended_figures", factory=dict
    )


HOURLY_PERIOD_MS: Final = 8 * DAY_MS
"""The longest period of which the node time used is counted by the hour; that of longer ones is counted by the day."""
MAX_PERIOD_MS: Final = 366 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimeUsed:
    """Limit of the node time that one user's jobs use in a sliding period. It holds a job back when it is to start."""

    limit_ms: int = described(
        "nodes times the time for which the user's jobs held them in the period, and for which those that hold nodes "
        "still may",
        form="lasting",
        key="limit",
    )
    per_ms: int = described(
        "length of the period, which ends now: whole hours up to 8d, or whole days up to 366d", form="period", key="per"
    )


def is_period(per_ms: int) -> bool:
    """Return whether node time can be limited for periods of that length."""
    return HOUR_MS <= per_ms <= MAX_PERIOD_MS and per_ms % slide_ms(per_ms) == 0


def slide_ms(per_ms: int) -> int:
    """Return the unit in which such a period slides: it begins with a whole hour, or day (UTC)."""
    return HOUR_MS if per_ms <= HOURLY_PERIOD_MS else DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits for each user in a queue and its descendants. None: no limit.

    Attributes:
        time_ms: The longest `limits.time` of one job, and its limit when it specifies none.
        queue_time_ms: The same for `limits.queue_time`.
    """

    gpus: int | None = described("GPUs held at a time", form="figure", default=None)
    jobs: int | None = described("jobs that hold nodes at a time", form="figure", default=None)
    pending: int | None = described(
        "pending jobs at a time; each element of an array counts", form="figure", default=None
    )
    time_ms: int | None = described("longest time limit of a job", form="longest", key="time", default=None)
    queue_time_ms: int | None = described(
        "longest time that a job may be pending; then it ends", form="longest", key="queue_time", default=None
    )
    node_ms: int | None = described(
        "nodes times time limit, summed over a user's live jobs: 128h is 16 nodes for 8 hours",
        form="lasting",
        key="node_time",
        default=None,
    )
    priority: int | None = described(
        "highest priority that a user may ask for: low, normal, high or a number; an administrator may ask for any",
        form="priority",
        default=None,
    )
    node_time_used: NodeTimeUsed | None = described("node time that a user's jobs use in a period", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue. The amounts include all its descendants.

    Attributes:
        nominal: Nominal quota; unset: the sum of its children's; all nodes at the root; for GPUs the sum of its types,
            if it names any.
        borrowing: Borrowing limit beyond it; unset: no limit.
        lending: Lending limit; unset: all that it does not use.
        weight: Its weight relative to its siblings, in sharing what their parent has.
        allow_non_preemptible: Whether jobs in it, and below it, may say that they are never preempted.
        default_time_ms: The time limit of a job that specifies none; unset: that of the parent.
        idle: The rules for its idle jobs; unset: those of the parent; none at the root.
    """

    name: str = naming("queue_name")
    parent: str | None = described("parent queue", form="queue_name", default=ROOT)
    weight: int = described("weight relative to its siblings", form="weight", default=1)
    nominal: Amount = described("nominal quota: what the queue and its descendants are guaranteed", factory=Amount)
    borrowing: Amount = described(
        "borrowing limit: what it may use beyond its nominal quota while other queues leave it unused", factory=Amount
    )
    lending: Amount = described(
        "lending limit: how much of its unused nominal quota other queues may use", factory=Amount
    )
    user_limits: UserLimits = described("limits for each user in the queue and its descendants", factory=UserLimits)
    allow_non_preemptible: bool | None = described(
        "true: jobs of the queue and its descendants may be submitted with preemptible: false",
        form="flag",
        default=None,
    )
    default_time_ms: int | None = described(
        "time limit of a job that specifies none; unset: that of the parent queue",
        form="duration",
        key="default_time",
        default=None,
    )
    idle: IdleRules | None = described(
        "consequence for jobs that hold nodes without any activity; unset: that of the parent queue, or none",
        default=None,
    )
