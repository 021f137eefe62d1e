"""Whether a job could ever start: what is impossible is refused at submission and never left waiting.

Called by `engine.service`. It compares with everything there is, in use or not, cordoned or lost: only that the
cluster itself or a quota changes could help. What others use is `core.fit`'s matter.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from difflib import get_close_matches
from typing import Final

from ganger.core.fit import Ask
from ganger.core.nodes import NodeTable
from ganger.core.place import place
from ganger.core.queues import RESOURCES, UNLIMITED, QueueTree, need
from ganger.core.state import State
from ganger.core.undo import Undo
from ganger.engine.refusal import Refused
from ganger.model.job import JobSpec, Shape
from ganger.model.queue import Queue
from ganger.model.units import format_bytes, format_cpu, format_duration

_SEE_NODES: Final = "`ganger node` shows what there is"
_NO_GPUS: Final = "submit without --gpu, or let nodes show GPU slots: ganger server start --topology FILE"
_QUEUE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SAY: Final[dict[str, Callable[[int], str]]] = {
    "gpus": lambda amount: f"{amount} GPU" if amount == 1 else f"{amount} GPUs",
    "cpu_milli": lambda amount: f"{format_cpu(amount)} CPU" if amount == 1000 else f"{format_cpu(amount)} CPUs",
    "memory_bytes": lambda amount: f"{format_bytes(amount)} memory",
}
_AT_MOST: Final[dict[str, Callable[[int], str]]] = {
    "gpus": lambda amount: f"--gpu {amount}",
    "cpu_milli": lambda amount: f"--cpu {format_cpu(amount)}",
    # Rounded down: what is suggested must fit.
    "memory_bytes": lambda amount: f"--memory {amount >> 20}Mi" if amount < 8 << 30 else f"--memory {amount >> 30}Gi",
}
_AT_LEAST: Final[dict[str, Callable[[int], str]]] = {
    "gpus": lambda amount: f"--gpus {amount}",
    "cpu_milli": lambda amount: f"--cpu {format_cpu(amount)}",
    # Rounded up: what is suggested must be enough.
    "memory_bytes": lambda amount: f"--memory {-(-amount >> 20)}Mi",
}
"""The flag of `ganger queue set` that gives a queue so much of its own."""


def limited(state: State, spec: JobSpec) -> JobSpec:
    """The spec with the time limit that its queue gives a job that names none. Refused when there is no such queue."""
    tree = state.tree
    if spec.queue not in tree.index:
        why = f"there is no queue {spec.queue}; there are {', '.join(sorted(tree.index))}"
        raise Refused("no_such_queue", why, nearest(spec.queue, tree.index) or "ganger queue")
    limits = [tree.queues[at].user_limits.time_ms for at in tree.path(tree.index[spec.queue])]
    longest = min((limit for limit in limits if limit is not None), default=None)
    if spec.limits.time_ms is not None or longest is None:
        return spec
    return replace(spec, limits=replace(spec.limits, time_ms=longest))


def check(state: State, wanted: Ask) -> None:
    """Refused when nothing that ends could make room: too large for the nodes, for the queue or for one user."""
    if state.nodes.nodes:
        _check_nodes(state.nodes, wanted.shape)
    _check_quota(state.tree, wanted)
    _check_user(state.tree, wanted)


def wrong_with(queue: Queue) -> str | None:
    """What is wrong with a queue by itself: its name or a figure. Its place in the tree is `core.state`'s matter."""
    if not _QUEUE_NAME.fullmatch(queue.name):
        return f"{queue.name!r} is no name of a queue: up to 63 of a-z, 0-9 and '-', a letter or digit first"
    for kind in ("nominal", "borrowing", "lending", "user_limits"):
        for name, figure in asdict(getattr(queue, kind)).items():
            if figure is not None and not 0 <= figure < UNLIMITED:
                return f"{kind}.{name} is {figure}: an amount is 0 or more; leave it out for no limit"
    return None


