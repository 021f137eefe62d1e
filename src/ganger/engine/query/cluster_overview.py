"""Overview of the cluster and its queues for `ganger top`: nodes as cells, large clusters by domain, the next jobs."""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.largest_gangs import largest_gangs
from ganger.core.nodes.topology import Ints, slice_sums
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import need
from ganger.core.state.gang import Gang, class_text
from ganger.core.state.state import State
from ganger.engine.query.listing_rows import queue_rows
from ganger.model.pending_reason import sentence
from ganger.model.shape import Shape
from ganger.model.views.overview import Block, Cell, NextJob, Order, Overview

MAX_CELLS: Final = 1_024
"""With more nodes than this a cell is a domain of the lowest level; with more of these, of the level above."""
MAX_NEXT: Final = 12
"""Maximum number of pending jobs shown."""


def overview(state: State, now_ms: int, policy: Policy, order: Order = "policy") -> Overview:
    """Return the overview as of now, with pending jobs in that order."""
    state.maintenance.now_ms = now_ms
    table, topology = state.nodes, state.nodes.topology
    depth, (whole, used, out) = _depth(state), _amounts(state)
    queues = tuple(queue_rows(state))
    states = [str(table.display_state(index)) for index in range(len(table.nodes))]
    return Overview(
        at_ms=now_ms,
        policy=policy.NAME,
        levels=topology.levels,
        cell="node" if depth > len(topology.levels) else topology.levels[depth - 1],
        nodes={node_state: states.count(node_state) for node_state in sorted(dict.fromkeys(states))},
        unit="GPUs" if table.total.gpus.any() else "CPUs",
        total=int(whole.sum()),
        used=int(used.sum()),
        unavailable=int(out.sum()),
        blocks=tuple(_blocks(state, depth)),
        queues=queues,
        pending=queues[0].pending,
        running=queues[0].running,
        order=order,
        next=tuple(
            _next_in_policy_order(state, now_ms, policy) if order == "policy" else _next_in_order(state, now_ms, order)
        ),
        fragmentation=largest_gangs(table),
    )


def _depth(state: State) -> int:
    """Return the level of the cells: the deepest one of which there are not too many domains, or nodes."""
    first_nodes = state.nodes.topology.first_node
    depth = len(first_nodes)
    while depth > 1 and (len(state.nodes.nodes) if depth == len(first_nodes) else len(first_nodes[depth])) > MAX_CELLS:
        depth -= 1
    return depth


def _blocks(state: State, depth: int) -> Iterator[Block]:
    """Yield domains, each with the cells inside it."""
    table, topology = state.nodes, state.nodes.topology
    cells = list(_cells(state, depth))
    first_nodes = topology.first_node[depth] if depth < len(topology.first_node) else np.arange(len(table.nodes))
    bounds = [*np.searchsorted(first_nodes, topology.first_node[depth - 1]).tolist(), len(cells)]
    for index in range(len(bounds) - 1):
        if bounds[index] < bounds[index + 1]:
            yield Block(name=topology.name(depth - 1, index), cells=tuple(cells[bounds[index] : bounds[index + 1]]))


def _amounts(state: State) -> tuple[Ints, Ints, Ints]:
    """Return per node what it has, what is allocated, and what is unavailable, as arrays of shape (N,).

    Unavailable is what is free on nodes out of service, and what foreign pods use. Amounts are GPUs, or whole CPUs
    where no node has a GPU.
    """
    table = state.nodes
    has_gpus = bool(table.total.gpus.any())
    whole, free = (table.total.gpus, table.free.gpus) if has_gpus else (table.total.cpu_milli, table.free.cpu_milli)
    unit = 1 if has_gpus else 1000
    whole, free = whole.astype(np.int64) // unit, free.astype(np.int64) // unit
    of_others = table.occupancy.foreign if has_gpus else None
    foreign = np.zeros_like(free) if of_others is None else of_others.astype(np.int64)
    return whole, whole - free - foreign, foreign + np.where(_in_service(state), 0, free)


