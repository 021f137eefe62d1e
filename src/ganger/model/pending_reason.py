"""Why a gang waits: a reason with numbers, the sentence it makes, and what to do about it.

Made by `core` for every waiting gang; shown unchanged by CLI, REST and, later, portal and metrics. Text is never
compared: code compares `ReasonCode`.
"""

from dataclasses import dataclass
from enum import StrEnum

from ganger.model.terms import Slices
from ganger.model.units import format_bytes, format_cpu, format_duration


class ReasonCode(StrEnum):
    """The constraint that binds. Stable: these are reason codes of the API."""

    NO_CAPACITY = "no_capacity"
    MAINTENANCE = "maintenance"
    NO_NODE = "no_node"
    EXCLUDED = "excluded"
    OVER_QUOTA = "over_quota"
    USER_GPUS = "user_gpus"
    USER_JOBS = "user_jobs"
    USER_TIME = "user_time"
    USER_NODE_TIME = "user_node_time"
    HELD = "held"
    BACKOFF = "backoff"
    NAMESPACE_QUOTA = "namespace_quota"
    WEBHOOK_UNREACHABLE = "webhook_unreachable"
    STOPPING_OTHERS = "stopping_others"
    NOT_LISTED = "not_listed"
    DEPENDENCY = "dependency"
    ARRAY_LIMIT = "array_limit"


