"""What is fair to each queue of the GPUs there are, as things stand: guarantees first, the rest by weight, by demand.

Shown by `engine.rows` beside what queues hold; no order depends on it. Units are whole: what is left over goes where
the next one costs least, so that all of what is asked for and there is given out. Source: KAI's division (reference:
scheduling, section 2), with whole GPUs and without its rounds.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from ganger.core.queues import QueueTree, need
from ganger.core.state import State
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
    while (left := total - sum(given)) > 0:
        open_claims = [at for at, claim in enumerate(claims) if given[at] < claim.most]
        for at in sorted(open_claims, key=lambda at: Fraction(given[at] + 1, claims[at].weight))[:left]:
            given[at] += 1
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
    asked = list(own)
    for at in range(len(asked) - 1, 0, -1):
        asked[at] = min(asked[at], _limit(tree, at))
        asked[tree.parent[at]] += asked[at]
    fair = [0] * len(asked)
    fair[0] = min(int(state.nodes.gpus.sum()), asked[0], _limit(tree, 0))
    for at, children in enumerate(tree.children):
        if children:
            claims = [Claim(tree.queues[c].weight, tree.promised[c][0] // DEVICE_MILLI, asked[c]) for c in children]
            unlent = sum(max(0, tree.local(c, 0) // DEVICE_MILLI - asked[c]) for c in children)
            parts = divide(max(0, fair[at] - unlent), [*claims, Claim(1, tree.nominal[0][at] // DEVICE_MILLI, own[at])])
            for child, part in zip(children, parts, strict=False):
                fair[child] = part
    return fair


def _limit(tree: QueueTree, at: int) -> int:
    return max(0, tree.potential(at, 0) // DEVICE_MILLI)
