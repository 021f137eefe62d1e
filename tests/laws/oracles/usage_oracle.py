"""Oracle of fair share: what was held and how it counts, from raw rows of the log, by integration on fractions.

It shares nothing with `core.queues.fair_share`: there are no sums to update, and no half-lives of the calendar.
"""

from dataclasses import dataclass
from fractions import Fraction

from ganger.model import event as e
from ganger.model.policy import Rules
from tests.laws.oracles.job_parts import RESOURCES, total
from tests.laws.oracles.raw_facts import RawFacts
from tests.laws.world import World

HALF_LIFE_MS = Rules().half_life_ms


def doubling(at_ms: int, today_ms: int, half_life_ms: int = HALF_LIFE_MS) -> Fraction:
    """Return 2 ** (half-lives since today) at every whole half-life, linear between."""
    whole, rest = divmod(at_ms - today_ms, half_life_ms)
    return Fraction(2) ** whole * (1 + Fraction(rest, half_life_ms))


def average(
    intervals: list[tuple[int, int, int]], at_ms: int, today_ms: int, half_life_ms: int = HALF_LIFE_MS
) -> Fraction:
    """Return the average of what was held, as it counts at a time, of intervals (from, until, amount).

    `today_ms` is any border between two half-lives of the calendar.
    """
    area = (
        amount * (doubling(until, today_ms, half_life_ms) - doubling(began, today_ms, half_life_ms))
        for began, until, amount in intervals
        if amount
    )
    return sum(area, Fraction(0)) / doubling(at_ms, today_ms, half_life_ms)


@dataclass
class Allocations:
    """One start of a gang, until nothing of it was left; `ended` is None while it holds something."""

    queue: str
    user: str
    amounts: tuple[int, ...]
    began: int
    ended: int | None = None


def past_allocations(world: World) -> list[Allocations]:
    """Return every start in the log. What was in a queue that is gone was in the one above it."""
    raw, allocations, held = RawFacts(), list[Allocations](), dict[str, Allocations]()
    for row in world.log:
        if isinstance(row.event, e.QueueDeleted):
            above = raw.queues[row.event.queue].parent or ""
            for allocation in allocations:
                allocation.queue = above if allocation.queue == row.event.queue else allocation.queue
        if isinstance(row.event, e.PolicySet):
            for allocation in allocations:
                allocation.queue = raw.surviving_queue(allocation.queue, row.event.document.queues)
        before = dict(raw.starts)
        raw.apply(row.event)
        for gang, start in before.items():
            if raw.starts.get(gang) is not start:
                held.pop(gang).ended = row.at_ms
        for gang, start in raw.starts.items():
            if before.get(gang) is not start:
                job = raw.jobs[gang]
                amounts = tuple(total(job.spec, r) for r in RESOURCES)
                held[gang] = Allocations(job.spec.queue, job.user, amounts, row.at_ms)
                allocations.append(held[gang])
    return allocations


def usage_agrees_with_the_log(world: World) -> None:
    """Check every user's share of the cluster in every queue.

    It is what is held plus its decayed average, of the resource of which that is most.
    """
    state, now_ms, allocations = world.state, world.now_ms, past_allocations(world)
    nodes = world.raw.nodes.values()
    capacity = [1000 * sum(node.gpus for node in nodes)]
    capacity += [sum(getattr(node, r) for node in nodes) for r in RESOURCES[1:]]
    half_life_ms = state.document.half_life_ms
    for queue, user in {(allocation.queue, allocation.user): None for allocation in allocations}:
        own = [allocation for allocation in allocations if (allocation.queue, allocation.user) == (queue, user)]
        shares = [Fraction(0)]
        for r, whole in enumerate(capacity):
            held = sum(allocation.amounts[r] for allocation in own if allocation.ended is None)
            spans = [
                (allocation.began, now_ms if allocation.ended is None else allocation.ended, allocation.amounts[r])
                for allocation in own
            ]
            shares.append((held + average(spans, now_ms, half_life_ms, half_life_ms)) / whole if whole else Fraction(0))
        use = state.fair_shares.user_usage(queue, user, now_ms)
        assert Fraction(use.used, use.capacity) == max(shares), f"{user} in {queue}"
