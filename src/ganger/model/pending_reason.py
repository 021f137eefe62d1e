"""Pending reasons: the constraint that keeps a gang waiting, with amounts; its sentence, and a remedy.

Computed by `core` for every pending gang and shown unchanged by all clients. Code compares `ReasonCode`, never the
text.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.model.terms import Slices
from ganger.model.units import (
    format_bytes,
    format_cpu,
    format_duration,
    format_node_time,
    format_period,
    format_resource,
)


class ReasonCode(StrEnum):
    """The binding constraint. Stable: these are reason codes of the API."""

    NO_CAPACITY = "no_capacity"
    MAINTENANCE = "maintenance"
    NO_NODE = "no_node"
    EXCLUDED = "excluded"
    OVER_QUOTA = "over_quota"
    USER_GPUS = "user_gpus"
    USER_JOBS = "user_jobs"
    USER_TIME = "user_time"
    USER_NODE_TIME = "user_node_time"
    USER_NODE_TIME_USED = "user_node_time_used"
    RESERVED = "reserved"
    BACKOFF = "backoff"
    NAMESPACE_QUOTA = "namespace_quota"
    WEBHOOK_UNREACHABLE = "webhook_unreachable"
    VOLUME_UNAVAILABLE = "volume_unavailable"
    DEVICES_UNAVAILABLE = "devices_unavailable"
    INSTALLATION_FAULT = "installation_fault"
    STOPPING_OTHERS = "stopping_others"
    NOT_LISTED = "not_listed"
    DEPENDENCY = "dependency"
    ARRAY_LIMIT = "array_limit"


CROWDED: Final = (ReasonCode.NO_CAPACITY, ReasonCode.RESERVED, ReasonCode.STOPPING_OTHERS)
"""Reasons of gangs that wait for nodes that others hold or get first: they alternate as jobs come and go."""

REMEDY: dict[ReasonCode, str] = {
    ReasonCode.NO_CAPACITY: (
        "ask for fewer nodes or fewer resources per node; `ganger explain {gang}` shows what would start now"
    ),
    ReasonCode.MAINTENANCE: (
        "submit with a --time, or a --time-min, that ends before the maintenance begins, or wait until it is "
        "over: `ganger node maintenance`"
    ),
    ReasonCode.NO_NODE: (
        "it starts once there are such nodes: add or uncordon some, see `ganger node`, or submit a smaller or less "
        "restricted job"
    ),
    ReasonCode.EXCLUDED: (
        "no other node can hold it: add or uncordon one, see `ganger node`; a new job has no excluded nodes: "
        "`ganger clone {gang}`"
    ),
    ReasonCode.OVER_QUOTA: (
        "wait, submit to another queue, or have the quota raised: `ganger queue set {queue} --{resource}`"
    ),
    ReasonCode.USER_GPUS: "wait for one of your own jobs, or stop one: `ganger ls`",
    ReasonCode.USER_JOBS: "wait for one of your own jobs, or stop one: `ganger ls`",
    ReasonCode.USER_TIME: "submit with a shorter --time",
    ReasonCode.USER_NODE_TIME: "submit with a shorter --time or fewer nodes, or wait for one of your own jobs",
    ReasonCode.USER_NODE_TIME_USED: (
        "nothing to do: it starts when enough of the period has passed; to start sooner, submit with a shorter --time "
        "or fewer nodes, or to another queue"
    ),
    ReasonCode.RESERVED: "nothing to do: it starts after {holder}; a job that fits on other nodes may start now",
    ReasonCode.BACKOFF: "nothing to do: it restarts automatically; `ganger logs {gang}` shows how it failed",
    ReasonCode.NAMESPACE_QUOTA: (
        "nothing to do: it is retried automatically, and no attempt is counted; to start it sooner, delete other "
        "pods of the namespace or have the quota raised: `kubectl describe resourcequota`"
    ),
    ReasonCode.WEBHOOK_UNREACHABLE: (
        "nothing to do: it is retried automatically, and no attempt is counted; a cluster administrator has to repair "
        "the webhook: `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`"
    ),
    ReasonCode.VOLUME_UNAVAILABLE: (
        "nothing to do if another pod is to release the volume: it is retried automatically, and no attempt is "
        "counted; else see `kubectl get persistentvolumeclaims,persistentvolumes`"
    ),
    ReasonCode.DEVICES_UNAVAILABLE: (
        "nothing to do if another pod is to release the devices: it is retried automatically, and no attempt is "
        "counted; else see `kubectl get resourceclaims,resourceslices`"
    ),
    ReasonCode.INSTALLATION_FAULT: (
        "nothing to do: it is retried automatically, and no attempt is counted; a cluster administrator has to repair "
        "the installation of ganger: `ganger --context NAME doctor`"
    ),
    ReasonCode.STOPPING_OTHERS: "nothing to do: it starts as soon as they have saved their work and stopped",
    ReasonCode.NOT_LISTED: "nothing to do: the server is still listing what runs; see `ganger server status`",
    ReasonCode.DEPENDENCY: (
        "nothing to do: it can start after that; `ganger explain {holder}` shows what that job is waiting for"
    ),
    ReasonCode.ARRAY_LIMIT: "nothing to do: the next starts when one ends; without % in `array:` all may run at once",
}


USER_REMEDY: dict[ReasonCode, str] = {
    ReasonCode.NO_NODE: (
        "it starts once there are such nodes: ask an administrator to add or uncordon some, see `ganger node`, or "
        "submit a smaller or less restricted job"
    ),
    ReasonCode.EXCLUDED: (
        "no other node can hold it: ask an administrator to add or uncordon one, see `ganger node`; a new job has no "
        "excluded nodes: `ganger clone {gang}`"
    ),
    ReasonCode.OVER_QUOTA: "wait, submit to another queue, or ask an administrator to raise the quota",
}
"""Remedies for readers who may not change queues and nodes, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReason:
    """A pending reason. `need`, `have` and `limit` are amounts of `resource`.

    Attributes:
        code: The constraint.
        resource: Nodes, gpu_milli, gpu_milli.TYPE, cpu_milli, memory_bytes, extended.NAME, node_ms or jobs.
        have: What is free for this gang now.
        limit: The most that it could have.
        scope: The queue, rack or type that is counted, or the ids of maintenances.
        holders: Gangs that hold what is missing, the first to end first.
        until_ms: When it is expected to be available, None if it cannot be forecast.
        excluded: Nodes that could hold it but for its `retry.rules`.
        level: That of the one domain that must hold all of it; have and limit are then those of the best domain.
        slices: What is counted, unless empty: groups of so many nodes, each in one domain of a level.
        in_maintenance: How much more would be free without maintenance, whose ids are `maintenances`.
        foreign: GPUs in use outside ganger, on nodes that could hold it.
        per_ms: The period that the limit is for; 0 for a limit of what is held at a time.
    """

    code: ReasonCode
    resource: str = ""
    need: int = 0
    have: int = 0
    limit: int | None = None
    scope: str = ""
    holders: tuple[str, ...] = ()
    until_ms: int | None = None
    excluded: tuple[str, ...] = ()
    level: str = ""
    slices: Slices = Slices()
    in_maintenance: int = 0
    maintenances: tuple[str, ...] = ()
    foreign: int = 0
    per_ms: int = 0


