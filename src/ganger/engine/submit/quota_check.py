"""Checks of quota at submission: a job that could never start is refused rather than left pending.

Capacity counts in full, in use or not, cordoned or lost: only a change of the cluster or of a quota could help.
`core.placement.start_check` handles what other jobs use.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from ganger.core.placement.start_check import StartRequest
from ganger.core.queues.quota import QueueTree, Vector, guarantee_conflict, need
from ganger.core.queues.quota_figures import EXTENDED_PREFIX, GPU_TYPE_PREFIX
from ganger.core.queues.quota_figures import invalid_figure as amounts_wrong_with
from ganger.core.state.state import State
from ganger.engine.submit.feasibility import FORMATS, check_networks, check_nodes
from ganger.errors import RequestError
from ganger.model.job import GangState, JobSpec
from ganger.model.queue import ROOT, Queue
from ganger.model.units import (
    DEVICE_MILLI,
    HOUR_MS,
    format_cpu,
    format_duration,
    format_node_time,
    format_period,
    format_resource,
)

MAX_LEVELS: Final = 32
"""Maximum depth of queues below the root: each level costs every quota computation a step."""
TOO_DEEP: Final = f"a queue is at most {MAX_LEVELS} levels below {ROOT}: put it, or one above it, higher up"
DEFAULT_PRIORITY: Final = JobSpec(run="").priority
_QUEUE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MINIMUM_OPTIONS: Final[dict[str, Callable[[int], str]]] = {
    "gpu_milli": lambda amount: f"--gpus {-(-amount // DEVICE_MILLI)}",
    "cpu_milli": lambda amount: f"--cpu {format_cpu(amount)}",
    # Rounded up: the suggestion must be enough.
    "memory_bytes": lambda amount: f"--memory {-(-amount >> 20)}Mi",
}
"""The option of `ganger queue set` that gives a queue at least that much of its own."""


def limited(state: State, spec: JobSpec, *, is_administrator: bool = True) -> JobSpec:
    """Return the spec with the queue's limits where the job sets none.

    Raise RequestError when there is no such queue, or when it asks to be pending for longer than it may, or for a
    higher priority than its user may.
    """
    tree = state.tree
    if spec.queue not in tree.index:
        message = f"there is no queue {spec.queue}; there are {', '.join(sorted(tree.index))}"
        raise RequestError("no_such_queue", message, nearest(spec.queue, tree.index) or "ganger queue")
    user_limits = [tree.queues[index].user_limits for index in tree.path(tree.index[spec.queue])]
    max_time_ms = min(
        (queue_limits.time_ms for queue_limits in user_limits if queue_limits.time_ms is not None), default=None
    )
    max_queue_ms = min(
        (queue_limits.queue_time_ms for queue_limits in user_limits if queue_limits.queue_time_ms is not None),
        default=None,
    )
    max_priority = tree.max_priority(spec.queue)
    if max_priority is not None and spec.priority == DEFAULT_PRIORITY:
        spec = replace(spec, priority=min(DEFAULT_PRIORITY, max_priority))
    if not is_administrator:
        check_priority(tree, spec.queue, spec.priority)
    _check_preemptible(tree, spec)
    requested_limits = spec.limits
    if max_queue_ms is not None and (requested_limits.queue_time_ms or 0) > max_queue_ms:
        maximum, requested = format_duration(max_queue_ms), format_duration(requested_limits.queue_time_ms or 0)
        raise _over_user_limit(
            f"one job may be pending for {maximum} in queue {spec.queue}, and it asks for {requested}",
            "submit with a shorter limits.queue_time",
        )
    time_ms = (
        _default_time_ms(tree, spec.queue, max_time_ms)
        if requested_limits.time_ms is None
        else requested_limits.time_ms
    )
    queue_time_ms = max_queue_ms if requested_limits.queue_time_ms is None else requested_limits.queue_time_ms
    return replace(spec, limits=replace(requested_limits, time_ms=time_ms, queue_time_ms=queue_time_ms))


def _check_preemptible(tree: QueueTree, spec: JobSpec) -> None:
    path = tree.path(tree.index[spec.queue])
    if not spec.preemptible and not any(tree.queues[index].allow_non_preemptible for index in path):
        raise _over_user_limit(
            f"preemptible: false is not allowed in queue {spec.queue}",
            f"leave preemptible out, or have an administrator set queues.{spec.queue}.allow_non_preemptible: true",
        )


def check_priority(tree: QueueTree, queue: str, priority: int) -> None:
    """Raise RequestError for a priority above the highest that a user may ask for in a queue."""
    maximum = tree.max_priority(queue)
    if maximum is not None and priority > maximum:
        raise _over_user_limit(
            f"a user may ask for priority {maximum} at most in queue {queue}, and this is {priority}",
            f"ask for --priority {maximum} or lower, or have an administrator set it",
        )


def _default_time_ms(tree: QueueTree, queue: str, max_ms: int | None) -> int | None:
    """Return the time limit of a job that sets none.

    That is the default of its queue, or of the nearest queue above with one, at most the maximum for one job.
    """
    defaults = (tree.queues[index].default_time_ms for index in tree.path(tree.index[queue]))
    default_ms = next((default for default in defaults if default is not None), max_ms)
    return default_ms if max_ms is None or default_ms is None else min(default_ms, max_ms)


def check_pending(state: State, spec: JobSpec, user: str) -> None:
    """Raise RequestError when its owner would have too many pending jobs; each element of an array counts."""
    tree, added = state.tree, len(spec.array.indices) if spec.array else 1
    for index in tree.path(tree.index[spec.queue]):
        maximum, name = tree.queues[index].user_limits.pending, tree.queues[index].name
        if maximum is None:
            continue
        subtree = {tree.queues[other].name: None for other in range(len(tree.queues)) if index in tree.path(other)}
        pending = sum(
            len(state.arrays[gang.id].rest) if gang.is_head else 1
            for gang in state.gangs.values()
            if gang.state is GangState.PENDING and gang.job.user == user and gang.queue in subtree
        )
        if pending + added > maximum:
            raise _over_user_limit(
                f"one user may have {maximum} pending jobs in queue {name}: {pending} exist, and this is {added} more",
                "wait until some of yours have started, or stop some: ganger ls",
            )


def check(state: State, request: StartRequest, *, waits_for_nodes: bool = False, is_administrator: bool = True) -> None:
    """Raise RequestError when no end of another job could make room: in the nodes, the queue or the user's limits.

    waits_for_nodes: nodes may come, so that those that exist are no limit; configured quotas are. What a job needs of
    the rails of a network is known once that is in force; but an autoscaler adds no node unless a job waits for it.
    """
    if waits_for_nodes:
        if state.document.autoscaling.after_ms is None:
            check_networks(state.nodes, request.shape)
    elif state.nodes.nodes:
        check_nodes(state.nodes, request.shape)
    _check_quota(state.tree, request, as_set=waits_for_nodes, is_administrator=is_administrator)
    _check_user(state.tree, request)


def refused_for(tree: QueueTree, request: StartRequest) -> str | None:
    """Return why no end of another job could make room in the queue, or in the user's limits; None: it could."""
    try:
        _check_quota(tree, request)
        _check_user(tree, request)
    except RequestError as error:
        return error.detail
    return None


