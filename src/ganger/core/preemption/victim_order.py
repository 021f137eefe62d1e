"""The order in which victims are released: those first that free the cheapest nodes in the cheapest domain.

The cost of a gang is what stopping it wastes: the work since its newest checkpoint, and the time that it takes to start
again, times its GPUs. A node is freed by its gangs with the least cost for what they hold there; a gang that is chosen
for one node costs nothing on the others. Domains are those in which the pending gang has to fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from operator import add, itemgetter
from typing import Final, NamedTuple

import numpy as np

from ganger.core.placement.start_check import start_request
from ganger.core.queues.quota import need
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.job import GangState
from ganger.model.shape import Shape

MAX_OF_NEED: Final = 2
"""Nodes of a domain that are put in order, as a multiple of those that the pending gang needs."""

Amounts = tuple[int, ...]
"""GPUs, CPU and memory, and the extended resources of the pending gang."""
Costs = dict[str, int]
"""By gang; 0 for one that is stopped anyway."""


def cost(gang: Gang, now_ms: int) -> int:
    """Return the GPU-milliseconds (node-milliseconds without GPUs) that stopping a gang now wastes.

    Keeping a gang from starting wastes next to nothing, the less the smaller it is.
    """
    size = need(gang.shape)[0] or 1000 * gang.shape.all_nodes
    wasted_ms = 1 if gang.state is GangState.PENDING else unsaved_ms(gang, now_ms) + _restart_ms(gang)
    return size * wasted_ms // 1000


def unsaved_ms(gang: Gang, now_ms: int) -> int:
    """Return the work of a running gang since its newest checkpoint."""
    account = gang.account
    working_ms = now_ms - account.since_ms if account.part == "working" else 0
    return account.unsaved_ms + working_ms


def _restart_ms(gang: Gang) -> int:
    """Return how long it took to start, in the mean of its attempts so far; 0 for one that never got so far."""
    recovery_ms = sum(loss.recovery_ms for loss in gang.account.losses)
    return (gang.account.starting_ms + recovery_ms) // max(1, gang.attempt.generation)


class VictimOrder(NamedTuple):
    """Victims in the order in which to release them, and how many of them free enough nodes, if nothing else binds."""

    victims: list[Gang]
    first_count: int = 1


def cheapest_first(state: State, gang: Gang, victims: Sequence[Gang], now_ms: int) -> VictimOrder:
    """Return the order of the victims for a pending gang; none if they are all too few.

    Those of no use come last.

    Of a gang of several parts the first decides the order, and a share of a device counts as a whole one: then the
    choice is legal and minimal, but perhaps not the cheapest.
    """
    shape = gang.shape
    costs = {victim.id: cost(victim, now_ms) for victim in victims}
    by_name = {victim.id: victim for victim in victims}
    nodes = _nodes(state, gang, costs)
    if len(nodes) < (1 if shape.parts[0].stacked else shape.parts[0].nodes):
        return VictimOrder([])
    by_domain = _cheapest_domains(state, shape, nodes, costs)
    order = dict.fromkeys(name for domain in by_domain for node in domain for name in node)
    order |= dict.fromkeys(sorted(costs, key=lambda name: (costs[name], by_name[name].number)))
    enough = sum(len(names) for names in by_domain[0][: shape.all_nodes]) if by_domain else 1
    return VictimOrder([by_name[name] for name in order], max(1, enough))


@dataclass(slots=True)
class _Node:
    """A node that the gang may use: its index, what is missing there, and what each of the victims on it holds."""

    index: int
    missing: Amounts
    held: dict[str, Amounts] = field(default_factory=dict)

    def victims(self, costs: Costs) -> list[str] | None:
        """Return the victims to stop so that nothing is missing, the best value first; None if all are too few."""
        missing, chosen = list(self.missing), list[str]()
        for name in sorted(self.held, key=lambda name: (costs[name] / self._use(name), name)):
            if max(missing) <= 0:
                break
            held = self.held[name]
            if any(amount > 0 and lack > 0 for amount, lack in zip(held, missing, strict=True)):
                chosen.append(name)
                missing = [lack - amount for lack, amount in zip(missing, held, strict=True)]
        return chosen if max(missing) <= 0 else None

    def _use(self, name: str) -> float:
        """Return how much of what is missing a victim holds, added up over the resources, more than 0."""
        lacking = ((amount, lack) for amount, lack in zip(self.held[name], self.missing, strict=True) if lack > 0)
        return sum(min(amount, lack) / lack for amount, lack in lacking) or 1e-9


def _nodes(state: State, gang: Gang, costs: Costs) -> dict[int, _Node]:
    """Return the nodes that can hold a node of the first part for its time, by index, with the victims on them.

    Nodes that would be too full without all victims are left out, by one count over all of them.
    """
    table, part = state.nodes, gang.shape.parts[0]
    is_able = np.logical_or.reduce([table.able(choice) for choice in part.choices]) & table.ready & ~table.held
    is_able[[table.index[name] for name in gang.avoids if name in table.index]] = False
    if state.maintenance:
        is_able[state.maintenance.unavailable(table, start_request(gang).stays_ms)] = False
    for gpu_type in state.tree.closed_types(gang.queue, gang.shape, ever=True):
        is_able &= ~table.attributes.of_type(gpu_type)
    names = [name for name, _ in part.extended if name in table.extended.free]
    wanted = _amounts_of(part, names)
    free_now = [free.copy() for free in (*table.free, *map(table.extended.free.__getitem__, names))]
    if table.reserved is not None:
        reserved = (table.reserved.gpus, table.reserved.cpu_milli, table.reserved.memory_bytes)
        for free, kept in zip(free_now, (*reserved, *(table.reserved.extended[name] for name in names)), strict=True):
            free[table.reserved.at] -= kept
    could_be_free = [free.copy() for free in free_now]
    held_by = {
        name: [(_amounts_of(held, names), at) for held, _, at in state.allocations.by_part(name)] for name in costs
    }
    for amounts, at in chain.from_iterable(held_by.values()):
        for free, amount in zip(could_be_free, amounts, strict=True):
            np.add.at(free, at, amount)
    for free, amount in zip(could_be_free, wanted, strict=True):
        is_able &= free >= amount
    usable = np.flatnonzero(is_able)
    nodes = {
        index: _Node(index, tuple(amount - has for amount, has in zip(wanted, free, strict=True)))
        for index, *free in zip(usable.tolist(), *(free[usable].tolist() for free in free_now), strict=True)
    }
    for name, parts in held_by.items():
        for amounts, at in parts:
            for index in at[is_able[at]].tolist():
                before = nodes[index].held.get(name)
                nodes[index].held[name] = tuple(map(add, before, amounts)) if before else amounts
    return nodes


def _amounts_of(part: Shape, names: Sequence[str]) -> Amounts:
    """Return what a node of a part holds, with these extended resources."""
    amounts = (part.devices, part.cpu_milli, part.memory_bytes)
    if not names:
        return amounts
    extended = dict(part.extended)
    return (*amounts, *(extended.get(name, 0) for name in names))


def _cheapest_domains(state: State, shape: Shape, nodes: dict[int, _Node], costs: Costs) -> list[list[list[str]]]:
    """Return the victims on the nodes of each domain, in their order; the domain with the cheapest room first."""
    topology, level = state.nodes.topology, shape.layout.level
    domains = topology.domain[topology.depth(level) - 1].tolist() if level in topology.levels else None
    members: dict[int, dict[int, _Node]] = {}
    for index, node in nodes.items():
        members.setdefault(domains[index] if domains else 0, {})[index] = node
    priced: list[tuple[bool, int, list[list[str]]]] = []
    for of_domain in members.values():
        order = list(islice(_by_price(of_domain, costs), MAX_OF_NEED * shape.all_nodes))
        price = sum(price for price, _ in order[: shape.all_nodes])
        priced.append((len(order) < shape.all_nodes, price, [names for _, names in order]))
    return [victims for *_, victims in sorted(priced, key=itemgetter(0, 1))]


def _by_price(nodes: dict[int, _Node], costs: Costs) -> Iterator[tuple[int, list[str]]]:
    """Yield for each node, the cheapest first, what it costs beside those before, and the victims that this takes."""
    costs, on_nodes, heap = dict(costs), dict[str, list[int]](), list[tuple[int, int]]()
    for index, node in nodes.items():
        for name in node.held:
            on_nodes.setdefault(name, []).append(index)
        if (names := node.victims(costs)) is not None:
            heap.append((sum(costs[name] for name in names), index))
    heapify(heap)
    left, chosen = dict(nodes), dict[str, None]()
    while heap:
        price, index = heappop(heap)
        if index not in left:
            continue  # it was cheaper
        names = [name for name in left.pop(index).victims(costs) or () if name not in chosen]
        yield price, names
        for name in names:
            chosen[name], costs[name] = None, 0
        for other in {index: None for name in names for index in on_nodes[name] if index in left}:
            heappush(heap, (sum(costs[name] for name in left[other].victims(costs) or ()), other))
