"""Queues, and the idle jobs in them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleNow:
    """A running job that is idle now, and was warned. Times are Unix ms.

    Attributes:
        since_ms: When it was first measured without activity.
        until_ms: When it is suspended or stopped if it stays so.
        action: suspend or stop.
    """

    job: str
    since_ms: int
    until_ms: int
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue with what it and its descendants may use, and use. None: no limit.

    Attributes:
        nominal, borrowing, lending: Amounts with "gpus", "cpu_milli", "memory_bytes"; "gpu_types", "extended" by name.
        used, available: Amounts with "gpus.TYPE" and "extended.NAME" for each that some queue has a quota for.
        fair_gpus: Its fair share of the GPUs in service, by nominal quota, weight and demand.
        pending: Pending jobs in it and its descendants.
        running: Jobs there that are neither pending nor suspended.
        idle: Jobs in it that are idle and were warned of what follows.
    """

    name: str
    parent: str | None
    weight: int
    nominal: dict[str, int | dict[str, int] | None]
    borrowing: dict[str, int | dict[str, int] | None]
    lending: dict[str, int | dict[str, int] | None]
    used: dict[str, float]
    available: dict[str, float | None]
    user_limits: dict[str, int | dict[str, int] | None]
    default_time_ms: int | None
    fair_gpus: int
    pending: int
    running: int
    idle: tuple[IdleNow, ...] = ()
