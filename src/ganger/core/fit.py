"""Whether a gang may start now, and if not, which constraint binds first: the one place that answers both.

Called by `core.plan` for every class of pending gangs, by `core.explain` for what-ifs. Order of the checks: what the
user may have, what the queue may have, what the nodes have; cheap ones first, and a limit that only the owner can
change before one that time cures.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ganger.core.gang import Gang
from ganger.core.nodes import NodeTable
from ganger.core.place import place
from ganger.core.queues import NOTHING_HELD, UNLIMITED, QueueTree, need
from ganger.core.state import Shares, State
from ganger.model.job import Shape
from ganger.model.reason import Reason, Why
from ganger.model.units import format_bytes

Mask = NDArray[np.bool_]
Amounts = NDArray[np.integer[Any]]

MAX_HOLDERS = 8
"""Gangs named in a reason; more would not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A gang as the checks see it: whose, where, how large, for how long, on which nodes not. Also a gang that does not
    exist (what-if)."""

    queue: str
    user: str
    shape: Shape
    time_ms: int | None
    avoids: tuple[str, ...] = ()

    @property
    def node_ms(self) -> int:
        """Node-milliseconds it may use."""
        return self.shape.all_nodes * (self.time_ms or 0)


def ask(gang: Gang) -> Ask:
    """What a gang asks for."""
    spec = gang.job.spec
    return Ask(
        queue=gang.queue,
        user=gang.job.user,
        shape=gang.shape,
        time_ms=spec.limits.time_ms,
        avoids=gang.avoids,
    )


def fit(state: State, wanted: Ask, now_ms: int) -> Shares | Reason:
    """Where it may start now, or the first constraint that binds."""
    barred = over_user_limits(state, wanted) or over_quota(state, wanted)
    if barred:
        return barred
    with state.nodes.without(wanted.avoids):
        return place(state.nodes, wanted.shape) or no_room(state, wanted.shape, now_ms)


def where(state: State, wanted: Ask) -> Shares | None:
    """Where it may start now, without a word of why not: for those who try many times."""
    if _user_bar(state.tree, wanted) or state.tree.short_of(wanted.queue, need(wanted.shape)) is not None:
        return None
    with state.nodes.without(wanted.avoids):
        return place(state.nodes, wanted.shape)


def over_user_limits(state: State, wanted: Ask) -> Reason | None:
    """The first queue, upwards, in which its user may not hold that much more."""
    bar = _user_bar(state.tree, wanted)
    if bar is None:
        return None
    holders = () if bar.why is Why.USER_TIME else _held_by(state, wanted.user, bar.at)
    return Reason(
        why=bar.why,
        resource=bar.resource,
        need=bar.need,
        have=max(0, bar.have),
        limit=bar.limit,
        scope=state.tree.queues[bar.at].name,
        holders=holders,
    )


class _Bar(NamedTuple):
    """A limit of a user that binds, in queue `at`."""

    why: Why
    at: int
    resource: str
    need: int
    have: int
    limit: int


def _user_bar(tree: QueueTree, wanted: Ask) -> _Bar | None:
    gpus, time_ms = need(wanted.shape)[0], wanted.time_ms or 0
    for at in tree.path(tree.index[wanted.queue]):
        limits = tree.queues[at].user_limits
        held, committed, jobs = tree.users.get((at, wanted.user), NOTHING_HELD)
        if limits.jobs is not None and jobs >= limits.jobs:
            return _Bar(Why.USER_JOBS, at, "jobs", 1, limits.jobs - jobs, limits.jobs)
        if limits.time_ms is not None and time_ms > limits.time_ms:
            return _Bar(Why.USER_TIME, at, "time_ms", time_ms, limits.time_ms, limits.time_ms)
        # Who asks for none of it is not kept out by a limit that was lowered below what is held.
        if limits.gpus is not None and gpus and gpus > limits.gpus - held:
            return _Bar(Why.USER_GPUS, at, "gpus", gpus, limits.gpus - held, limits.gpus)
        if limits.node_ms is not None and wanted.node_ms and wanted.node_ms > limits.node_ms - committed:
            return _Bar(Why.USER_NODE_TIME, at, "node_ms", wanted.node_ms, limits.node_ms - committed, limits.node_ms)
    return None


def _held_by(state: State, user: str, at: int) -> tuple[str, ...]:
    """Gangs of the user that count in a queue."""
    tree = state.tree
    own = [gang for gang, _ in state.holding() if gang.job.user == user and at in tree.path(tree.index[gang.queue])]
    return tuple(gang.id for gang in own[:MAX_HOLDERS])


def over_quota(state: State, wanted: Ask) -> Reason | None:
    """The first resource of which its queue may not use that much more."""
    tree, total = state.tree, need(wanted.shape)
    r = tree.short_of(wanted.queue, total)
    if r is None:
        return None
    at = tree.index[wanted.queue]
    users = [gang for gang, _ in state.holding() if need(gang.shape)[r]]
    near = [gang.id for gang in users if gang.queue == wanted.queue] or [gang.id for gang in users]
    limit = tree.potential(at, r)
    return Reason(
        why=Why.OVER_QUOTA,
        resource=tree.resources[r],
        need=total[r],
        have=max(0, tree.available(at, r)),
        limit=None if limit >= UNLIMITED // 2 else limit,
        scope=wanted.queue,
        holders=tuple(near[:MAX_HOLDERS]),
    )


def no_room(state: State, shape: Shape, now_ms: int) -> Reason:
    """Why the nodes have no place for it: too few could ever hold it, or others hold them."""
    nodes, part = state.nodes, hardest(state.nodes, shape)
    able, large_enough = nodes.able(part) & nodes.ready, nodes.large_enough(part) & nodes.ready
    capacity = nodes.capacity(part, able)
    excluded = tuple(nodes.nodes[at].name for at in np.flatnonzero(large_enough & nodes.barred))
    if capacity < part.nodes <= nodes.capacity(part, large_enough):
        why, what = Why.EXCLUDED, node_need(part)
        return Reason(why=why, resource="nodes", need=part.nodes, have=capacity, scope=what, excluded=excluded)
    if capacity < part.nodes:
        all_of_it = (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes)
        what = _scarce(part, nodes.ready, nodes.of_type(part.gpu_type), all_of_it)
        return Reason(why=Why.NO_NODE, resource="nodes", need=part.nodes, have=capacity, scope=what)
    free = (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes)
    what = _scarce(part, nodes.ready & ~nodes.held & ~nodes.barred, nodes.of_type(part.gpu_type), free)
    holders = [
        gang.id for gang, shares in by_end(state.holding(), now_ms) if any(able[nodes.index[s.node]] for s in shares)
    ]
    return Reason(
        why=Why.NO_CAPACITY,
        resource="nodes",
        need=part.nodes,
        have=nodes.room(part),
        limit=capacity,
        scope=what,
        holders=tuple(holders[:MAX_HOLDERS]),
        excluded=excluded,
    )


def hardest(nodes: NodeTable, shape: Shape) -> Shape:
    """The part that even alone has no room, the one that never has before others; else the last: the parts are in each
    other's way."""
    parts = shape.parts
    never = [part for part in parts if nodes.capacity(part, nodes.able(part) & nodes.ready) < part.nodes]
    return (never or [part for part in parts if nodes.room(part) < part.nodes] or parts[-1:])[0]


