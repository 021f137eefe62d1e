"""How many of a part go to which node, when it is known how many each could take: a walk down the levels.

Called by `core.place`. Rule: the lowest level that has a domain which holds it all, a single node being the lowest;
among these domains the one that is left with the least; inside it as few domains of the next level as possible, the
last of them as tight as can be; and so on down to the nodes, those first that are left with the least. Ties: the domain
around it that is left with the least, then topology order. Source of the idea: buddy cells (HiveD, OSDI 2020) and the
best fit of Kueue's topology-aware scheduling (reference: scheduling, section 2).
"""

from collections.abc import Callable

import numpy as np

from ganger.core.nodes import NodeTable
from ganger.core.topology import Ints

Divide = Callable[[int, int, int], Ints]
"""How many of a quota each of the domains, or nodes, first : last gets: (first, last, quota) -> (last - first,)."""


def lay_out(nodes: NodeTable, times: Ints, wanted: int) -> tuple[Ints, Ints] | None:
    """Nodes, rising, and how many each takes, `wanted` in all; None when there is no room. times: (N,) how many each
    could take."""
    rooms = [*nodes.topology.sums(times), times]
    if int(rooms[0][0]) < wanted:
        return None
    depth = max(depth for depth, room in enumerate(rooms) if (room >= wanted).any())
    at, quota = np.array([_home(nodes, rooms, depth, wanted)]), np.array([wanted])
    for above in range(depth, len(rooms) - 1):
        to_nodes = above == len(rooms) - 2
        divide = _by_tightness(nodes, times) if to_nodes else _into_few(rooms[above + 1])
        first = nodes.topology.first_child[above]
        at, quota = _down(first, (rooms[above], rooms[above + 1]), (at, quota), divide)
    order = np.argsort(at, kind="stable")
    return at[order], quota[order]


def tightest(nodes: NodeTable, among: Ints) -> Ints:
    """Nodes with the least left first: GPUs, then CPUs, then memory; ties in topology order."""
    keys = (nodes.free_memory_bytes[among], nodes.free_cpu_milli[among], nodes.free_gpus[among])
    return among[np.lexsort(keys)]


def _home(nodes: NodeTable, rooms: list[Ints], depth: int, wanted: int) -> int:
    """Of the domains of a depth that hold it all the one that is left with the least; nodes are the deepest."""
    topology = nodes.topology
    found: Ints = np.flatnonzero(rooms[depth] >= wanted)
    if depth == len(rooms) - 1:
        for left in (nodes.free_gpus, nodes.free_cpu_milli, nodes.free_memory_bytes):
            found = _least(found, left[found])
        depth, around = depth - 1, topology.domain_of(found)
    else:
        around = found
    while depth and found.size > 1:
        room = rooms[depth][around]
        found, around = _least(found, room), topology.inside[depth][_least(around, room)]
        depth -= 1
    return int(found[0])


def _least(found: Ints, values: Ints) -> Ints:
    return found[values == values.min()] if found.size > 1 else found


def _down(first: Ints, rooms: tuple[Ints, Ints], shared: tuple[Ints, Ints], divide: Divide) -> tuple[Ints, Ints]:
    """From domains and the quota of each to what is one depth below. rooms: of both depths; one that is to be filled
    hands all that it has to those below it."""
    at, quota = shared
    filled = quota == rooms[0][at]
    below = [_ranges(first, at[filled])]
    quotas = [rooms[1][below[0]]]
    for domain, its in zip(at[~filled].tolist(), quota[~filled].tolist(), strict=True):
        begin, end = int(first[domain]), int(first[domain + 1])
        below.append(np.arange(begin, end))
        quotas.append(divide(begin, end, its))
    every, each = np.concatenate(below), np.concatenate(quotas)
    return every[each > 0], each[each > 0]


def _ranges(first: Ints, at: Ints) -> Ints:
    """All of first[d] : first[d + 1], for each d in `at`."""
    sizes = first[at + 1] - first[at]
    ends = np.cumsum(sizes)
    found: Ints = np.arange(ends[-1] if ends.size else 0) + np.repeat(first[at] - ends + sizes, sizes)
    return found


def _into_few(rooms: Ints) -> Divide:
    """As few domains as possible: the fullest are filled, the rest goes to the tightest that holds all of it."""

    def divide(begin: int, end: int, quota: int) -> Ints:
        room = rooms[begin:end]
        order = np.argsort(-room, kind="stable")
        total = np.cumsum(room[order])
        full = int(np.searchsorted(total, quota))
        rest = quota - int(total[full - 1]) if full else quota
        holds = order[full:][room[order[full:]] >= rest]
        given = np.zeros_like(room)
        given[order[:full]] = room[order[:full]]
        given[_least(holds, room[holds]).min()] = rest
        return given

    return divide


def _by_tightness(nodes: NodeTable, times: Ints) -> Divide:
    """Nodes with the least left first, each as much as it holds."""

    def divide(begin: int, end: int, quota: int) -> Ints:
        order = tightest(nodes, np.arange(begin, end)[times[begin:end] > 0])
        before = np.cumsum(times[order]) - times[order]
        given = np.zeros(end - begin, dtype=np.int64)
        given[order - begin] = np.clip(quota - before, 0, times[order])
        return given

    return divide