def over_quota(
    tree: QueueTree, queue: str, amounts: Vector, verb: str = "needs", *, as_set: bool = False
) -> str | None:
    """Return why a queue may never use that much of each resource, or None.

    verb: what the job does with it.
    as_set: only configured quotas count, not the size of the cluster.
    """
    index = tree.index[queue]
    for r, total in enumerate(amounts):
        maximum, resource = max(0, tree.potential(index, r, as_set=as_set)), tree.resources[r]
        if total > maximum:
            return (
                f"queue {queue} may use at most {_amount_text(resource, maximum)} when no other queue uses any, "
                f"and the job {verb} {_amount_text(resource, total)}"
            )
    return None


def invalid_figure(queue: Queue) -> str | None:
    """Return what is wrong with a queue by itself: its name or an amount.

    `core.state.state` checks its place in the tree, `contradicts` its amounts against other queues.
    """
    if not _QUEUE_NAME.fullmatch(queue.name):
        return f"{queue.name!r} is not a valid name of a queue: up to 63 of a-z, 0-9 and '-', a letter or digit first"
    for name in ("time_ms", "queue_time_ms"):  # checked here and not by the core: older logs have such queues
        if getattr(queue.user_limits, name) == 0:
            return f"user_limits.{name} is 0, which no job can meet: leave it out for no limit"
    return amounts_wrong_with(queue)


def contradicts(state: State, queue: Queue) -> str | None:
    """Return why a queue contradicts the others, or None.

    More is guaranteed than there is to give; or it names a type of GPU that no node has, unless it named it before.
    """
    queues = {**state.document.queues, queue.name: queue}
    if any(levels_below_root(queues, name) > MAX_LEVELS for name in queues):
        return TOO_DEEP
    if (reason := guarantee_conflict(queues.values(), queue.name)) is not None:
        return reason
    gpu_types = sorted({gpu_type: None for gpu_type in state.nodes.attributes.gpu_types if gpu_type})
    before = state.document.queues.get(queue.name, queue if not state.nodes.nodes else Queue(name=queue.name))
    for part in ("nominal", "borrowing", "lending"):
        for gpu_type in getattr(queue, part).gpu_types:
            if gpu_type not in gpu_types and gpu_type not in getattr(before, part).gpu_types:
                types = ", ".join(gpu_types) or "none"
                return f"{part}.gpu_types names {gpu_type}, and no node has {gpu_type} GPUs; types here: {types}"
    return None


