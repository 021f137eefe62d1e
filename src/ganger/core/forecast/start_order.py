"""Order in which a policy would start the pending gangs if there were room for one after the other."""

from heapq import heapify, heappop, heapreplace

from ganger.core.queue_order.policy_interface import Key, Policy
from ganger.core.queues.quota import need
from ganger.core.state.gang import Gang
from ganger.core.state.state import State


def start_order(state: State, policy: Policy, now_ms: int, max_gangs: int) -> list[Gang]:
    """Return the first pending gangs in order; the head of an array is there once for each of its elements.

    Each gang counts as usage of its user and queue for those after it, as in a scheduling cycle.
    """
    lanes = list(state.pending.lanes(policy).by_key.values())
    order: list[Gang] = []
    with state.trial():
        heap: list[tuple[Key, int, int]] = [
            (policy.key(lane.entries[0].gang, state, now_ms), lane.slot, 0) for lane in lanes
        ]
        heapify(heap)
        by_slot = {lane.slot: lane.entries for lane in lanes}
        while heap and len(order) < max_gangs:
            first_key, slot, position = heap[0]
            entries = by_slot[slot]
            gang = entries[position].gang
            key = policy.key(gang, state, now_ms)
            if key > first_key and len(heap) > 1:
                # Its user has used more since.
                heapreplace(heap, (key, slot, position))
                continue
            starts = state.arrays[gang.id].starts if gang.is_head else 1
            order += [gang] * min(starts, max_gangs - len(order))
            if len(lanes) > 1:
                _use(state, gang)
            if position + 1 < len(entries):
                heapreplace(heap, (policy.key(entries[position + 1].gang, state, now_ms), slot, position + 1))
            else:
                heappop(heap)
    return order


def _use(state: State, gang: Gang) -> None:
    """Count what a gang needs as usage, within a trial."""
    amounts = need(gang.shape)
    state.fair_shares.add_held(gang.queue, gang.job.user, amounts, +1)
    state.tree.charge_user(gang.queue, gang.job.user, amounts[0], gang.node_ms, 1)