def sentence(reason: PendingReason) -> str:
    """Return the reason as a sentence with its amounts, without a time of day, so that all clients show the same."""
    need, have = _amount(reason.resource, reason.need), _amount(reason.resource, reason.have)
    limit = "no limit" if reason.limit is None else _amount(reason.resource, reason.limit)
    held = f"; held by {_listed(reason.holders)}" if reason.holders else ""
    held += f"; {_gpus(reason.foreign)} used outside ganger" if reason.foreign else ""
    match reason.code:
        case ReasonCode.NO_CAPACITY:
            return f"waiting for {_missing_amount(reason)}: {_free_amount(reason)}{held}{_exclusions(reason.excluded)}"
        case ReasonCode.MAINTENANCE:
            away = reason.need - reason.have
            are = "is" if away == 1 else "are"
            return f"{away} of {need} with room for it {are} in maintenance before it would end ({reason.scope})"
        case ReasonCode.NO_NODE:
            return f"needs {_missing_amount(reason)}: {_max_amount(reason)} could hold it, even if idle"
        case ReasonCode.EXCLUDED:
            return f"needs {_missing_amount(reason)}: {_max_amount(reason)} could hold it{_exclusions(reason.excluded)}"
        case ReasonCode.OVER_QUOTA:
            return f"queue {reason.scope} may use {have} more, {need} needed (limit {limit}){held}"
        case ReasonCode.USER_GPUS:
            return f"you may hold {limit} in queue {reason.scope}: {have} left, {need} needed{held}"
        case ReasonCode.USER_JOBS:
            return f"you may have {limit} on nodes at a time in queue {reason.scope}{held}"
        case ReasonCode.USER_TIME:
            return f"one job may hold its nodes for {limit} in queue {reason.scope}, {need} requested"
        case ReasonCode.USER_NODE_TIME:
            return f"your live jobs may add up to {limit} in queue {reason.scope}: {have} left, {need} needed{held}"
        case ReasonCode.USER_NODE_TIME_USED:
            per = format_period(reason.per_ms)
            return f"your jobs may use {limit} in {per} in queue {reason.scope}: {have} left, {need} needed{held}"
        case _:
            return _order_sentence(reason)