def nearest(name: str, names: Iterable[str]) -> str:
    """`did you mean X?`, or nothing."""
    close = get_close_matches(name, sorted(names), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _check_nodes(nodes: NodeTable, shape: Shape) -> None:
    for part in shape.parts:
        _check_part(nodes, part)
    empty = NodeTable(nodes.nodes, {}, Undo(), nodes.topology.levels)
    if shape.more and place(empty, shape) is None:
        raise Refused(
            "too_few_nodes",
            f"its parts ({shape}) have room each, but not all at once, even if nothing else ran",
            f"submit smaller; {_SEE_NODES}",
        )


def _check_part(nodes: NodeTable, shape: Shape) -> None:
    able = nodes.capacity(shape, nodes.able(shape))
    if able >= shape.nodes:
        return
    if able:
        each = _each(shape)
        what, remedy = ("processes", "a smaller count") if shape.stacked else ("nodes", f"--nodes {able} or fewer")
        raise Refused(
            "too_few_nodes",
            f"it needs {shape.nodes} {what} with {each} each, and there {'is' if able == 1 else 'are'} {able}"
            + " at most" * shape.stacked,
            f"submit with {remedy}; {_SEE_NODES}",
        )
    if shape.gpus and not nodes.gpus.any():
        raise Refused("no_gpus", f"it asks for {_SAY['gpus'](shape.gpus)} per node, and no node has any", _NO_GPUS)
    typed = nodes.of_type(shape.gpu_type)
    if not typed.any():
        types = ", ".join(sorted({kind: None for kind in nodes.gpu_types if kind})) or "none"
        raise Refused("no_such_gpu_type", f"no node has {shape.gpu_type} GPUs; types here: {types}", _SEE_NODES)
    for resource, say in _SAY.items():
        asked, has = getattr(shape, resource), getattr(nodes, resource)[typed]
        most = int(has.max())
        if asked > most:
            detail = f"it asks for {say(asked)} per node, and the most that a node has is {say(most)}"
            remedy = f"submit with {_AT_MOST[resource](most)} or less; {_SEE_NODES}"
            raise Refused("node_too_small", detail, remedy)
    raise Refused("node_too_small", f"no node has {_each(shape)} together", _SEE_NODES)


def _check_quota(tree: QueueTree, wanted: Ask) -> None:
    at = tree.index[wanted.queue]
    for r, total in enumerate(need(wanted.shape)):
        most = max(0, tree.potential(at, r))
        if total > most:
            raise Refused(
                "quota_too_small",
                f"queue {wanted.queue} may use at most {_SAY[RESOURCES[r]](most)} when nobody else uses any, "
                f"and the job needs {_SAY[RESOURCES[r]](total)}",
                "submit smaller or to another queue (`ganger queue`), or raise it: "
                f"ganger queue set {wanted.queue} {_AT_LEAST[RESOURCES[r]](total)}",
            )


def _check_user(tree: QueueTree, wanted: Ask) -> None:
    for at in tree.path(tree.index[wanted.queue]):
        limits, where = tree.queues[at].user_limits, f"in queue {tree.queues[at].name}"
        gpus = need(wanted.shape)[0]
        if limits.gpus is not None and gpus > limits.gpus:
            raise _over(
                f"one user may hold {_SAY['gpus'](limits.gpus)} {where}, and the job needs {gpus}", "submit smaller"
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
            raise Refused("no_time_limit", detail, "submit with --time, for instance --time 8h")
        if wanted.node_ms > limits.node_ms:
            asked = f"{wanted.node_ms / 3_600_000:g}"
            raise _over(f"one user may commit {allowed}, and the job asks for {asked}", "submit with a shorter --time")


def _over(detail: str, next: str) -> Refused:
    return Refused("over_user_limit", detail, next)


def _each(shape: Shape) -> str:
    """What each node must have, in words."""
    parts = [say(amount) for resource, say in _SAY.items() if (amount := getattr(shape, resource))]
    return ", ".join(parts).replace("GPU", f"{shape.gpu_type} GPU" if shape.gpu_type else "GPU") or "nothing"
