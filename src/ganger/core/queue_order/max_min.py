"""Progressive filling: the share of each tenant, a user in a queue, now and before a running gang started.

Shares are dominant, over the weight of the queue, exact, and current: nothing is remembered. Gangs that are leaving do
not count, and capacity held by the cycle does: else others would be preempted for two gangs of a tenant where one makes
it equal to them. Source: dominant resource fairness (Ghodsi et al., NSDI 2011).
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction

from ganger.core.queues.quota import need
from ganger.core.state.gang import LEAVING, STAYING, Gang
from ganger.core.state.state import State


def tenant_share(state: State, queue: str, user: str) -> Fraction:
    """Return the share that a tenant has or is about to have."""
    holders = (state.gangs[name] for name, sign in state.allocations.planned_changes.items() if sign > 0)
    own_holders = (gang for gang in holders if gang.queue == queue and gang.job.user == user)
    return _weighted_share(state, queue, (*own_holders, *_staying_gangs(state, queue, user)))


def tenant_share_before(state: State, gang: Gang) -> Fraction:
    """Return the share that the tenant of a running gang had before it started, counting gangs that still run."""
    own_start = _start_order(gang)
    running = (other for other in _staying_gangs(state, gang.queue, gang.job.user) if other.state in STAYING)
    changes = state.allocations.planned_changes
    earlier = [other for other in running if _start_order(other) < own_start and changes.get(other.id, 0) >= 0]
    return _weighted_share(state, gang.queue, earlier)


def _staying_gangs(state: State, queue: str, user: str) -> Iterator[Gang]:
    """Yield a tenant's gangs that hold nodes and may keep them, those that the cycle starts too."""
    holding = state.allocations.oldest(user=user)
    return (gang for gang in holding if gang.queue == queue and gang.state not in LEAVING)


def _start_order(gang: Gang) -> tuple[int, int, int]:
    """Return the order in which gangs of one tenant start."""
    return gang.attempt.began_ms, -gang.job.spec.priority, gang.number


def _weighted_share(state: State, queue: str, gangs: Iterable[Gang]) -> Fraction:
    gpu_milli = cpu_milli = memory_bytes = 0
    for gang in gangs:
        demand = need(gang.shape)
        gpu_milli, cpu_milli, memory_bytes = gpu_milli + demand[0], cpu_milli + demand[1], memory_bytes + demand[2]
    return state.fair_shares.weighted_dominant_share(queue, (gpu_milli, cpu_milli, memory_bytes))