def standing_sentence(reason: PendingReason) -> str:
    """Return the reason as a sentence that stays true while other jobs come and go: without them, and what is free.

    It is for the objects of a cluster: each change would be a write to the object of every job that waits, and whoever
    reads an object may not be allowed to know the jobs of other namespaces.
    """
    need, limit = _amount(reason.resource, reason.need), _amount(reason.resource, reason.limit or 0)
    match reason.code:
        case ReasonCode.NO_CAPACITY:
            return f"waiting for {_missing_amount(reason)}{_exclusions(reason.excluded)}"
        case ReasonCode.MAINTENANCE:
            return f"waiting for nodes that are in maintenance before it would end ({reason.scope})"
        case ReasonCode.OVER_QUOTA:
            of_limit = "" if reason.limit is None else f", which is {limit} at most"
            return f"waiting for {need} of the quota of queue {reason.scope}{of_limit}"
        case ReasonCode.USER_GPUS:
            return f"you may hold {limit} in queue {reason.scope}, {need} needed"
        case ReasonCode.USER_JOBS:
            return f"you may have {limit} on nodes at a time in queue {reason.scope}"
        case ReasonCode.USER_NODE_TIME:
            return f"your live jobs may add up to {limit} in queue {reason.scope}, {need} needed"
        case ReasonCode.USER_NODE_TIME_USED:
            per = format_period(reason.per_ms)
            return f"your jobs may use {limit} in {per} in queue {reason.scope}, {need} needed"
        case ReasonCode.RESERVED:
            return "nodes are reserved for jobs that come first in the queue order"
        case ReasonCode.STOPPING_OTHERS:
            return "waiting for other jobs to stop"
        case _:
            return sentence(reason)


def _gpus(count: int) -> str:
    return "1 GPU is" if count == 1 else f"{count} GPUs are"


def _missing_amount(reason: PendingReason) -> str:
    """Return the missing amount: `4 nodes with 8 free GPUs in one rack`, `3 slices of 2 nodes, each in one nvlink`."""
    amount = _amount(reason.resource, reason.need)
    if reason.slices.level:
        slices = "1 slice" if reason.need == 1 else f"{reason.need} slices"
        amount = f"{slices} of {_amount('nodes', reason.slices.nodes)}, {reason.slices.where},"
    amount += f" with {reason.scope}" if reason.scope else ""
    return amount.rstrip(",") + (f" in one {reason.level}" if reason.level else "")


