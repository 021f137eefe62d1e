"""Which rank holds a gang up that stands still: named by what is known of all of them. Pure; called by `hang`.

The order: docs/reference/failures.md, "Hang".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ganger.launcher_server.health.stall_messages import Detail

BUSY_PERMILLE: Final = 500
ASLEEP_PERMILLE: Final = 100
_STATES: Final = {"T": "is stopped", "D": "is blocked in the kernel"}


@dataclass(frozen=True, slots=True)
class HangSuspect:
    """The rank, and what tells it from the others, as the end of a sentence that begins with it."""

    detail: Detail
    why: str


def suspect(ranks: Sequence[Detail], places: Mapping[int, tuple[str, ...]]) -> HangSuspect | None:
    """None when nothing tells one from the others. `places`: the frames of each rank's first thread, if known."""
    return _still(ranks) or _behind(ranks) or _elsewhere(ranks, places) or _busy(ranks)


def _still(ranks: Sequence[Detail]) -> HangSuspect | None:
    found = [rank for rank in ranks if rank.state in _STATES]
    return HangSuspect(found[0], _STATES[found[0].state]) if len(found) == 1 else None


def _behind(ranks: Sequence[Detail]) -> HangSuspect | None:
    steps = {rank.rank: rank.step for rank in ranks if rank.step is not None}
    oldest = [rank for rank in ranks if rank.step is not None and rank.step == min(steps.values())]
    if len(oldest) != 1 or len(steps) < 2:
        return None
    return HangSuspect(oldest[0], f"has done step {oldest[0].step} and no later one, the others have")


def _elsewhere(ranks: Sequence[Detail], places: Mapping[int, tuple[str, ...]]) -> HangSuspect | None:
    """By the innermost frame first: whoever leads a collective comes to it by a way of its own."""
    if len(places) < 3:
        return None
    innermost = {rank: frames[:1] for rank, frames in places.items()}
    for where in (innermost, places):
        counts = Counter(where.values())
        alone = [rank for rank in ranks if rank.rank in where and counts[where[rank.rank]] == 1]
        if len(alone) == 1:
            return HangSuspect(alone[0], f"is elsewhere than the others: {places[alone[0].rank][0]}")
    return None


def _busy(ranks: Sequence[Detail]) -> HangSuspect | None:
    busy = [rank for rank in ranks if rank.busy_permille >= BUSY_PERMILLE]
    asleep = [rank for rank in ranks if rank.busy_permille <= ASLEEP_PERMILLE]
    if len(busy) != 1 or len(asleep) != len(ranks) - 1 or not asleep:
        return None
    return HangSuspect(busy[0], "is at work while the others sleep")
