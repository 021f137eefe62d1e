"""Lines of several ranks as one stream: who wrote what, and the same line of many ranks said once.

Called by `logs` and `follow`. Pure: lines in, text out.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ganger.model.job import WORKER

Record = dict[str, Any]
"""One line as the server gives it: {"t", "rank", "generation", "stream", "text"}."""

WINDOW_MS: Final = 300
"""Ranks that write the same within this time are taken together; a follower shows a line at most this much later."""
MOST_HELD: Final = 20_000
MOST_HELD_CHARACTERS: Final = 8 << 20
"""Beyond either, the oldest line is shown before its time is over, so that no burst fills the memory."""


@dataclass(slots=True)
class CollapsedLine:
    """A line, and the ranks that wrote it."""

    record: Record
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Equal:
    """The lines of one text that are held, numbered in their order since the first of them came.

    A rank joins the oldest line that it has not joined yet. So the lines that it has joined are always the oldest ones,
    and the number of the next is all there is to know: to look for it among the lines would take quadratic time where
    a rank writes one text again and again.
    """

    held: dict[int, CollapsedLine] = field(default_factory=dict)
    oldest: int = 0
    next_of_rank: dict[int, int] = field(default_factory=dict)

    def joined(self, rank: int) -> CollapsedLine | None:
        """Add a rank to the oldest line that it has not joined, and return that. None if there is none: the rank's own
        line must follow, by `add`."""
        number = max(self.next_of_rank.get(rank, 0), self.oldest)
        self.next_of_rank[rank] = number + 1
        same = self.held.get(number)
        if same is not None:
            same.ranks.append(rank)
        return same

    def add(self, same: CollapsedLine) -> None:
        """Hold the newest line."""
        self.held[self.oldest + len(self.held)] = same

    def release(self) -> None:
        """Let go of the oldest line."""
        del self.held[self.oldest]
        self.oldest += 1


class Collapser:
    """Holds lines back for a short time, so that equal lines of other ranks join them. Order is kept."""

    def __init__(self) -> None:
        self._held: deque[CollapsedLine] = deque()
        self._held_characters = 0
        self._by_text: dict[tuple[int, str, str], _Equal] = {}

    @property
    def holds(self) -> bool:
        """Whether a line waits."""
        return bool(self._held)

    def push(self, record: Record) -> list[CollapsedLine]:
        """Take a line; gives those that waited long enough by the lines' own time, or are too many to be held."""
        ready = []
        while self._held and self._held[0].record["t"] + WINDOW_MS < record["t"]:
            ready.append(self._release())
        key = _text_of(record)
        equal = self._by_text.get(key) or self._by_text.setdefault(key, _Equal())
        if equal.joined(record["rank"]) is None:
            same = CollapsedLine(record, [record["rank"]])
            equal.add(same)
            self._held.append(same)
            self._held_characters += len(record["text"])
            while len(self._held) > MOST_HELD or self._held_characters > MOST_HELD_CHARACTERS:
                ready.append(self._release())
        return ready

    def flush(self) -> list[CollapsedLine]:
        """All that is held."""
        return [self._release() for _ in range(len(self._held))]

    def _release(self) -> CollapsedLine:
        same = self._held.popleft()
        self._held_characters -= len(same.record["text"])
        key = _text_of(same.record)
        equal = self._by_text[key]
        equal.release()
        if not equal.held:
            del self._by_text[key]
        return same


class Writing:
    """How a line of the job looks: who wrote it when there are several processes, and when, if that is asked for."""

    def __init__(self, processes: int, *, timestamps: bool = False) -> None:
        self.processes = processes
        self._timestamps = timestamps
        self._width = len(str(processes - 1)) + 1

    def text(self, same: CollapsedLine) -> str:
        """`r0 | loss 2.3  (x4)`, the lowest rank of those that wrote it; without a rank when there is only one."""
        record = same.record
        at = f"{iso(record['t'])} " if self._timestamps else ""
        who = f"{'r' + str(min(same.ranks)):{self._width}} | " if self.processes > 1 else ""
        count = f"  (x{len(same.ranks)})" if len(same.ranks) > 1 else ""
        return f"{at}{who}{record['text']}{count}"


def collapsed(records: Iterable[Record]) -> Iterator[CollapsedLine]:
    """The lines of an ended stream, equal ones joined."""
    collapser = Collapser()
    for record in records:
        yield from collapser.push(record)
    yield from collapser.flush()


def processes_of(spec: dict[str, Any]) -> int:
    """Processes of a job, from its spec as the server gives it."""
    roles = spec["roles"]
    per_node = spec["nproc_per_node"] or spec["resources"]["gpu"]["count"] or 1
    workers = spec["nodes"] * per_node if spec["run"] and WORKER not in roles else 0
    return int(workers + sum(role["count"] for role in roles.values()))


def _text_of(record: Record) -> tuple[int, str, str]:
    return record["generation"], record["stream"], record["text"]


def iso(at_ms: int) -> str:
    """A moment as it stands before a line."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(timespec="milliseconds")
