"""What is fair to each queue of the GPUs there are, as things stand: guarantees first, the rest by weight, by demand.

Shown by `engine.query.listing_rows` beside what queues hold; no order depends on it. Units are whole: what is left over
goes where the next one costs least, so that all of what is asked for and there is given out. Source: KAI's division
(reference: scheduling, section 2), with whole GPUs and without its rounds."""

from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from ganger.core.queues.quota import QueueTree, need
from ganger.core.state.state import State
from ganger.model.job import GangState
from ganger.model.units import DEVICE_MILLI


class Claim(NamedTuple):
    """What somebody asks for: at most `most`, `guarantee` before others, beyond that by `weight`."""

    weight: int
    guarantee: int
    most: int


def divide(capacity: int, claims: Sequence[Claim]) -> list[int]:
    """A part for each claim: together min(capacity, all that is asked for); each at most what it asks for, and at least
    its guarantee of that, if the guarantees are not more than there is. A greater weight never gives less. Of two equal
    claims the first has what cannot be halved. O(n log n).
    """
    least = [min(claim.guarantee, claim.most) for claim in claims]
    if sum(least) >= capacity:
        # More is guaranteed than there is: by guarantee, then.
        return _filled(capacity, [Claim(max(1, amount), 0, amount) for amount in least])
    return _filled(capacity, claims)


def _filled(capacity: int, claims: Sequence[Claim]) -> list[int]:
    """As high as it goes: everybody has weight times the level, but for what is guaranteed or not asked for."""
    total = min(capacity, sum(claim.most for claim in claims))
    level = _level(total, claims)
    given = [min(c.most, max(min(c.guarantee, c.most), int(c.weight * level))) for c in claims]
    nexts = [(Fraction(part + 1, c.weight), at) for at, (part, c) in enumerate(zip(given, claims, strict=True))]
    heap = [each for each in nexts if given[each[1]] < claims[each[1]].most]
    heapify(heap)
    for _ in range(total - sum(given)):
        _, at = heap[0]
        given[at] += 1
        if given[at] < claims[at].most:
            heapreplace(heap, (Fraction(given[at] + 1, claims[at].weight), at))
        else:
            heappop(heap)
    return given


def _level(total: int, claims: Sequence[Claim]) -> Fraction:
    """Where the sum of all parts, not yet whole, is `total`."""
    height = sum(min(claim.guarantee, claim.most) for claim in claims)
    turns = [(Fraction(min(claim.guarantee, claim.most), claim.weight), claim.weight) for claim in claims]
    turns += [(Fraction(claim.most, claim.weight), -claim.weight) for claim in claims]
    level, slope, sum_here = Fraction(0), 0, Fraction(height)
    for at, change in sorted(turns):
        if slope and sum_here + slope * (at - level) >= total:
            return level + (total - sum_here) / slope
        sum_here += slope * (at - level)
        level, slope = at, slope + change
    return level


def fair_gpus(state: State) -> list[int]:
    """GPUs that are fair to each queue of the tree, with all below it, by what its jobs hold and wait for."""
    tree = state.tree
    milli = [0] * len(tree.queues)
    for gang in state.gangs.values():
        if gang.state is not GangState.SUSPENDED:
            many = len(state.arrays[gang.id].rest) if gang.is_head else 1
            milli[tree.index[gang.queue]] += many * need(gang.shape)[0]
    own = [-(-each // DEVICE_MILLI) for each in milli]
    visible, beside = _asked(tree, own)
    fair = [0] * len(own)
    fair[0] = min(int(state.nodes.gpus.sum()), visible[0] + beside[0])
    for at, children in enumerate(tree.children):
        if children:
            claims = [
                Claim(tree.queues[c].weight, beside[c] + tree.subtree[0][c] // DEVICE_MILLI, beside[c] + visible[c])
                for c in children
            ]
            parts = divide(fair[at], [*claims, Claim(1, tree.nominal[0][at] // DEVICE_MILLI, own[at])])
            for child, part in zip(children, parts, strict=False):
                fair[child] = part
    return fair


def _asked(tree: QueueTree, own: Sequence[int]) -> tuple[list[int], list[int]]:
    """What each queue, with all below it, asks for of what it could use if nobody else used any: of what those above it
    see, and beside that, of what queues below it keep for themselves and lend to nobody."""
    visible, beside = list(own), [0] * len(own)
    for at in reversed(range(len(own))):
        visible[at] = min(visible[at], max(0, tree.potential(at, 0) // DEVICE_MILLI))
        if at:
            kept = min(visible[at], tree.local(at, 0) // DEVICE_MILLI)
            above = tree.parent[at]
            visible[above] += visible[at] - kept
            beside[above] += beside[at] + kept
    return visible, beside
