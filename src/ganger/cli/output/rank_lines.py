"""Lines of several ranks as one stream: the rank in front, equal lines of many ranks shown once. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ganger.model.job import WORKER

Record = dict[str, Any]
"""One line as the server returns it: {"t", "rank", "generation", "stream", "text"}."""

WINDOW_MS: Final = 300
"""Equal lines within this time are joined; a follower shows a line at most this much later."""
MAX_HELD_LINES: Final = 20_000
MAX_HELD_CHARACTERS: Final = 8 << 20
"""Beyond either bound the oldest line is released early, so that no burst fills the memory."""


@dataclass(slots=True)
class CollapsedLine:
    """A line, and the ranks that wrote it."""

    record: Record
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _EqualLines:
    """The held lines with the same text, numbered since the first of them.

    A rank joins the oldest line that it has not joined yet. Hence the lines that it has joined are always the oldest
    ones, and the number of the next one is all there is to remember: to search the lines would take quadratic time for
    a rank that writes the same text again and again.
    """

    held: dict[int, CollapsedLine] = field(default_factory=dict)
    oldest: int = 0
    next_of_rank: dict[int, int] = field(default_factory=dict)

    def join(self, rank: int) -> CollapsedLine | None:
        """Add a rank to the oldest line that it has not joined and return the line.

        None if there is no such line: the rank's own line must follow, by `add`.
        """
        number = max(self.next_of_rank.get(rank, 0), self.oldest)
        self.next_of_rank[rank] = number + 1
        line = self.held.get(number)
        if line is not None:
            line.ranks.append(rank)
        return line

    def add(self, line: CollapsedLine) -> None:
        """Hold the newest line."""
        self.held[self.oldest + len(self.held)] = line

    def release(self) -> None:
        """Remove the oldest line."""
        del self.held[self.oldest]
        self.oldest += 1


class Collapser:
    """Holds lines for a short time, so that equal lines of other ranks can join them. Order is kept."""

    def __init__(self) -> None:
        self._held: deque[CollapsedLine] = deque()
        self._held_characters = 0
        self._by_text: dict[tuple[int, str, str], _EqualLines] = {}

    @property
    def holds(self) -> bool:
        """True when a line is held."""
        return bool(self._held)

    def push(self, record: Record) -> list[CollapsedLine]:
        """Add a line; return those that were held long enough by the lines' own time, or exceed the bounds."""
        ready = self.older(record["t"])
        key = _text_of(record)
        equal = self._by_text.get(key) or self._by_text.setdefault(key, _EqualLines())
        if equal.join(record["rank"]) is None:
            line = CollapsedLine(record, [record["rank"]])
            equal.add(line)
            self._held.append(line)
            self._held_characters += len(record["text"])
            while len(self._held) > MAX_HELD_LINES or self._held_characters > MAX_HELD_CHARACTERS:
                ready.append(self._release())
        return ready

    def older(self, at_ms: int) -> list[CollapsedLine]:
        """Return the lines that were held long enough at a time."""
        ready = []
        while self._held and self._held[0].record["t"] + WINDOW_MS < at_ms:
            ready.append(self._release())
        return ready

    def flush(self) -> list[CollapsedLine]:
        """Release all lines."""
        return [self._release() for _ in range(len(self._held))]

    def _release(self) -> CollapsedLine:
        line = self._held.popleft()
        self._held_characters -= len(line.record["text"])
        key = _text_of(line.record)
        equal = self._by_text[key]
        equal.release()
        if not equal.held:
            del self._by_text[key]
        return line


class LineFormat:
    """The format of a job's lines: the rank if there are several processes, and optionally the time."""

    def __init__(self, processes: int, *, timestamps: bool = False) -> None:
        self.processes = processes
        self._timestamps = timestamps
        self._width = len(str(processes - 1)) + 1

    def text(self, line: CollapsedLine) -> str:
        """Return `r0 | loss 2.3  (x4)`, with the lowest rank that wrote it; no rank for a single process."""
        record = line.record
        time_text = f"{iso_time(record['t'])} " if self._timestamps else ""
        rank_text = f"{'r' + str(min(line.ranks)):{self._width}} | " if self.processes > 1 else ""
        count = f"  (x{len(line.ranks)})" if len(line.ranks) > 1 else ""
        return f"{time_text}{rank_text}{record['text']}{count}"


def collapse_equal_lines(records: Iterable[Record]) -> Iterator[CollapsedLine]:
    """Yield the lines of an ended stream, equal ones joined."""
    collapser = Collapser()
    for record in records:
        yield from collapser.push(record)
    yield from collapser.flush()


def process_count(spec: dict[str, Any]) -> int:
    """Return the number of processes of a spec, as the server returns it: the most that an elastic gang may have."""
    roles = spec["roles"]
    per_node = spec["nproc_per_node"] or spec["resources"]["gpu"]["count"] or 1
    workers = (spec["max_nodes"] or spec["nodes"]) * per_node if spec["run"] and WORKER not in roles else 0
    return int(workers + sum(role["max_count"] or role["count"] for role in roles.values()))


def _text_of(record: Record) -> tuple[int, str, str]:
    return record["generation"], record["stream"], record["text"]


def iso_time(at_ms: int) -> str:
    """Return a time as it stands before a line."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(timespec="milliseconds")