def levels_below_root(queues: Mapping[str, Queue], name: str) -> int:
    """Return how many levels a queue is below the root: 1 directly below it.

    A queue that is too deep, or in a cycle, gets more than the maximum.
    """
    levels, above = 0, queues[name].parent
    while above is not None and above in queues and levels <= MAX_LEVELS + 1:
        levels, above = levels + 1, queues[above].parent
    return levels


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "did you mean X?", or an empty string."""
    matches = get_close_matches(name, sorted(names), n=1)
    return f"did you mean {matches[0]}?" if matches else ""


def _check_quota(
    tree: QueueTree, request: StartRequest, *, as_set: bool = False, is_administrator: bool = True
) -> None:
    """Raise RequestError when the queue can never have room; `as_set`: by configured quotas alone."""
    amounts, index = tree.wanted(request.shape), tree.index[request.queue]
    if (reason := over_quota(tree, request.queue, amounts, as_set=as_set)) is not None:
        maxima = [max(0, tree.potential(index, r, as_set=as_set)) for r in range(len(amounts))]
        r = next(r for r, total in enumerate(amounts) if total > maxima[r])
        missing = amounts[r] - maxima[r]
        sufficient = max(
            amounts[r], tree.guaranteed[index][r] + missing
        )  # some of its own may be guaranteed to the queues below
        option = _option(tree.resources[r], sufficient)
        raising = f"raise it: ganger queue set {request.queue} {option}"
        raising = raising if is_administrator else f"ask an administrator for {option}"
        raise RequestError(
            "quota_too_small", reason, f"submit smaller or to another queue (`ganger queue`), or {raising}"
        )


def _amount_text(resource: str, amount: int) -> str:
    if resource.startswith(GPU_TYPE_PREFIX):
        return FORMATS["gpu_milli"](amount).replace("GPU", f"{resource.removeprefix(GPU_TYPE_PREFIX)} GPU")
    if resource.startswith(EXTENDED_PREFIX):
        return format_resource(resource.removeprefix(EXTENDED_PREFIX), amount)
    return FORMATS[resource](amount)


def _option(resource: str, amount: int) -> str:
    if resource.startswith(GPU_TYPE_PREFIX):
        return f"--gpus {resource.removeprefix(GPU_TYPE_PREFIX)}:{-(-amount // DEVICE_MILLI)}"
    if resource.startswith(EXTENDED_PREFIX):
        return f"--extended {resource.removeprefix(EXTENDED_PREFIX)}:{amount}"
    return _MINIMUM_OPTIONS[resource](amount)


def _check_user(tree: QueueTree, request: StartRequest) -> None:
    for index in tree.path(tree.index[request.queue]):
        limits, place = tree.queues[index].user_limits, f"in queue {tree.queues[index].name}"
        gpu_milli = need(request.shape)[0]
        if limits.gpus is not None and gpu_milli > DEVICE_MILLI * limits.gpus:
            requested = f"{gpu_milli / DEVICE_MILLI:g}"
            raise _over_user_limit(
                f"one user may hold {FORMATS['gpus'](limits.gpus)} {place}, and the job needs {requested}",
                "submit smaller",
            )
        if limits.time_ms is not None and (request.time_ms or 0) > limits.time_ms:
            maximum, requested = format_duration(limits.time_ms), format_duration(request.time_ms or 0)
            raise _over_user_limit(
                f"one job may run for {maximum} {place}, and it asks for {requested}", "submit with a shorter --time"
            )
        if limits.node_ms is not None:
            may = f"commit {format_node_time(limits.node_ms)} {place}"
            _check_node_time(request, may, request.node_ms, limits.node_ms)
        if (used := limits.node_time_used) is not None:
            may = f"use {format_node_time(used.limit_ms)} in {format_period(used.per_ms)} {place}"
            if (need_ms := request.period_ms(used.per_ms)) > used.limit_ms:
                _check_node_time(request, may, need_ms, used.limit_ms)


def _check_node_time(request: StartRequest, may: str, need_ms: int, limit_ms: int) -> None:
    """Raise RequestError for a job that could never start by a limit of node time; `may`: what a user may."""
    if request.time_ms is None:
        detail = f"one user may {may}, so the job must say how long it may run"
        raise RequestError("no_time_limit", detail, "submit with --time, for instance --time 8h")
    if need_ms > limit_ms:
        detail = f"one user may {may}, and the job asks for {need_ms / HOUR_MS:g}"
        raise _over_user_limit(detail, "submit with a shorter --time")


def _over_user_limit(detail: str, next: str) -> RequestError:
    return RequestError("over_user_limit", detail, next)