REMEDY: dict[ReasonCode, str] = {
    ReasonCode.NO_CAPACITY: (
        "ask for fewer nodes or fewer resources per node; `ganger explain {gang}` shows what would start now"
    ),
    ReasonCode.MAINTENANCE: (
        "submit with a --time, or a --time-min, that ends before the maintenance begins, or wait until it is "
        "over: `ganger node maintenance`"
    ),
    ReasonCode.NO_NODE: (
        "no node could ever hold it as it stands: see `ganger node`, then resubmit smaller or uncordon a node"
    ),
    ReasonCode.EXCLUDED: (
        "no other node can hold it: add or uncordon one, see `ganger node`; a new job has no node excluded: "
        "`ganger clone {gang}`"
    ),
    ReasonCode.OVER_QUOTA: (
        "wait, submit to another queue, or have the quota raised: `ganger queue set {queue} --{resource}`"
    ),
    ReasonCode.USER_GPUS: "wait for one of your own jobs, or stop one: `ganger ls`",
    ReasonCode.USER_JOBS: "wait for one of your own jobs, or stop one: `ganger ls`",
    ReasonCode.USER_TIME: "submit with a shorter --time",
    ReasonCode.USER_NODE_TIME: "submit with a shorter --time or fewer nodes, or wait for one of your own jobs",
    ReasonCode.HELD: "nothing to do: it starts after {holder}; a job that fits beside it on other nodes may start now",
    ReasonCode.BACKOFF: "nothing to do: it is started again by itself; `ganger logs {gang}` shows how it failed",
    ReasonCode.NAMESPACE_QUOTA: (
        "nothing to do: it is tried again by itself where room is free, and spends no attempt; for a start "
        "sooner, end other pods of the namespace or have the quota raised: `kubectl describe resourcequota`"
    ),
    ReasonCode.WEBHOOK_UNREACHABLE: (
        "nothing to do: it is tried again by itself where room is free, and spends no attempt; who runs the "
        "cluster mends the webhook: `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`"
    ),
    ReasonCode.STOPPING_OTHERS: "nothing to do: it starts as soon as they have saved their work and stopped",
    ReasonCode.NOT_LISTED: "nothing to do: the server is still finding out what runs; see `ganger server status`",
    ReasonCode.DEPENDENCY: (
        "nothing to do: it waits for its turn from then on; `ganger explain {holder}` says what that waits for"
    ),
    ReasonCode.ARRAY_LIMIT: "nothing to do: the next starts when one ends; without % in `array:` all may run at once",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReason:
    """One answer. `need`, `have` and `limit` are amounts of `resource` (nodes, gpu_milli, gpu_milli.TYPE, cpu_milli,
    memory_bytes, node_ms, jobs).

    have: what is free to this gang now; limit: the most it could have; scope: the queue, rack or type it is counted
    in, or the ids of maintenances; holders: gangs that hold what is missing, the first to end first; until_ms: when it
    is expected to be there, None when nothing tells; excluded: nodes that could hold it but for its `retry.rules`;
    level: that of the one domain that must hold all of it, have and limit being those of the best; slices: what is
    counted, unless they say nothing: groups of so many nodes, each in one domain of a level; away: how much more would
    be free but for maintenance, whose ids are windows; foreign: how many GPUs others use, whom ganger does not place,
    of nodes that could hold it.
    """

    why: ReasonCode
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
    away: int = 0
    windows: tuple[str, ...] = ()
    foreign: int = 0


def sentence(reason: PendingReason) -> str:
    """The reason in words, with its numbers; no time of day, so that it is the same on every face."""
    need, have = _amount(reason.resource, reason.need), _amount(reason.resource, reason.have)
    limit = "no limit" if reason.limit is None else _amount(reason.resource, reason.limit)
    held = f"; held by {_listed(reason.holders)}" if reason.holders else ""
    held += f"; {_gpus(reason.foreign)} used by others" if reason.foreign else ""
    match reason.why:
        case ReasonCode.NO_CAPACITY:
            return f"waiting for {_wanted(reason)}: {_best(reason)}{held}{_not_on(reason.excluded)}"
        case ReasonCode.MAINTENANCE:
            gone = reason.need - reason.have
            are = "is" if gone == 1 else "are"
            return f"{gone} of {need} with room for it {are} in maintenance before it would end ({reason.scope})"
        case ReasonCode.NO_NODE:
            return f"needs {_wanted(reason)}: {_most(reason)} could hold it, whoever else stopped"
        case ReasonCode.EXCLUDED:
            return f"needs {_wanted(reason)}: {_most(reason)} could hold it{_not_on(reason.excluded)}"
        case ReasonCode.OVER_QUOTA:
            return f"queue {reason.scope} may use {have} more, {need} needed (limit {limit}){held}"
        case ReasonCode.USER_GPUS:
            return f"you may hold {limit} in queue {reason.scope}: {have} left, {need} needed{held}"
        case ReasonCode.USER_JOBS:
            return f"you may have {limit} on nodes at a time in queue {reason.scope}{held}"
        case ReasonCode.USER_TIME:
            return f"one job may hold its nodes for {limit} in queue {reason.scope}, {need} asked"
        case ReasonCode.USER_NODE_TIME:
            return f"your live jobs may add up to {limit} in queue {reason.scope}: {have} left, {need} needed{held}"
        case _:
            return _of_order(reason)


def _gpus(many: int) -> str:
    return "1 GPU is" if many == 1 else f"{many} GPUs are"


def _wanted(reason: PendingReason) -> str:
    """How much of what: `4 nodes with 8 free GPUs in one rack`, `3 slices of 2 nodes, each in one nvlink`."""
    amount = _amount(reason.resource, reason.need)
    if reason.slices.level:
        slices = "1 slice" if reason.need == 1 else f"{reason.need} slices"
        amount = f"{slices} of {_amount('nodes', reason.slices.nodes)}, {reason.slices.where},"
    amount += f" with {reason.scope}" if reason.scope else ""
    return amount.rstrip(",") + (f" in one {reason.level}" if reason.level else "")


def _best(reason: PendingReason) -> str:
    """What is there of it now, and what of that is to be maintained before the gang would end."""
    free = reason.have + reason.away
    gone = f", {reason.away} of them in maintenance before it would end ({_listed(reason.windows)})"
    if reason.level:
        now = f"the best has {free or 'none'} free now"
    else:
        now = f"{free} free now" if reason.slices.level else f"{_amount(reason.resource, free)} free now"
    return now + (gone if reason.away else "")


def _most(reason: PendingReason) -> str:
    """What there could be of it."""
    if reason.level:
        return f"only {reason.have} in the best {reason.level}" if reason.have else f"no {reason.level}"
    if not reason.have:
        return "no node in the cluster"
    what = "" if reason.slices.level else " node" if reason.have == 1 else " nodes"
    return f"only {reason.have}{what} in the cluster"


def _of_order(reason: PendingReason) -> str:
    """What has to come first, where no amount is short."""
    match reason.why:
        case ReasonCode.HELD:
            return f"room is kept for {_listed(reason.holders)}, which goes first"
        case ReasonCode.BACKOFF:
            failed = "1 attempt" if reason.need == 1 else f"{reason.need} attempts"
            return f"starts again after a pause: {failed} failed without progress"
        case ReasonCode.NAMESPACE_QUOTA:
            return f"waiting for a quota of its namespace: {reason.scope}"
        case ReasonCode.WEBHOOK_UNREACHABLE:
            return f"waiting for a webhook that the API server asks about its pods: {reason.scope}"
        case ReasonCode.STOPPING_OTHERS:
            return f"waiting for {_listed(reason.holders)} to stop and give way"
        case ReasonCode.DEPENDENCY:
            return f"comes after {_listed(reason.holders)}, which {_have(reason.holders)} not {reason.scope} yet"
        case ReasonCode.ARRAY_LIMIT:
            at_a_time = "1 element" if reason.need == 1 else f"{reason.need} elements"
            return f"{at_a_time} of the array at a time: as many have nodes now"
        case _:
            return "the server has not yet heard from every node what runs there"


def _amount(resource: str, value: int) -> str:
    """An amount with its unit, as a person says it."""
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
            return f"{value / 3_600_000:g} node-hours"
        case "time_ms":
            return format_duration(value)
        case _:
            kind = resource.removeprefix("gpu_milli.")
            return f"{value / 1000:g} {kind} GPU" if value == 1000 else f"{value / 1000:g} {kind} GPUs"


def _have(names: tuple[str, ...]) -> str:
    return "has" if len(names) == 1 else "have"


def _not_on(excluded: tuple[str, ...]) -> str:
    return f"; its retry.rules exclude {_listed(excluded)}" if excluded else ""


def _listed(names: tuple[str, ...]) -> str:
    """The first three names, and how many more."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
