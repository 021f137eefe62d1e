"""Choice of the rank that holds a hanging gang up, by comparing all ranks.

docs/how-to/failures.md, "Hang", has the order.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ganger.launcher_server.health.stall_messages import RankDetail

BUSY_PERMILLE: Final = 500
ASLEEP_PERMILLE: Final = 100
COLLECTIVES: Final = (
    *("torch/distributed/", "torch/autograd/", "horovod/", "deepspeed/comm/", "tensorflow/python/distribute/"),
    *("jax/experimental/multihost_utils", "xgboost/collective"),
)
"""Parts of the paths of code that waits for other ranks; the backward pass of torch is in it too."""
AGENTS: Final = ("torch/distributed/elastic/", "torch/distributed/run.py", "torch/distributed/launcher/")
"""Code of these packages that supervises ranks."""
REQUESTS: Final = ("/selectors.py:", "/asyncio/", "/socketserver.py:")
"""Parts of the frames of code that waits for requests of clients."""
INNERMOST: Final = 8
"""Number of frames within which a rank that waits for others has called such code."""
_STATES: Final = {"T": "is stopped", "D": "is blocked in the kernel"}


@dataclass(frozen=True, slots=True)
class HangSuspect:
    """The rank, and what distinguishes it, as the end of a sentence that begins with it."""

    detail: RankDetail
    reason: str


def find_suspect(
    ranks: Sequence[RankDetail], main_frames: Mapping[int, tuple[str, ...]], ranks_of_gang: int
) -> HangSuspect | None:
    """Return the rank that differs from the others, or None.

    `ranks`: those that have not ended, of so many
    `main_frames`: the frames of each rank's first thread.
    """
    if len(ranks) == 1 < ranks_of_gang:
        frames = main_frames.get(ranks[0].rank)
        return HangSuspect(ranks[0], f"has not ended, all others have{f': {frames[0]}' if frames else ''}")
    return (
        _only_stopped(ranks)
        or _furthest_behind(ranks)
        or _only_missing(ranks, main_frames)
        or _only_elsewhere(ranks, main_frames)
        or _only_busy(ranks)
    )


def waits_for_others(frames: tuple[str, ...]) -> bool:
    """Return True if a rank with these frames, the innermost first, waits in a collective operation."""
    innermost = frames[:INNERMOST]
    if any(path in frame for frame in innermost for path in AGENTS):
        return False
    return any(is_collective(frame) for frame in innermost)


def waits_for_requests(frames: tuple[str, ...]) -> bool:
    """Return True if a rank with these frames waits for clients, of which there may be none for long."""
    return any(part in frame for frame in frames[:1] for part in REQUESTS)


def is_collective(frame: str) -> bool:
    """Return True if the frame is in the code of collective operations."""
    return any(path in frame for path in COLLECTIVES)


def _only_stopped(ranks: Sequence[RankDetail]) -> HangSuspect | None:
    stopped = [rank for rank in ranks if rank.state in _STATES]
    return HangSuspect(stopped[0], _STATES[stopped[0].state]) if len(stopped) == 1 else None


def _furthest_behind(ranks: Sequence[RankDetail]) -> HangSuspect | None:
    steps = {rank.rank: rank.step for rank in ranks if rank.step is not None}
    oldest = [rank for rank in ranks if rank.step is not None and rank.step == min(steps.values())]
    if len(oldest) != 1 or len(steps) < 2:
        return None
    return HangSuspect(oldest[0], f"has done step {oldest[0].step} and no later one, the others have")


def _only_missing(ranks: Sequence[RankDetail], main_frames: Mapping[int, tuple[str, ...]]) -> HangSuspect | None:
    missing = [rank for rank in ranks if not waits_for_others(main_frames.get(rank.rank, ()))]
    if len(missing) != 1 or len(ranks) < 2:
        return None
    frames = main_frames.get(missing[0].rank)
    place = f": {frames[0]}" if frames else ""
    return HangSuspect(missing[0], f"is not in the collective operation in which the others wait{place}")


def _only_elsewhere(ranks: Sequence[RankDetail], main_frames: Mapping[int, tuple[str, ...]]) -> HangSuspect | None:
    """Compare the innermost frame first: the rank that leads a collective gets to it by a way of its own."""
    if len(main_frames) < 3:
        return None
    innermost = {rank: frames[:1] for rank, frames in main_frames.items()}
    for frames_by_rank in (innermost, main_frames):
        counts = Counter(frames_by_rank.values())
        alone = [rank for rank in ranks if rank.rank in frames_by_rank and counts[frames_by_rank[rank.rank]] == 1]
        if len(alone) == 1:
            return HangSuspect(alone[0], f"is elsewhere than the others: {main_frames[alone[0].rank][0]}")
    return None


def _only_busy(ranks: Sequence[RankDetail]) -> HangSuspect | None:
    busy = [rank for rank in ranks if rank.busy_permille >= BUSY_PERMILLE]
    asleep = [rank for rank in ranks if rank.busy_permille <= ASLEEP_PERMILLE]
    if len(busy) != 1 or len(asleep) != len(ranks) - 1 or not asleep:
        return None
    return HangSuspect(busy[0], "is at work while the others sleep")
