"""Queues: a tree with quotas and weights, and what one user may hold in each. Arithmetic is in `core.queues`.

Terms are Kueue's: nominal quota, borrowing limit, lending limit.
"""

from dataclasses import dataclass, field
from typing import Final

ROOT: Final = "root"
"""The queue above all others; its limits are the cluster's."""
DEFAULT: Final = "default"
"""Where a job waits that names no queue."""
MAX_WEIGHT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A quantity of each resource that quota counts; None is "no figure given". `gpu_types`: of GPUs by type, in
    lower-case; what is not named has no figure."""

    gpus: int | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_types: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """What each user may have in a queue and everything below it. None is no limit.

    gpus: GPUs held at one time; jobs: jobs that hold nodes at one time; pending: jobs that wait at one time, elements
    of arrays each; time_ms: the longest `limits.time` of one job (and its limit when it names none); queue_time_ms: the
    same of `limits.queue_time`; node_ms: sum over the user's live jobs of nodes times time limit (128 node-hours: 16
    nodes for 8 hours).
    """

    gpus: int | None = None
    jobs: int | None = None
    pending: int | None = None
    time_ms: int | None = None
    queue_time_ms: int | None = None
    node_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue. `nominal` is what it is guaranteed, with all below it (absent: what those are; all nodes at the root;
    of GPUs, the sum of its types, if it names any); `borrowing` caps what it takes beyond that (absent: no cap),
    `lending` what it gives to others (absent: all it does not use). `weight`: its part of what its parent has, beside
    its siblings' weights."""

    name: str
    parent: str | None = ROOT
    weight: int = 1
    nominal: Amount = field(default_factory=Amount)
    borrowing: Amount = field(default_factory=Amount)
    lending: Amount = field(default_factory=Amount)
    user_limits: UserLimits = field(default_factory=UserLimits)
