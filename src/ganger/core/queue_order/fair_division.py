"""Fair number of GPUs of each queue at present: guarantees first, the rest by weight, by demand.

Shown beside what queues hold; no order depends on it. GPUs are whole: a remainder goes where the next one costs least,
so that all that is requested and available is divided. Source: KAI's division (reference: scheduling, section 2), with
whole GPUs instead of repeated passes.
"""

from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import numpy as np

from ganger.core.queues.quota import QueueTree, need
from ganger.core.state.state import State
from ganger.model.job import GangState
from ganger.model.units import DEVICE_MILLI


class QueueDemand(NamedTuple):
    """A request for at most `most`: the `guarantee` before others, beyond that by `weight`."""

    weight: int
    guarantee: int
    most: int


def divide(capacity: int, demands: Sequence[QueueDemand]) -> list[int]:
    """Return a part for each demand, together min(capacity, sum of the demands).

    Each is at most the demand, and at least its guarantee of that unless guarantees exceed the capacity. A greater
    weight never gives less. Of two equal demands the first gets what cannot be halved. O(n log n).
    """
    guarantees = [min(demand.guarantee, demand.most) for demand in demands]
    if sum(guarantees) >= capacity:
        # Guarantees exceed the capacity: divide by guarantee.
        return _fill(capacity, [QueueDemand(max(1, amount), 0, amount) for amount in guarantees])
    return _fill(capacity, demands)


def _fill(capacity: int, demands: Sequence[QueueDemand]) -> list[int]:
    """Return whole parts: weight times the level at which they add up, within the guarantee and the demand."""
    total = min(capacity, sum(demand.most for demand in demands))
    level = _find_level(total, demands)
    parts = [min(d.most, max(min(d.guarantee, d.most), int(d.weight * level))) for d in demands]
    numbered = enumerate(zip(parts, demands, strict=True))
    next_costs = [(Fraction(part + 1, demand.weight), index) for index, (part, demand) in numbered]
    heap = [entry for entry in next_costs if parts[entry[1]] < demands[entry[1]].most]
    heapify(heap)
    # The rounded parts leave fewer GPUs than demands: each goes where the next GPU costs least.
    for _ in range(total - sum(parts)):
        _, index = heap[0]
        parts[index] += 1
        if parts[index] < demands[index].most:
            heapreplace(heap, (Fraction(parts[index] + 1, demands[index].weight), index))
        else:
            heappop(heap)
    return parts


def _find_level(total: int, demands: Sequence[QueueDemand]) -> Fraction:
    """Return the level at which the sum of all parts, before rounding, is `total`.

    The sum is piecewise linear in the level: a demand begins to grow with its weight where the level reaches its
    guarantee, and stops where it reaches the demand.
    """
    guaranteed = sum(min(demand.guarantee, demand.most) for demand in demands)
    slope_changes = [(Fraction(min(demand.guarantee, demand.most), demand.weight), demand.weight) for demand in demands]
    slope_changes += [(Fraction(demand.most, demand.weight), -demand.weight) for demand in demands]
    level, slope, part_sum = Fraction(0), 0, Fraction(guaranteed)
    for height, change in sorted(slope_changes):
        if slope and part_sum + slope * (height - level) >= total:
            return level + (total - part_sum) / slope
        part_sum += slope * (height - level)
        level, slope = height, slope + change
    return level


def fair_gpus(state: State) -> list[int]:
    """Return the fair number of GPUs of each queue with all below it, by what its jobs hold and request.

    What is divided are the GPUs of nodes in service, and those that jobs hold on other nodes.
    """
    tree, nodes = state.tree, state.nodes
    milli = [0] * len(tree.queues)
    for gang in state.gangs.values():
        if gang.state is not GangState.SUSPENDED:
            count, shape = (len(state.arrays[gang.id].rest), gang.job.spec.shape) if gang.is_head else (1, gang.shape)
            milli[tree.index[gang.queue]] += count * need(shape)[0]
    own_demand = [-(-gpu_milli // DEVICE_MILLI) for gpu_milli in milli]
    visible, beside = _demand_by_queue(tree, own_demand)
    fair, quota = [0] * len(own_demand), tree.subtree_quota[0]
    held = nodes.total.gpus - nodes.free.gpus
    fair[0] = min(int(np.where(nodes.ready, nodes.total.gpus, held).sum()), visible[0] + beside[0])
    for index, children in enumerate(tree.children):
        if children:
            demands = [
                QueueDemand(tree.queues[c].weight, beside[c] + quota[c] // DEVICE_MILLI, beside[c] + visible[c])
                for c in children
            ]
            demands.append(QueueDemand(1, tree.nominal[0][index] // DEVICE_MILLI, own_demand[index]))
            for child, gpus in zip(children, divide(fair[index], demands), strict=False):
                fair[child] = gpus
    return fair


def _demand_by_queue(tree: QueueTree, own: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the demand of each queue with all below it, at most what it could use if no other queue used any.

    The first list is what the queues above it see, the second, beside that, what queues below keep for themselves and
    lend to none.
    """
    visible, beside = list(own), [0] * len(own)
    for index in reversed(range(len(own))):
        visible[index] = min(visible[index], max(0, tree.potential(index, 0) // DEVICE_MILLI))
        if index:
            local_quota = min(visible[index], tree.local_quota(index, 0) // DEVICE_MILLI)
            parent = tree.parent[index]
            visible[parent] += visible[index] - local_quota
            beside[parent] += beside[index] + local_quota
    return visible, beside
