"""Progressive filling: what each tenant, a user in a queue, has of the cluster, and had when it was a gang's turn.

Asked by `policies.max_min` and `core.queue_order.priority_factors`. Shares are dominant, over the weight of the queue,
exact, and of now: nothing is remembered. What is leaving is counted no more, and room that a round keeps is counted as
held: else a tenant would have others stopped for two of its gangs where one makes it equal to them. Source: dominant
resource fairness (Ghodsi et al., NSDI 2011)."""

from collections.abc import Iterable, Iterator
from fractions import Fraction

from ganger.core.queues.quota import need
from ganger.core.state.gang import LEAVING, RUNS, Gang
from ganger.core.state.state import State


def share(state: State, queue: str, user: str) -> Fraction:
    """What a tenant has, or is about to have."""
    kept = (state.gangs[name] for name, sign in state.meant.items() if sign > 0)
    theirs = (gang for gang in kept if gang.queue == queue and gang.job.user == user)
    return _share(state, queue, (*theirs, *_staying(state, queue, user)))


def share_before(state: State, gang: Gang) -> Fraction:
    """What the tenant of a running gang had when it was its turn: of what runs on, that which began before it."""
    mine = _turn(gang)
    running = (each for each in _staying(state, gang.queue, gang.job.user) if each.state in RUNS)
    earlier = [each for each in running if _turn(each) < mine and state.meant.get(each.id, 0) >= 0]
    return _share(state, gang.queue, earlier)


def _staying(state: State, queue: str, user: str) -> Iterator[Gang]:
    """A tenant's gangs that hold nodes and may keep them, those that a round starts too."""
    held = state.shares.oldest(user=user)
    return (gang for gang in held if gang.queue == queue and gang.state not in LEAVING)


def _turn(gang: Gang) -> tuple[int, int, int]:
    """In which order gangs of one tenant begin."""
    return gang.began_ms, -gang.job.spec.priority, gang.number


def _share(state: State, queue: str, gangs: Iterable[Gang]) -> Fraction:
    gpu_milli = cpu_milli = memory_bytes = 0
    for gang in gangs:
        needs = need(gang.shape)
        gpu_milli, cpu_milli, memory_bytes = gpu_milli + needs[0], cpu_milli + needs[1], memory_bytes + needs[2]
    return state.standings.dominant(queue, (gpu_milli, cpu_milli, memory_bytes))
