"""Stack samples of a gang that makes no step, or reports none and writes nothing: where its ranks stand, if they hang.

A rank that waits in a collective operation may use a processor all the time (NCCL, MPI), so that its stack alone tells
that it waits. A stack is no proof of a hang: a rank may be seen at the same place in each step. A gang hangs if all
that its waiting ranks can wait for is idle. docs/reference/failures.md, "Hang", has the rule. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ganger.launcher_server.health.hang_suspect import is_collective, waits_for_others, waits_for_requests
from ganger.launcher_server.health.stall_messages import RankDetail
from ganger.model.units import format_duration

MIN_SAMPLES: Final = 3
MAX_MOVES: Final = 3
_FRAME: Final = re.compile(r"(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)")
_LIBRARY: Final = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<")


@dataclass(slots=True)
class Position:
    """The stack of a rank's first thread, the innermost frame first, and in how many samples in a row it was so."""

    frames: tuple[str, ...]
    since_ms: int
    samples: int = 1


class StackSamples:
    """The samples of one silence.

    ranks: the ranks of the newest sample
    moves: number of the newest samples in which every rank had moved
    silent_ms: since when ranks that report steps have made none; None: they report none
    begun_ms: when that was known: the patience of their launchers was over then
    count: number of samples
    """

    def __init__(self, silent_ms: int | None, begun_ms: int) -> None:
        self.ranks: tuple[RankDetail, ...] = ()
        self.moves = 0
        self.silent_ms = silent_ms
        self.begun_ms = begun_ms
        self.count = 0
        self._positions: dict[int, Position] = {}

    def add(self, ranks: Sequence[RankDetail], frames: Mapping[int, tuple[str, ...]], at_ms: int) -> None:
        """Add a sample; a rank whose stack could not be taken is taken to stand where it stood."""
        is_first, self.ranks = not self._positions, tuple(sorted(ranks, key=lambda rank: rank.rank))
        self.count += 1
        # Ranks that make no step are taken to have stood since the last one where the first sample finds them. If one
        # moves on, the second sample shows it; and what they wait for has to be idle all the time.
        first_ms = at_ms if self.silent_ms is None or self.count > 1 else self.silent_ms
        for rank, rank_frames in frames.items():
            position = self._positions.get(rank)
            if position is None or position.frames != rank_frames:
                self._positions[rank] = Position(rank_frames, first_ms)
            else:
                position.samples += 1
        stands = is_first or any(position.samples > 1 for position in self._positions.values())
        self.moves = 0 if stands else min(self.moves + 1, MAX_MOVES)

    def hangs_since_ms(self, at_ms: int) -> int | None:
        """Return since when the gang hangs, as far as it is known, or None.

        Some rank waits in a collective operation, where it has been all the time, and every other rank is idle, and not
        because it waits for requests; if all of them wait, they are idle too.
        """
        waiting = self._waiting()
        others = [rank for rank in self.ranks if rank not in waiting]
        if any(waits_for_requests(self._frames(rank)) for rank in others):
            return None
        idle_ms = [at_ms - rank.idle_ms for rank in others or self.ranks]
        standing_ms = [min(self._positions[rank.rank].since_ms, at_ms - rank.idle_ms) for rank in waiting]
        return max(idle_ms + standing_ms) if waiting else None

    def idle_since_ms(self, at_ms: int) -> int | None:
        """Return since when no rank has used a processor, transferred or written anything; None without ranks."""
        return max((at_ms - rank.idle_ms for rank in self.ranks), default=None)

    def waiting_text(self) -> str:
        """Return which ranks wait where."""
        waiting = self._waiting()
        subject, is_one = self._subject(waiting)
        return f"{subject} {'waits' if is_one else 'wait'} in {self._place(waiting[0])}"

    def places(self, at_ms: int) -> str:
        """Return where the ranks stand if one is elsewhere, or all are in a collective operation, else ""."""
        odd = [rank for rank in self.ranks if self._is_odd(rank)]
        others = [rank for rank in self.ranks if rank not in odd]
        if not self._stand(others) or len(odd) > 1 or (not odd and len(self._waiting()) < len(others)):
            return ""
        positions = [self._positions[rank.rank] for rank in others]
        since_ms, samples = max(item.since_ms for item in positions), min(item.samples for item in positions)
        subject, is_one = self._subject(others)
        exception = "".join(f", rank {rank.rank} on {rank.node} is {self._place(rank, 'in ')}" for rank in odd)
        seen = f"in each of {samples} stack samples of {format_duration((at_ms - since_ms) // 1000 * 1000)}"
        return f"{subject} {'is' if is_one else 'are'} {self._place(others[0], 'in ')}{exception}, {seen}"

    def _subject(self, ranks: Sequence[RankDetail]) -> tuple[str, bool]:
        """Return the ranks as the subject of a sentence, and True if it is singular."""
        if len(ranks) == 1:
            return f"rank {ranks[0].rank} on {ranks[0].node}", True
        return f"{'all' if len(ranks) == len(self.ranks) else f'{len(ranks)} of'} {len(self.ranks)} ranks", False

    def _frames(self, rank: RankDetail) -> tuple[str, ...]:
        position = self._positions.get(rank.rank)
        return () if position is None else position.frames

    def _waiting(self) -> list[RankDetail]:
        return [rank for rank in self.ranks if waits_for_others(self._frames(rank))]

    def _stand(self, ranks: Sequence[RankDetail]) -> bool:
        positions = [self._positions.get(rank.rank) for rank in ranks]
        return bool(ranks) and all(item is not None and item.samples >= MIN_SAMPLES for item in positions)

    def _is_odd(self, rank: RankDetail) -> bool:
        """Return True if all other ranks stand in collective operations and this does not, or at one other place."""
        others = [other for other in self.ranks if other != rank]
        if not self._frames(rank) or not self._stand(others) or waits_for_others(self._frames(rank)):
            return False
        places = {self._frames(other) for other in others}
        is_elsewhere = len(others) > 1 and len(places) == 1 and self._frames(rank) not in places
        return is_elsewhere or all(waits_for_others(frames) for frames in places)

    def _place(self, rank: RankDetail, before: str = "") -> str:
        """Return the function and line: the one from which a collective operation was called, or the innermost own."""
        frames = self._frames(rank)
        if waits_for_others(frames):
            last = max(index for index, frame in enumerate(frames) if is_collective(frame))
            call = frames[last + 1] if last + 1 < len(frames) else frames[last]
            return f"{before}{_parts(frames[last])[0]} at {_parts(call)[1]}"
        own = [frame for frame in frames if not _LIBRARY.search(_file(frame))]
        function, line = _parts((own or frames)[0])
        return f"at {line}" if function == "<module>" else f"{before}{function} at {line}"


def _file(frame: str) -> str:
    match = _FRAME.fullmatch(frame)
    return frame if match is None else match["file"]


def _parts(frame: str) -> tuple[str, str]:
    """Return the function of a frame, and its file and line."""
    match = _FRAME.fullmatch(frame)
    return (frame, frame) if match is None else (match["function"], f"{PurePath(match['file']).name}:{match['line']}")