def _free_amount(reason: PendingReason) -> str:
    """Return the free amount, and how much of that will be in maintenance before the gang would end."""
    free = reason.have + reason.in_maintenance
    if reason.level:
        text = f"the best has {free or 'none'} free now"
    else:
        text = f"{free} free now" if reason.slices.level else f"{_amount(reason.resource, free)} free now"
    if not reason.in_maintenance:
        return text
    return (
        f"{text}, {reason.in_maintenance} of them in maintenance before it would end ({_listed(reason.maintenances)})"
    )


def _max_amount(reason: PendingReason) -> str:
    """Return how much the cluster could provide at most, as text."""
    if reason.level:
        return f"only {reason.have} in the best {reason.level}" if reason.have else f"no {reason.level}"
    if not reason.have:
        return "no node in the cluster"
    unit = "" if reason.slices.level else " node" if reason.have == 1 else " nodes"
    return f"only {reason.have}{unit} in the cluster"


def _order_sentence(reason: PendingReason) -> str:
    """Return the sentence of a reason where no amount is short, but something else has to happen first."""
    match reason.code:
        case ReasonCode.RESERVED:
            return f"nodes are reserved for {_listed(reason.holders)}, which comes first in the queue order"
        case ReasonCode.BACKOFF:
            failed = "1 attempt" if reason.need == 1 else f"{reason.need} attempts"
            return f"restarts after a pause: {failed} failed without a new checkpoint"
        case ReasonCode.NAMESPACE_QUOTA:
            return f"waiting for a quota of its namespace: {reason.scope}"
        case ReasonCode.WEBHOOK_UNREACHABLE:
            return f"waiting for an admission webhook of the API server: {reason.scope}"
        case ReasonCode.VOLUME_UNAVAILABLE:
            return f"waiting for a volume: {reason.scope}"
        case ReasonCode.DEVICES_UNAVAILABLE:
            return f"waiting for devices: {reason.scope}"
        case ReasonCode.INSTALLATION_FAULT:
            return f"waiting for a cluster administrator: {reason.scope}"
        case ReasonCode.STOPPING_OTHERS:
            return f"waiting for {_listed(reason.holders)} to stop"
        case ReasonCode.DEPENDENCY:
            return f"comes after {_listed(reason.holders)}, which {_has_or_have(reason.holders)} not {reason.scope} yet"
        case ReasonCode.ARRAY_LIMIT:
            at_a_time = "1 element" if reason.need == 1 else f"{reason.need} elements"
            return f"limited to {at_a_time} of the array at a time, which have nodes now"
        case _:
            return "the server has not yet listed what runs on every node"


def _amount(resource: str, value: int) -> str:
    """Return an amount with its unit."""
    match resource:
        case "cpu_milli":
            return f"{format_cpu(value)} CPU" if value == 1000 else f"{format_cpu(value)} CPUs"
        case "memory_bytes":
            return f"{format_bytes(value)} memory"
        case "gpu_milli":
            return f"{value / 1000:g} GPU" if value == 1000 else f"{value / 1000:g} GPUs"
        case "jobs":
            return f"{value} job" if value == 1 else f"{value} jobs"
        case "nodes":
            return f"{value} node" if value == 1 else f"{value} nodes"
        case "node_ms":
            return format_node_time(value)
        case "time_ms":
            return format_duration(value)
        case _ if resource.startswith("extended."):
            return format_resource(resource.removeprefix("extended."), value)
        case _:
            gpu_type = resource.removeprefix("gpu_milli.")
            return f"{value / 1000:g} {gpu_type} GPU" if value == 1000 else f"{value / 1000:g} {gpu_type} GPUs"


def _has_or_have(names: tuple[str, ...]) -> str:
    return "has" if len(names) == 1 else "have"


def _exclusions(excluded: tuple[str, ...]) -> str:
    return f"; its retry.rules exclude {_listed(excluded)}" if excluded else ""


def _listed(names: tuple[str, ...]) -> str:
    """Return the first three names, and the number of further ones."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
