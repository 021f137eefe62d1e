"""Queues: a tree with quotas, and what one user may hold in each. Arithmetic is in `core.quota`.

Terms are Kueue's: nominal quota, borrowing limit, lending limit.
"""

from dataclasses import dataclass, field
from typing import Final

ROOT: Final = "root"
"""The queue above all others; its limits are the cluster's."""
DEFAULT: Final = "default"
"""Where a job waits that names no queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A quantity of each resource that quota counts; None is "no figure given"."""

    gpus: int | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """What each user may hold in a queue and everything below it. None is no limit.

    gpus: GPUs held at one time; time_ms: the longest `limits.time` of one job (and its limit when it names none);
    node_ms: sum over the user's live jobs of nodes times time limit (128 node-hours: 16 nodes for 8 hours).
    """

    gpus: int | None = None
    time_ms: int | None = None
    node_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue. `nominal` is its own quota (absent: 0, or no limit at the root); `borrowing` caps what it takes
    beyond that (absent: no cap), `lending` what it gives to others (absent: all it does not use)."""

    name: str
    parent: str | None = ROOT
    nominal: Amount = field(default_factory=Amount)
    borrowing: Amount = field(default_factory=Amount)
    lending: Amount = field(default_factory=Amount)
    user_limits: UserLimits = field(default_factory=UserLimits)