def _in_service(state: State) -> NDArray[np.bool_]:
    """Return a mask (N,) of the nodes that accept new work: in service, and not in maintenance."""
    mask = state.nodes.ready.copy()
    mask[
        [
            state.nodes.index[name]
            for name in state.maintenance.affected_nodes(state.maintenance.now_ms)
            if name in state.nodes.index
        ]
    ] = False
    return mask


def _cells(state: State, depth: int) -> Iterator[Cell]:
    table, topology = state.nodes, state.nodes.topology
    whole, used, out = _amounts(state)
    if depth == len(topology.first_node):
        states = map(table.display_state, range(len(table.nodes)))
        rows = zip(table.attributes.names, whole.tolist(), used.tolist(), out.tolist(), states, strict=True)
        for name, amount, allocated, out_amount, node_state in rows:
            yield Cell(name=name, nodes=1, total=amount, used=allocated, unavailable=out_amount, state=node_state)
        return
    first = topology.first_node[depth]
    sums = [_domain_sums(amounts, first) for amounts in (np.ones(len(table.nodes), dtype=np.int64), whole, used, out)]
    for index, (nodes, amount, allocated, out_amount) in enumerate(zip(*sums, strict=True)):
        name = topology.name(depth, index).rpartition("/")[2]
        yield Cell(name=name, nodes=nodes, total=amount, used=allocated, unavailable=out_amount)


def _domain_sums(amounts: NDArray[np.integer[Any]], first: Ints) -> list[int]:
    sums: list[int] = slice_sums(amounts.astype(np.int64), first).tolist()
    return sums


def _next_in_policy_order(state: State, now_ms: int, policy: Policy) -> Iterator[NextJob]:
    """Yield gangs with a reserved start, the first to start first; then the next ones in policy order."""
    reserved = [
        (reserved_start.start_ms, state.gangs[reserved_start.gang])
        for reserved_start in state.reservations.values()
        if reserved_start.start_ms is not None
    ]
    shown: dict[str, None] = {}
    for _, gang in sorted(reserved, key=lambda pair: (pair[0], pair[1].number))[:MAX_NEXT]:
        shown[gang.id] = None
        yield _next_row(state, gang, now_ms)
    lanes = [lane.entries for lane in state.pending.lanes(policy).by_key.values()]
    heads = [entry.gang for entries in lanes for entry in entries[:MAX_NEXT]]
    for gang in nsmallest(MAX_NEXT, heads, key=lambda gang: policy.key(gang, state, now_ms)):
        if gang.id not in shown and len(shown) < MAX_NEXT:
            shown[gang.id] = None
            yield _next_row(state, gang, now_ms)


def _next_in_order(state: State, now_ms: int, order: Order) -> Iterator[NextJob]:
    """Yield the pending gangs that are first in an order other than the policy's."""
    demands: dict[Shape, int] = {}

    def gpu_demand(shape: Shape) -> int:
        if shape not in demands:
            demands[shape] = need(shape)[0]
        return demands[shape]

    keys: dict[Order, Callable[[Gang], Any]] = {
        "wait": lambda gang: gang.since_ms,
        "gpus": lambda gang: -gpu_demand(gang.shape),
        "priority": lambda gang: -gang.job.spec.priority,
        "user": lambda gang: gang.job.user,
        "queue": lambda gang: gang.queue,
    }
    key = keys[order]
    pending = (gang for members in state.pending.classes.values() for gang in members)
    for gang in nsmallest(MAX_NEXT, pending, key=lambda gang: (key(gang), gang.number)):
        yield _next_row(state, gang, now_ms)


def _next_row(state: State, gang: Gang, now_ms: int) -> NextJob:
    reason, reserved = state.pending.reasons.get(class_text(gang.class_key)), state.reservations.get(gang.id)
    return NextJob(
        job=gang.id,
        user=gang.job.user,
        queue=gang.queue,
        shape=str(gang.shape),
        gpu_milli=need(gang.shape)[0],
        priority=gang.job.spec.priority,
        waited_ms=now_ms - gang.since_ms,
        reserved_start_ms=reserved.start_ms if reserved else None,
        sentence=sentence(reason) if reason else "",
    )
