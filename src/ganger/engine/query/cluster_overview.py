"""The cluster and the queue at one glance: nodes as cells, folded by domain where there are many; queues; who is next.

Called by `engine.service` for `ganger top`, on the state that questions are answered from. Reads, and decides nothing.
"""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints, up
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import need
from ganger.core.state.gang import Gang, class_text
from ganger.core.state.state import State
from ganger.engine.query.listing_rows import queue_rows
from ganger.model.pending_reason import sentence
from ganger.model.shape import Shape
from ganger.model.views.overview import Block, Cell, Next, Order, Overview

MOST_CELLS: Final = 1_024
"""Beyond that many nodes a cell is a domain of the lowest level, beyond that many of these one of the level above."""
NEXT: Final = 12
"""Of those who wait: the ones that are told of."""


def overview(state: State, now_ms: int, policy: Policy, order: Order = "turn") -> Overview:
    """As it is now; those who wait in that order."""
    state.windows.now_ms = now_ms
    table, topology = state.nodes, state.nodes.topology
    depth, (whole, used, out) = _depth(state), _amounts(state)
    queues = tuple(queue_rows(state))
    states = [str(table.shown_state(at)) for at in range(len(table.nodes))]
    return Overview(
        at_ms=now_ms,
        policy=policy.NAME,
        levels=topology.levels,
        cell="node" if depth > len(topology.levels) else topology.levels[depth - 1],
        nodes={each: states.count(each) for each in sorted(dict.fromkeys(states))},
        unit="GPUs" if table.gpus.any() else "CPUs",
        whole=int(whole.sum()),
        used=int(used.sum()),
        out=int(out.sum()),
        blocks=tuple(_blocks(state, depth)),
        queues=queues,
        pending=queues[0].pending,
        running=queues[0].running,
        order=order,
        next=tuple(_turns(state, now_ms, policy) if order == "turn" else _first(state, now_ms, order)),
    )


def _depth(state: State) -> int:
    """Of the domains, or nodes, that are cells: the deepest of which there are not too many."""
    firsts = state.nodes.topology.first_node
    depth = len(firsts)
    while depth > 1 and (len(state.nodes.nodes) if depth == len(firsts) else len(firsts[depth])) > MOST_CELLS:
        depth -= 1
    return depth


def _blocks(state: State, depth: int) -> Iterator[Block]:
    """Domains, each with the cells inside it."""
    table, topology = state.nodes, state.nodes.topology
    cells = list(_cells(state, depth))
    firsts = topology.first_node[depth] if depth < len(topology.first_node) else np.arange(len(table.nodes))
    bounds = [*np.searchsorted(firsts, topology.first_node[depth - 1]).tolist(), len(cells)]
    for at in range(len(bounds) - 1):
        if bounds[at] < bounds[at + 1]:
            yield Block(name=topology.name(depth - 1, at), cells=tuple(cells[bounds[at] : bounds[at + 1]]))


def _amounts(state: State) -> tuple[Ints, Ints, Ints]:
    """(N,) what each node has, what is held of it, and what is not and nobody can have, being out of service or used by
    others: GPUs, or whole CPUs where no node has a GPU."""
    table = state.nodes
    has_gpus = bool(table.gpus.any())
    whole, free = (table.gpus, table.free_gpus) if has_gpus else (table.cpu_milli, table.free_cpu_milli)
    each = 1 if has_gpus else 1000
    whole, free = whole.astype(np.int64) // each, free.astype(np.int64) // each
    others = np.zeros_like(free) if table.foreign is None or not has_gpus else table.foreign.astype(np.int64)
    return whole, whole - free - others, others + np.where(_serves(state), 0, free)


def _serves(state: State) -> NDArray[np.bool_]:
    """(N,) nodes that take something new: in service, and not in maintenance."""
    serves = state.nodes.ready.copy()
    serves[
        [state.nodes.index[name] for name in state.windows.under_way(state.windows.now_ms) if name in state.nodes.index]
    ] = False
    return serves


def _cells(state: State, depth: int) -> Iterator[Cell]:
    table, topology = state.nodes, state.nodes.topology
    whole, used, out = _amounts(state)
    if depth == len(topology.first_node):
        states = map(table.shown_state, range(len(table.nodes)))
        every = zip(table.names, whole.tolist(), used.tolist(), out.tolist(), states, strict=True)
        for name, amount, held, gone, its in every:
            yield Cell(name=name, nodes=1, whole=amount, used=held, out=gone, state=its)
        return
    first = topology.first_node[depth]
    sums = [_sums(each, first) for each in (np.ones(len(table.nodes), dtype=np.int64), whole, used, out)]
    for at, (nodes, amount, held, gone) in enumerate(zip(*sums, strict=True)):
        name = topology.name(depth, at).rpartition("/")[2]
        yield Cell(name=name, nodes=nodes, whole=amount, used=held, out=gone)


def _sums(amounts: NDArray[np.integer[Any]], first: Ints) -> list[int]:
    found: list[int] = up(amounts.astype(np.int64), first).tolist()
    return found


def _turns(state: State, now_ms: int, policy: Policy) -> Iterator[Next]:
    """Those who are promised a start, the first to start first; then those whose turn is next."""
    promised = [
        (each.start_ms, state.gangs[each.gang]) for each in state.promises.values() if each.start_ms is not None
    ]
    told: dict[str, None] = {}
    for _, gang in sorted(promised, key=lambda of: (of[0], of[1].number))[:NEXT]:
        told[gang.id] = None
        yield _row(state, gang, now_ms)
    lines = [line.entries for line in state.lines(policy).of.values()]
    heads = [entry.gang for entries in lines for entry in entries[:NEXT]]
    for gang in nsmallest(NEXT, heads, key=lambda gang: policy.key(gang, state, now_ms)):
        if gang.id not in told and len(told) < NEXT:
            told[gang.id] = None
            yield _row(state, gang, now_ms)


def _first(state: State, now_ms: int, order: Order) -> Iterator[Next]:
    """Those of all who wait that are first in an order that is no policy's."""
    known: dict[Shape, int] = {}

    def asks(shape: Shape) -> int:
        if shape not in known:
            known[shape] = need(shape)[0]
        return known[shape]

    keys: dict[Order, Callable[[Gang], Any]] = {
        "wait": lambda gang: gang.since_ms,
        "gpus": lambda gang: -asks(gang.shape),
        "priority": lambda gang: -gang.job.spec.priority,
        "user": lambda gang: gang.job.user,
        "queue": lambda gang: gang.queue,
    }
    key = keys[order]
    waiting = (gang for members in state.classes.values() for gang in members)
    for gang in nsmallest(NEXT, waiting, key=lambda gang: (key(gang), gang.number)):
        yield _row(state, gang, now_ms)


def _row(state: State, gang: Gang, now_ms: int) -> Next:
    reason, promise = state.waits.get(class_text(gang.class_key)), state.promises.get(gang.id)
    return Next(
        job=gang.id,
        user=gang.job.user,
        queue=gang.queue,
        shape=str(gang.shape),
        gpu_milli=need(gang.shape)[0],
        priority=gang.job.spec.priority,
        waited_ms=now_ms - gang.since_ms,
        promised_ms=promise.start_ms if promise else None,
        sentence=sentence(reason) if reason else "",
    )
