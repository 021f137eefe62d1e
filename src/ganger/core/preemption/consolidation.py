"""Consolidation: the cheapest moves of running gangs to other nodes after which a larger gang fits.

Only gangs whose job says so may be moved (`movable: true`). A plan names for each of them the nodes on which it goes
on, which are free when the plan is made or its own: so all moves are possible at once, and none depends on another. No
moved gang gets a node of the gang that they are made for.

Sets of gangs are tried from the cheapest on (`core.preemption.victim_order` has the cost), so the first one that works
costs least. Gangs of several nodes are placed one after the other, so a cheaper plan that takes them elsewhere may be
missed. With more sets than `MAX_SETS` the search goes on in the domain whose nodes cost least to free; then there may
be a cheaper plan too, or one although none is found.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from ganger.core.nodes.topology import slice_sums
from ganger.core.placement.start_check import find_placement, start_request
from ganger.core.preemption.victim_order import cheapest_first
from ganger.core.queues.quota import need
from ganger.core.state.allocations.allocations import added_shares
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State

MAX_SETS: Final = 1024
"""Sets of gangs that are considered from the cheapest on."""
MAX_SEARCHES: Final = 8
"""Searches in the cheapest domain, each without the gang that found no other place in the one before."""


class Move(NamedTuple):
    """A running gang and where it goes on."""

    gang: Gang
    shares: Shares


class Consolidation(NamedTuple):
    """Moves after which a gang fits.

    Attributes:
        goal: The gang that they are made for.
        shares: Where it fits then.
        moves: The moves.
        cost_ms: The GPU-milliseconds that they waste.
        is_cheapest: True if no cheaper plan exists.
    """

    goal: Gang
    shares: Shares
    moves: tuple[Move, ...]
    cost_ms: int
    is_cheapest: bool


FindPlace = Callable[[Gang, tuple[str, ...]], Shares | None]
"""Return where a running gang may go on, on its own nodes or free ones, without these nodes."""


class MoveSearch:
    """The search for moves after which a gang fits."""

    def __init__(self, state: State, goal: Gang, costs: dict[str, int], find_places: Sequence[FindPlace]) -> None:
        """Prepare the search; `costs` has the gangs that may be moved, and what that wastes of each.

        The ways to find places are tried one after the other, each for all gangs that move.
        """
        self._state, self._goal, self._costs, self._find_places = state, goal, costs, find_places
        self._gangs = sorted((state.gangs[name] for name in costs), key=lambda gang: (costs[gang.id], gang.number))
        self._room = _Room(state, goal)

    def find(self, now_ms: int, budget_ms: int | None) -> Consolidation | None:
        """Return moves that waste no more than the budget; None if the goal fits already, or none are found."""
        if find_placement(self._state, start_request(self._goal)):
            return None
        sets = cheapest_sets([self._costs[gang.id] for gang in self._gangs], budget_ms)
        plan = self._cheapest(islice(sets, MAX_SETS))
        return plan or (None if next(sets, None) is None else self._in_cheapest_domain(now_ms, budget_ms))

    def _cheapest(self, sets: Iterator[tuple[int, ...]]) -> Consolidation | None:
        for chosen in sets:
            gangs = [self._gangs[index] for index in chosen]
            for domain in self._room.domains_with(gangs):
                plan = self._plan(gangs, domain)
                if isinstance(plan, Consolidation):
                    is_exact = all(gang.shape.nodes == 1 for gang in self._gangs)
                    return plan._replace(is_cheapest=is_exact)
        return None

    def _in_cheapest_domain(self, now_ms: int, budget_ms: int | None) -> Consolidation | None:
        """Return a plan that moves what costs least on the nodes of the domain that costs least."""
        left = list(self._gangs)
        for _ in range(MAX_SEARCHES):
            order = cheapest_first(self._state, self._goal, left, now_ms)
            gangs = order.victims[: order.first_count]
            domains = self._room.domains_with(gangs)
            plan = self._plan(gangs, domains[0]) if domains else None
            if not isinstance(plan, Gang):
                return plan if plan is not None and plan.cost_ms <= (budget_ms or plan.cost_ms) else None
            left = [gang for gang in left if gang is not plan]
        return None

    def _plan(self, gangs: Sequence[Gang], domain: slice) -> Consolidation | Gang | None:
        """Return the plan that moves these gangs for the goal in a domain.

        None if it does not fit there all the same; the gang that has no other place if there is one.
        """
        shares = self._goal_without(gangs, domain)
        if shares is None:
            return None
        nodes = tuple({share.node: None for share in shares})
        blocked: Gang | None = None
        for find_place in self._find_places:
            moves = self._moves(gangs, nodes, find_place)
            if not isinstance(moves, Gang):
                cost_ms = sum(self._costs[gang.id] for gang in gangs)
                return Consolidation(self._goal, shares, moves, cost_ms, is_cheapest=False)
            blocked = blocked or moves
        return blocked

    def _moves(self, gangs: Sequence[Gang], avoided: tuple[str, ...], find_place: FindPlace) -> tuple[Move, ...] | Gang:
        """Return where the gangs go on, one beside the other; or the one that has no place."""
        moves: list[Move] = []
        with self._state.trial():
            # The largest first: small ones fit beside them.
            for gang in sorted(gangs, key=lambda gang: (-need(gang.shape)[0], -gang.shape.nodes, gang.number)):
                shares = find_place(gang, avoided)
                if shares is None:
                    return gang
                added = added_shares(self._state.allocations[gang.id], shares)
                self._state.nodes.take(gang.number, gang.shape, added)
                moves.append(Move(gang, shares))
        return tuple(moves)

    def _goal_without(self, gangs: Sequence[Gang], domain: slice) -> Shares | None:
        """Return where the goal fits in a domain once the gangs have left."""
        outside = np.ones(len(self._state.nodes.nodes), dtype=bool)
        outside[domain] = False
        with self._state.trial():
            for gang in gangs:
                self._state.release(gang)
            with self._state.nodes.excluding_at(np.flatnonzero(outside)):
                return find_placement(self._state, start_request(self._goal))


class _Room:
    """A necessary condition, cheaper than a placement: domains in which enough nodes have room for the goal."""

    def __init__(self, state: State, goal: Gang) -> None:
        nodes, part, layout = state.nodes, goal.shape.parts[0], goal.shape.layout
        self._state, self._needed = state, 1 if part.stacked else part.nodes
        topology = nodes.topology
        is_inside = layout.required and layout.level in topology.levels
        depth = topology.depth(layout.level) if is_inside else 0
        self._first = topology.first_node[depth]
        self._domain_of = np.repeat(np.arange(len(self._first) - 1), np.diff(self._first)).tolist()
        self._able = np.logical_or.reduce([nodes.able(choice) for choice in part.choices]) & nodes.ready
        self._wanted = part.devices, part.cpu_milli, part.memory_bytes
        fits = np.logical_and.reduce([free >= amount for free, amount in zip(nodes.free, self._wanted, strict=True)])
        self._fits = self._able & fits
        self._counts = slice_sums(self._fits.astype(np.int64), self._first)

    def domains_with(self, released: Sequence[Gang]) -> list[slice]:
        """Return the domains that may have room once these gangs have left, those with the least to spare first."""
        counts = self._counts.copy()
        for index, amounts in self._freed(released).items():
            if self._able[index] and not self._fits[index]:
                free = (int(amount[index]) for amount in self._state.nodes.free)
                left = [before + amount for before, amount in zip(free, amounts, strict=True)]
                counts[self._domain_of[index]] += all(
                    has >= wants for has, wants in zip(left, self._wanted, strict=True)
                )
        domains = np.flatnonzero(counts >= self._needed)
        order = domains[np.argsort(counts[domains], kind="stable")].tolist()
        return [slice(int(self._first[domain]), int(self._first[domain + 1])) for domain in order]

    def _freed(self, released: Sequence[Gang]) -> dict[int, list[int]]:
        """Return by node what the gangs free there: GPUs, CPU and memory; a share of a device counts as a whole one."""
        freed: dict[int, list[int]] = {}
        for gang in released:
            for held, _, indices in self._state.allocations.by_part(gang.id):
                for index in indices.tolist():
                    amounts = freed.setdefault(index, [0, 0, 0])
                    for resource, amount in enumerate((held.devices, held.cpu_milli, held.memory_bytes)):
                        amounts[resource] += amount
        return freed


def cheapest_sets(costs: Sequence[int], budget_ms: int | None) -> Iterator[tuple[int, ...]]:
    """Yield the sets of indices of rising costs within the budget, the cheapest set first.

    Each set follows from one other: its last index is replaced by the next one, or the next one is added.
    """
    heap: list[tuple[int, tuple[int, ...]]] = [(costs[0], (0,))] if costs else []
    while heap:
        total_ms, chosen = heappop(heap)
        if budget_ms is not None and total_ms > budget_ms:
            return
        yield chosen
        last = chosen[-1]
        if last + 1 < len(costs):
            heappush(heap, (total_ms + costs[last + 1], (*chosen, last + 1)))
            heappush(heap, (total_ms - costs[last] + costs[last + 1], (*chosen[:-1], last + 1)))
