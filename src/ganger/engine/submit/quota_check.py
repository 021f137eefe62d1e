"""Whether a job could ever start: what is impossible is refused at submission and never left waiting.

Called by `engine.service`. It compares with everything there is, in use or not, cordoned or lost: only that the
cluster itself or a quota changes could help. What others use is `core.placement.start_check`'s matter.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from ganger.core.placement.start_check import StartRequest
from ganger.core.queues.quota import GPU_TYPE_PREFIX, QueueTree, Vector, guarantee_conflict, need
from ganger.core.queues.quota import invalid_figure as figures_wrong_with
from ganger.core.state.state import State
from ganger.engine.submit.feasibility import SAY, check_nodes
from ganger.errors import RequestError
from ganger.model.job import GangState, JobSpec
from ganger.model.queue import ROOT, Queue
from ganger.model.units import DEVICE_MILLI, format_cpu, format_duration

MAX_LEVELS: Final = 32
"""Of queues below the root: more is no organisation, and each costs every answer about quota a step."""
TOO_DEEP: Final = f"a queue is at most {MAX_LEVELS} levels below {ROOT}: put it, or one above it, higher up"
_QUEUE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_AT_LEAST: Final[dict[str, Callable[[int], str]]] = {
    "gpu_milli": lambda amount: f"--gpus {-(-amount // DEVICE_MILLI)}",
    "cpu_milli": lambda amount: f"--cpu {format_cpu(amount)}",
    # Rounded up: what is suggested must be enough.
    "memory_bytes": lambda amount: f"--memory {-(-amount >> 20)}Mi",
}
"""The flag of `ganger queue set` that gives a queue so much of its own."""


def limited(state: State, spec: JobSpec) -> JobSpec:
    """The spec with the limits that its queue gives a job that names none. Refused when there is no such queue, or when
    it asks to wait for longer than it may."""
    tree = state.tree
    if spec.queue not in tree.index:
        why = f"there is no queue {spec.queue}; there are {', '.join(sorted(tree.index))}"
        raise RequestError("no_such_queue", why, nearest(spec.queue, tree.index) or "ganger queue")
    above = [tree.queues[at].user_limits for at in tree.path(tree.index[spec.queue])]
    longest = min((limits.time_ms for limits in above if limits.time_ms is not None), default=None)
    waits = min((limits.queue_time_ms for limits in above if limits.queue_time_ms is not None), default=None)
    asked = spec.limits
    if waits is not None and (asked.queue_time_ms or 0) > waits:
        most, wanted = format_duration(waits), format_duration(asked.queue_time_ms or 0)
        raise _over(
            f"one job may wait for {most} in queue {spec.queue}, and it asks for {wanted}",
            "submit with a shorter limits.queue_time",
        )
    time_ms = _own_time_ms(tree, spec.queue, longest) if asked.time_ms is None else asked.time_ms
    queue_time_ms = waits if asked.queue_time_ms is None else asked.queue_time_ms
    return replace(spec, limits=replace(asked, time_ms=time_ms, queue_time_ms=queue_time_ms))


def _own_time_ms(tree: QueueTree, queue: str, longest_ms: int | None) -> int | None:
    """The limit of a job that names none: the default of its queue, or of the nearest above it that has one, and at
    most what one job may run."""
    defaults = (tree.queues[at].default_time_ms for at in tree.path(tree.index[queue]))
    default_ms = next((each for each in defaults if each is not None), longest_ms)
    return default_ms if longest_ms is None or default_ms is None else min(default_ms, longest_ms)


def check_waiting(state: State, spec: JobSpec, user: str) -> None:
    """Refused when with it more jobs of its owner would wait than may: elements of an array count each."""
    tree, more = state.tree, len(spec.array.indices) if spec.array else 1
    for at in tree.path(tree.index[spec.queue]):
        most, name = tree.queues[at].user_limits.pending, tree.queues[at].name
        if most is None:
            continue
        inside = {tree.queues[each].name: None for each in range(len(tree.queues)) if at in tree.path(each)}
        waiting = sum(
            len(state.arrays[gang.id].rest) if gang.is_head else 1
            for gang in state.gangs.values()
            if gang.state is GangState.PENDING and gang.job.user == user and gang.queue in inside
        )
        if waiting + more > most:
            raise _over(
                f"one user may have {most} jobs waiting in queue {name}: {waiting} wait, and this is {more} more",
                "wait until some of yours have started, or stop some: ganger ls",
            )


def check(state: State, wanted: StartRequest) -> None:
    """Refused when nothing that ends could make room: too large for the nodes, for the queue or for one user."""
    if state.nodes.nodes:
        check_nodes(state.nodes, wanted.shape)
    _check_quota(state.tree, wanted)
    _check_user(state.tree, wanted)


def refused_for(tree: QueueTree, wanted: StartRequest) -> str | None:
    """Why nothing that ends could make room for it in its queue, or for its user; None: it could."""
    try:
        _check_quota(tree, wanted)
        _check_user(tree, wanted)
    except RequestError as refused:
        return refused.detail
    return None


def over_quota(tree: QueueTree, queue: str, amounts: Vector, does: str = "needs") -> str | None:
    """Why a queue may never use that much of each resource, in words, or None; `does`: what the job does with it."""
    at = tree.index[queue]
    for r, total in enumerate(amounts):
        most, resource = max(0, tree.potential(at, r)), tree.resources[r]
        if total > most:
            return (
                f"queue {queue} may use at most {_said(resource, most)} when nobody else uses any, "
                f"and the job {does} {_said(resource, total)}"
            )
    return None


def invalid_figure(queue: Queue) -> str | None:
    """What is wrong with a queue by itself: its name or a figure. Its place in the tree is `core.state.state`'s matter,
    its place among the others that of `contradicts`."""
    if not _QUEUE_NAME.fullmatch(queue.name):
        return f"{queue.name!r} is no name of a queue: up to 63 of a-z, 0-9 and '-', a letter or digit first"
    for name in ("time_ms", "queue_time_ms"):  # asked here and not by the core: older logs have such queues
        if getattr(queue.user_limits, name) == 0:
            return f"user_limits.{name} is 0, and no job takes no time: leave it out for no limit"
    return figures_wrong_with(queue)


def contradicts(state: State, queue: Queue) -> str | None:
    """What speaks against a queue among the others: more is guaranteed than there is to give; a type of GPU that no
    node has, unless it had a figure for that before."""
    queues = {**state.queues, queue.name: queue}
    if any(levels_below_root(queues, name) > MAX_LEVELS for name in queues):
        return TOO_DEEP
    if (why := guarantee_conflict(queues.values(), queue.name)) is not None:
        return why
    there = sorted({kind: None for kind in state.nodes.gpu_types if kind})
    before = state.queues.get(queue.name, queue if not state.nodes.nodes else Queue(name=queue.name))
    for part in ("nominal", "borrowing", "lending"):
        for kind in getattr(queue, part).gpu_types:
            if kind not in there and kind not in getattr(before, part).gpu_types:
                types = ", ".join(there) or "none"
                return f"{part}.gpu_types names {kind}, and no node has {kind} GPUs; types here: {types}"
    return None


def levels_below_root(queues: Mapping[str, Queue], name: str) -> int:
    """How many queues it is below the root: 1 for the root's own. Of one that is further down than any may be, or in a
    circle, only that it is."""
    levels, above = 0, queues[name].parent
    while above is not None and above in queues and levels <= MAX_LEVELS + 1:
        levels, above = levels + 1, queues[above].parent
    return levels


def nearest(name: str, names: Iterable[str]) -> str:
    """`did you mean X?`, or nothing."""
    close = get_close_matches(name, sorted(names), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _check_quota(tree: QueueTree, wanted: StartRequest) -> None:
    amounts, at = tree.wanted(wanted.shape), tree.index[wanted.queue]
    if (why := over_quota(tree, wanted.queue, amounts)) is not None:
        r = next(r for r, total in enumerate(amounts) if total > max(0, tree.potential(at, r)))
        missing = amounts[r] - max(0, tree.potential(at, r))
        enough = max(amounts[r], tree.guaranteed[at][r] + missing)  # some of what it has may be what those below keep
        raise RequestError(
            "quota_too_small",
            why,
            "submit smaller or to another queue (`ganger queue`), or raise it: "
            f"ganger queue set {wanted.queue} {_flag(tree.resources[r], enough)}",
        )


def _said(resource: str, amount: int) -> str:
    if resource.startswith(GPU_TYPE_PREFIX):
        return SAY["gpu_milli"](amount).replace("GPU", f"{resource.removeprefix(GPU_TYPE_PREFIX)} GPU")
    return SAY[resource](amount)


def _flag(resource: str, amount: int) -> str:
    if resource.startswith(GPU_TYPE_PREFIX):
        return f"--gpus {resource.removeprefix(GPU_TYPE_PREFIX)}:{-(-amount // DEVICE_MILLI)}"
    return _AT_LEAST[resource](amount)


def _check_user(tree: QueueTree, wanted: StartRequest) -> None:
    for at in tree.path(tree.index[wanted.queue]):
        limits, where = tree.queues[at].user_limits, f"in queue {tree.queues[at].name}"
        gpu_milli = need(wanted.shape)[0]
        if limits.gpus is not None and gpu_milli > DEVICE_MILLI * limits.gpus:
            needs = f"{gpu_milli / DEVICE_MILLI:g}"
            raise _over(
                f"one user may hold {SAY['gpus'](limits.gpus)} {where}, and the job needs {needs}", "submit smaller"
            )
        if limits.time_ms is not None and (wanted.time_ms or 0) > limits.time_ms:
            longest, asked = format_duration(limits.time_ms), format_duration(wanted.time_ms or 0)
            raise _over(
                f"one job may run for {longest} {where}, and it asks for {asked}", "submit with a shorter --time"
            )
        if limits.node_ms is None:
            continue
        allowed = f"{limits.node_ms / 3_600_000:g} node-hours {where}"
        if wanted.time_ms is None:
            detail = f"one user may commit {allowed}, so the job must say how long it may run"
            raise RequestError("no_time_limit", detail, "submit with --time, for instance --time 8h")
        if wanted.node_ms > limits.node_ms:
            asked = f"{wanted.node_ms / 3_600_000:g}"
            raise _over(f"one user may commit {allowed}, and the job asks for {asked}", "submit with a shorter --time")


def _over(detail: str, next: str) -> RequestError:
    return RequestError("over_user_limit", detail, next)