def by_end(holding: list[tuple[Gang, Shares]], now_ms: int) -> list[tuple[Gang, Shares]]:
    """Gangs that hold nodes, the first to end by its limit first, those that nothing tells of last."""

    def end(of: tuple[Gang, Shares]) -> tuple[bool, int, int]:
        ends_ms = of[0].ends_ms(now_ms)
        return (ends_ms is None, ends_ms or 0, of[0].number)

    return sorted(holding, key=end)


def _scarce(shape: Shape, among: Mask, typed: Mask, has: tuple[Amounts, ...]) -> str:
    """The part of a node's need that too few nodes `among` have, in words; GPUs alone if they are a part of it."""
    each = (shape.gpus, shape.cpu_milli, shape.memory_bytes)
    masks = (among & typed, among, among)
    short = [r for r in range(len(each)) if each[r] and (masks[r] & (has[r] >= each[r])).sum() < shape.nodes]
    if not short:
        return node_need(shape)
    parts = short[:1] if short[0] == 0 else short
    kept = [amount if r in parts else 0 for r, amount in enumerate(each)]
    return node_need(replace(shape, gpus=kept[0], cpu_milli=kept[1], memory_bytes=kept[2]))


def node_need(shape: Shape) -> str:
    """What each node must have free, in words: `8 free h100 GPUs, 8 free CPUs, 64Gi free memory`."""
    kind = f" {shape.gpu_type}" if shape.gpu_type else ""
    parts = [f"{shape.gpus} free{kind} GPU{'s' if shape.gpus > 1 else ''}"] if shape.gpus else []
    parts += [f"{shape.cpu_milli / 1000:g} free CPU{'s' if shape.cpu_milli > 1000 else ''}"] if shape.cpu_milli else []
    parts += [f"{format_bytes(shape.memory_bytes)} free memory"] if shape.memory_bytes else []
    return ", ".join(parts)
