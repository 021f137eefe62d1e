"""Answers of the services about the policy document: its versions, and the effects of another one."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """The old and the new value of one key of the policy document, as written; None: not written, "": a mapping."""

    path: str
    before: str | int | None
    after: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedJob:
    """A live job whose queue another policy lacks, or that could not start again under it."""

    job: str
    state: str
    queue: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWarning:
    """A nominal quota beyond the capacity of all nodes. It applies nevertheless: nodes come and go.

    Attributes:
        resource: As in the amounts of a queue, gpus.TYPE for a type.
        guaranteed, capacity: The quota and the capacity in its unit.
    """

    queue: str
    resource: str
    guaranteed: int
    capacity: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """A version of the policy document: the current or an earlier one. Version 0 is the default.

    Attributes:
        document: As written, without default values.
        text: The same as YAML.
        warnings: Quotas that the current nodes cannot satisfy.
    """

    version: int
    at_ms: int | None
    by: str
    note: str
    document: dict[str, Any]
    text: str
    warnings: tuple[PolicyWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDraft:
    """A document that was checked and not put in force: as written, without default values."""

    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A version in the history of the policy. changes: None where the version before is no longer stored."""

    version: int
    at_ms: int
    by: str
    note: str
    summary: str
    changes: tuple[PolicyChange, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The place of a pending job in the order of its queue, from 1, under the policy in force and under another."""

    job: str
    queue: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJobTrial:
    """A job that rules for idle jobs would have suspended or stopped.

    Attributes:
        at_ms: Unix ms at which it would have been for the first time.
        gpu_ms: GPU time that it held without work after that, in ms.
        is_active_again: It had work again later, or saved a checkpoint.
    """

    job: str
    user: str
    queue: str
    at_ms: int
    gpu_ms: int
    is_active_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleQueueTrial:
    """Rules for idle jobs of a queue that are new or changed, and their effect had they been in force.

    Attributes:
        action: suspend or stop.
        jobs: The number of jobs that they would have suspended or stopped, at most.
        gpu_ms: GPU time that these held without work after that, in ms.
        active_again: The number of them that had work again later.
    """

    queue: str
    window_ms: int
    action: str
    jobs: int
    gpu_ms: int
    active_again: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTrial:
    """Rules for idle jobs on the recorded work of GPUs.

    Attributes:
        from_ms: Unix ms of the oldest sample, null without any; `until_ms` that of the trial.
        jobs: Those that would have been suspended or stopped, by GPU time, the first 100.
        unmeasured: The number of jobs that ran for a window and of which no GPU was measured.
        notes: What is not recorded, and so is not in the figures.
    """

    from_ms: int | None
    until_ms: int
    queues: tuple[IdleQueueTrial, ...]
    jobs: tuple[IdleJobTrial, ...]
    unmeasured: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTrial:
    """The effects of another policy. All after `warnings` concern the next cycle, but for `idle`.

    Attributes:
        against: The version that it is compared with.
        stranded: Jobs for which it would be refused unless forced.
        warnings: Quotas that the current nodes cannot satisfy.
        starts: Jobs that it would start and that otherwise stay pending; like the following, empty if only documents
            were compared.
        stays_pending: Jobs that would stay pending under it and otherwise start.
        moved: The number of pending jobs whose place changes.
        positions: The first of these places.
        idle: The effect of its rules for idle jobs on the last week; null: none are new or changed, or only documents
            were compared.
    """

    against: int
    changes: tuple[PolicyChange, ...]
    stranded: tuple[StrandedJob, ...]
    warnings: tuple[PolicyWarning, ...] = ()
    starts: tuple[str, ...] = ()
    stays_pending: tuple[str, ...] = ()
    moved: int = 0
    positions: tuple[QueuePosition, ...] = ()
    idle: IdleTrial | None = None
