"""Queues: a tree with quotas and weights, and what one user may hold in each. Arithmetic is in `core.queues.quota`.

Terms are Kueue's: nominal quota, borrowing limit, lending limit.
"""

from dataclasses import dataclass
from typing import Final

from ganger.model.described import described, naming

ROOT: Final = "root"
"""The queue above all others; its limits are the cluster's."""
DEFAULT: Final = "default"
"""Where a job waits that names no queue."""
MAX_WEIGHT: Final = 1_000
MAX_FIGURE: Final = (1 << 53) - 1
"""The largest figure of a queue, in whatever unit: every program that reads JSON has it exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A quantity of each resource that quota counts; None is "no figure given". `gpu_types`: of GPUs by type, in
    lower-case; what is not named has no figure."""

    gpus: int | None = described("GPUs of all types", form="figure", default=None)
    cpu_milli: int | None = described("CPUs: 512, or 500m", form="cpus", key="cpu", default=None)
    memory_bytes: int | None = described("memory: 2Ti", form="memory", key="memory", default=None)
    gpu_types: dict[str, int] = described("GPUs by type: {h100: 8}", form="gpu_figures", factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """What each user may have in a queue and everything below it. None is no limit.

    gpus: GPUs held at one time; jobs: jobs that hold nodes at one time; pending: jobs that wait at one time, elements
    of arrays each; time_ms: the longest `limits.time` of one job (and its limit when it names none); queue_time_ms: the
    same of `limits.queue_time`; node_ms: sum over the user's live jobs of nodes times time limit (128 node-hours: 16
    nodes for 8 hours).
    """

    gpus: int | None = described("GPUs held at one time", form="figure", default=None)
    jobs: int | None = described("jobs that hold nodes at one time", form="figure", default=None)
    pending: int | None = described("jobs that wait at one time, elements of arrays each", form="figure", default=None)
    time_ms: int | None = described("the longest time limit of one job", form="longest", key="time", default=None)
    queue_time_ms: int | None = described(
        "the longest that a job may wait; then it ends", form="longest", key="queue_time", default=None
    )
    node_ms: int | None = described(
        "nodes times time limit, over a user's live jobs: 128h is 16 nodes for 8 hours",
        form="lasting",
        key="node_time",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue. `nominal` is what it is guaranteed, with all below it (absent: what those are; all nodes at the root;
    of GPUs, the sum of its types, if it names any); `borrowing` caps what it takes beyond that (absent: no cap),
    `lending` what it gives to others (absent: all it does not use). `weight`: its part of what its parent has, beside
    its siblings' weights. `default_time_ms`: the time limit of a job that names none; absent: as above it."""

    name: str = naming("queue_name")
    parent: str | None = described("the queue above it", form="queue_name", default=ROOT)
    weight: int = described("its part beside its siblings' weights", form="weight", default=1)
    nominal: Amount = described("what it is guaranteed, with all below it", factory=Amount)
    borrowing: Amount = described("what it may use beyond that, while others leave it", factory=Amount)
    lending: Amount = described("what others may use of its own, while it leaves it", factory=Amount)
    user_limits: UserLimits = described("what each user may have in it and below it", factory=UserLimits)
    default_time_ms: int | None = described(
        "the time limit of a job that names none; unset: as in the queue above it",
        form="duration",
        key="default_time",
        default=None,
    )
