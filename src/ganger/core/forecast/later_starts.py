"""Starts of the gangs far back in the queue: each starts when the work before it is done, at the rate of its nodes.

Work is the dominant part that a gang takes of the nodes suitable for it, times its run time. Which node is free when
does not matter far back, so columns over all gangs replace their simulation.

For each set of nodes that some demands are limited to (a pool), in the order of the queue:

    start = begin + (work before it, of all gangs that use the pool) / (part of the pool that is not held for ever)

Gangs of unknown run time do no work that ends: they take their part of the pool from all behind them. The cost is that
of a sort and of one prefix sum for each pool, O(gangs (log gangs + pools)), where a simulation takes O(gangs nodes).
It ignores packing, and so is early on a pool of large gangs; the learned range of errors covers that.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ganger.core.forecast.node_schedule import Bools
from ganger.core.nodes.node_arrays import extended_needs
from ganger.core.nodes.topology import Ints
from ganger.core.queue_order.policy_interface import LaneHeads, Policy
from ganger.core.queues.share_bounds import Floats
from ganger.core.reservations.availability_profile import suitable_nodes
from ganger.core.state.gang import Gang
from ganger.core.state.pending import PendingLanes
from ganger.core.state.pending_index import DEMAND, NUMBER, OWNER, PRIORITY, STAYS, SUBMITTED, NodeDemand
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State

MIN_LEFT: Final = 0.01
"""The part of the nodes that must not be held by gangs of unknown run time; with less left no start is known."""


class LaterStarts(NamedTuple):
    """Starts of pending gangs: the numbers of the gangs, rising, and when each starts; NEVER_MS for unknown."""

    number: Ints
    start_ms: Ints

    def of(self, gang: Gang) -> int:
        """Return when a gang starts."""
        position = int(np.searchsorted(self.number, gang.number))
        is_included = position < len(self.number) and self.number[position] == gang.number
        return int(self.start_ms[position]) if is_included else NEVER_MS


NO_STARTS: Final = LaterStarts(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def later_starts(state: State, policy: Policy, now_ms: int, simulated: Ints, begin_ms: int) -> LaterStarts:
    """Return the starts of all gangs but those `simulated`, by number; the first of them starts at `begin_ms`."""
    lanes = state.pending.lanes(policy)
    columns = _columns(lanes)
    owners, numbers = list(lanes.owners), columns[NUMBER]
    heads = LaneHeads(owners, columns[OWNER], numbers, columns[SUBMITTED], columns[PRIORITY], columns[STAYS])
    order = np.lexsort((numbers, policy.key_lower_bound(heads, state, now_ms)))
    order = order[~np.isin(numbers[order], simulated)]
    numbers, demands, run_ms = columns[NUMBER][order], columns[DEMAND][order], columns[STAYS][order]
    counts, is_endless = _element_counts(state, numbers), run_ms >= NEVER_MS
    start_ms: Ints = np.full(len(order), NEVER_MS, dtype=np.int64)
    for is_member, parts in _parts_by_pool(state, lanes):
        parts_taken = parts[demands] * counts
        left = 1 - np.cumsum(np.where(is_endless, parts_taken, 0))
        work_ms = np.where(is_endless, 0, parts_taken * run_ms) / np.maximum(left, MIN_LEFT)
        own = is_member[demands] & (left > MIN_LEFT)
        start_ms[own] = begin_ms + (np.cumsum(work_ms) - work_ms)[own].astype(np.int64)
    by_number = np.argsort(numbers, kind="stable")
    return LaterStarts(numbers[by_number], start_ms[by_number])


def _columns(lanes: PendingLanes) -> Ints:
    """Return the columns of the job classes, for each gang instead of the oldest."""
    rows = lanes.index.rows
    lengths = np.array([len(row.entries) for row in rows], dtype=np.int64)
    columns = np.repeat(lanes.index.cells, lengths, axis=1)
    begins = np.cumsum(lengths) - lengths
    for row in np.flatnonzero(lengths > 1).tolist():
        gangs = slice(begins[row], begins[row] + lengths[row])
        columns[NUMBER, gangs] = [entry.gang.number for entry in rows[row].entries]
        columns[SUBMITTED, gangs] = [entry.gang.submitted_ms for entry in rows[row].entries]
    return columns


def _element_counts(state: State, numbers: Ints) -> Ints:
    """Return how many starts each gang stands for: one, or the elements of an array."""
    counts: Ints = np.ones(len(numbers), dtype=np.int64)
    for array in state.arrays.values():
        counts[numbers == array.number] = max(1, array.starts)
    return counts


def _parts_by_pool(state: State, lanes: PendingLanes) -> Iterator[tuple[Bools, Floats]]:
    """Yield for each set of nodes (demands,) True for demands that are met there alone, and what each takes of it.

    Of a demand that other nodes satisfy too, the part counts that would be in the set by its size.
    """
    size, pools = lanes.demand_numbers.limit, dict[bytes, tuple[Bools, list[NodeDemand]]]()
    for demand in lanes.demands.values():
        suitable = _suitable_nodes(state, demand)
        pools.setdefault(suitable.tobytes(), (suitable, []))[1].append(demand)
    for suitable, members in pools.values():
        is_member, parts = np.zeros(size, dtype=bool), np.zeros(size)
        is_member[[demand.slot for demand in members]] = True
        totals = _totals(state, suitable)
        for other, demands in pools.values():
            shared = float((suitable & other).sum()) / max(1, int(other.sum()))
            for demand in demands if shared else ():
                parts[demand.slot] = shared * _dominant_part(demand, totals, state.nodes.extended.names)
        yield is_member, parts


def _suitable_nodes(state: State, demand: NodeDemand) -> Bools:
    nodes = state.nodes
    by_choice = [suitable_nodes(nodes, choice) for choice in demand.parts[0].choices]
    suitable: Bools = np.logical_or.reduce(by_choice) & nodes.ready
    return suitable


def _totals(state: State, suitable: Bools) -> Floats:
    """Return the GPUs, CPUs, memory and extended resources of these nodes, at least one of each."""
    nodes = state.nodes
    amounts = (*nodes.total, *nodes.extended.total.values())
    return np.array([max(1, int(amount[suitable].sum())) for amount in amounts], dtype=np.float64)


def _dominant_part(demand: NodeDemand, totals: Floats, extended: tuple[str, ...]) -> float:
    """Return the largest part that a gang takes of any of the resources."""
    of_parts = [
        (part.devices, part.cpu_milli, part.memory_bytes, *extended_needs(part, extended)) for part in demand.parts
    ]
    needs = np.array(of_parts, dtype=np.float64)
    counts = np.array([part.nodes for part in demand.parts])
    return float(np.max(counts @ needs / totals))
