"""What was held and how it counts, found again from raw rows of the log, by integration on fractions.

Shares nothing with `core.queues.fair_share`: there are no sums to update, and no half-lives of the calendar.
"""

from dataclasses import dataclass
from fractions import Fraction

from ganger.model import event as e
from ganger.model.policy import Rules
from tests.laws.raw import RESOURCES, Raw, total
from tests.laws.world import World

HALF_LIFE_MS = Rules().half_life_ms


def doubling(at_ms: int, today_ms: int, half_life_ms: int = HALF_LIFE_MS) -> Fraction:
    """2 ** (half-lives since today) at every whole half-life, straight between."""
    whole, rest = divmod(at_ms - today_ms, half_life_ms)
    return Fraction(2) ** whole * (1 + Fraction(rest, half_life_ms))


def average(
    intervals: list[tuple[int, int, int]], at_ms: int, today_ms: int, half_life_ms: int = HALF_LIFE_MS
) -> Fraction:
    """What was held on average, as it counts at a time: (from, until, amount) each. `today_ms` is any border between
    two half-lives of the calendar."""
    area = (
        amount * (doubling(until, today_ms, half_life_ms) - doubling(began, today_ms, half_life_ms))
        for began, until, amount in intervals
        if amount
    )
    return sum(area, Fraction(0)) / doubling(at_ms, today_ms, half_life_ms)


@dataclass
class Allocations:
    """One start of a gang, until nothing of it was left; None: it holds still."""

    queue: str
    user: str
    amounts: tuple[int, ...]
    began: int
    ended: int | None = None


def holdings(world: World) -> list[Allocations]:
    """Every start that the log tells of. What was in a queue that is gone was in the one above it."""
    raw, found, held = Raw(), list[Allocations](), dict[str, Allocations]()
    for row in world.log:
        if isinstance(row.event, e.QueueDeleted):
            above = raw.queues[row.event.queue].parent or ""
            for each in found:
                each.queue = above if each.queue == row.event.queue else each.queue
        if isinstance(row.event, e.PolicySet):
            for each in found:
                each.queue = raw.heir(each.queue, row.event.document.queues)
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
                found.append(held[gang])
    return found


def usage_is_what_the_log_says(world: World) -> None:
    """Every user's share of the cluster in every queue: what is held, and its average of late, of the resource of which
    it is most."""
    state, now_ms, told = world.state, world.now_ms, holdings(world)
    there = world.raw.nodes.values()
    capacity = [1000 * sum(node.gpus for node in there)]
    capacity += [sum(getattr(node, r) for node in there) for r in RESOURCES[1:]]
    half_life_ms = state.rules.half_life_ms
    for queue, user in {(each.queue, each.user): None for each in told}:
        mine = [each for each in told if (each.queue, each.user) == (queue, user)]
        shares = [Fraction(0)]
        for r, whole in enumerate(capacity):
            held = sum(each.amounts[r] for each in mine if each.ended is None)
            spans = [(each.began, now_ms if each.ended is None else each.ended, each.amounts[r]) for each in mine]
            shares.append((held + average(spans, now_ms, half_life_ms, half_life_ms)) / whole if whole else Fraction(0))
        use = state.standings.user_use(queue, user, now_ms)
        assert Fraction(use.used, use.whole) == max(shares), f"{user} in {queue}"
