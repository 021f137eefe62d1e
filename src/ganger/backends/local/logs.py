"""What a job's ranks wrote and reported, read from their files while they may still grow.

Called by the backend on the threads of readers: it only reads files and shares no state. A record is one line of a
file, `<unix ms> <stream> <text>`; stream `O` or `E` is a piece of a line of stdout or stderr that goes on in the next
record of that stream (docs/decisions/3-foundation.md). However long a log is, only a block of each file is in memory.
"""

import heapq
import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ganger.backends.local.layout import Layout, TaskDirectory
from ganger.engine.ports import LogLine, LogQuery

BLOCK_BYTES: Final = 64 * 1024
LONGEST_LINE: Final = 256 * 1024
"""Characters; a longer line is given in parts."""
SPAN_BYTES: Final = 1 << 20
"""How far back the start of a line is looked for that begins before other lines."""
POLL_FIRST_S: Final = 0.05
POLL_MAX_S: Final = 0.2
HELD_S: Final = 1.0
"""How long a follower keeps the start of a line back, waiting for its end."""

_RECORD = re.compile(rb"(\d+) ([oeOE]) (.*)\n", re.DOTALL)
_RANK_FILE = re.compile(r"rank-(\d+)\.log")


@dataclass(frozen=True, slots=True)
class _Source:
    """A file to read, and which of its streams are wanted: `oe` or `e`."""

    path: Path
    generation: int
    rank: int
    streams: str


class _Reader:
    """Reads a file onward from where it stopped, whole lines only."""

    def __init__(self, source: _Source, offset: int = 0) -> None:
        self._source = source
        self._offset = offset
        self._pieces: dict[str, LogLine] = {}
        self._grew_s = 0.0

    def read(self) -> Iterator[LogLine]:
        """The lines that have come since the last time."""
        try:
            file = self._source.path.open("rb")
        except OSError:
            return
        with file:
            file.seek(self._offset)
            for record in file:
                if not record.endswith(b"\n"):
                    return
                self._offset += len(record)
                self._grew_s = time.monotonic()
                yield from self._line(record)

    def held(self, now_s: float) -> Iterator[LogLine]:
        """The starts of lines that have not gone on for a while before `now_s`."""
        if self._pieces and now_s - self._grew_s >= HELD_S:
            yield from sorted(self._pieces.values(), key=lambda line: line.at_ms)
            self._pieces.clear()

    def read_all(self) -> Iterator[LogLine]:
        """All there is, lines that never got their end as well."""
        yield from self.read()
        yield from self.held(float("inf"))

    def _line(self, record: bytes) -> Iterator[LogLine]:
        match = _RECORD.fullmatch(record)
        if match is None:
            return  # torn by a crash of the machine
        stream = match[2].decode().lower()
        if stream not in self._source.streams:
            return
        start = self._pieces.pop(stream, None)
        line = LogLine(
            at_ms=int(match[1]),
            generation=self._source.generation,
            rank=self._source.rank,
            stream=stream,
            text=(start.text if start else "") + match[3].decode(errors="replace"),
        )
        if match[2].isupper() and len(line.text) < LONGEST_LINE:
            self._pieces[stream] = line
        else:
            yield line


def lines(layout: Layout, query: LogQuery) -> Iterator[LogLine]:
    """What the ranks of one generation have written so far, merged by time. ValueError when the job's name is none."""
    newest = query.generation or _newest(layout, query.job)
    readers = [_reader(source, query) for source in _sources(layout, query, newest) if source.generation == newest]
    yield from _last(_merged(reader.read_all() for reader in readers), query)


def follow(layout: Layout, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
    """The same, then what comes, over the generations that follow unless one is asked for, until `ended()`. None after
    each look that found nothing."""
    oldest = query.generation or _newest(layout, query.job)
    readers: dict[_Source, _Reader] = {}
    first, pause_s = True, POLL_FIRST_S
    while True:
        over = ended()  # asked before the last look, which then finds all there is
        for source in _sources(layout, query, oldest):
            if source not in readers:
                readers[source] = _reader(source, query) if first else _Reader(source)
        new = _merged(reader.read() for reader in readers.values())
        came = False
        for line in _last(new, query) if first else new:
            came = True
            yield line
        yield from _merged(reader.held(float("inf") if over else time.monotonic()) for reader in readers.values())
        if over:
            return
        first, pause_s = False, POLL_FIRST_S if came else min(2 * pause_s, POLL_MAX_S)
        if not came:
            yield None
        time.sleep(pause_s)


def metrics(layout: Layout, job: str) -> Iterator[dict[str, Any]]:
    """Every report of rank 0 with a step, oldest first: {"generation", "rank", "t", "step", "metrics"}."""
    for generation, path in _reports(layout, job):
        with path.open("rb") as file:
            for found in map(_report, file):
                if found and "step" in found:
                    yield _numbers(found) | {"generation": generation, "rank": 0}


def progress(layout: Layout, job: str) -> dict[str, Any] | None:
    """The newest report of rank 0 in the newest generation: {"step", "metrics", "t", "phase"}; None without one."""
    reports = _reports(layout, job)
    if not reports or reports[-1][0] != _newest(layout, job):
        return None
    with reports[-1][1].open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - BLOCK_BYTES))
        latest = [found for found in map(_report, file.readlines()) if found]
    stepped = [found for found in latest if "step" in found]
    phases = [found["phase"] for found in latest if "phase" in found]
    return _numbers(stepped[-1]) | {"phase": phases[-1] if phases else None} if stepped else None


# -- which files -----------------------------------------------------------------------------------------------------


def _newest(layout: Layout, job: str) -> int:
    return max((generation for task in layout.tasks(job) for generation in task.generations()), default=1)


def _sources(layout: Layout, query: LogQuery, oldest: int) -> list[_Source]:
    """The files a query reads, of generation `oldest` and, unless it names one, of later ones."""
    return [
        source
        for task in layout.tasks(query.job)
        for generation in task.generations()
        if generation == oldest or (query.generation is None and generation > oldest)
        for source in _of_task(task, generation, query)
    ]


def _of_task(task: TaskDirectory, generation: int, query: LogQuery) -> Iterator[_Source]:
    directory = task.generation(generation)
    for path in sorted(directory.glob("*.log")):
        match = _RANK_FILE.fullmatch(path.name)
        # What the set-up of a node printed belongs, for a reader, to the first rank there.
        rank = int(match[1]) if match else min(task.planned_ranks(generation), default=0)
        if wanted := _streams(query, rank):
            yield _Source(path, generation, rank, wanted)


def _streams(query: LogQuery, rank: int) -> str:
    if query.everything:
        return "oe"
    if query.ranks is not None:
        return "oe" if rank in query.ranks else ""
    return "oe" if rank == 0 else "e"


def _reports(layout: Layout, job: str) -> list[tuple[int, Path]]:
    """(generation, rank 0's reports) in order of generations."""
    found = [
        (generation, task.generation(generation) / "rank-0.report")
        for task in layout.tasks(job)
        for generation in task.generations()
    ]
    return sorted((generation, path) for generation, path in found if path.exists())


# -- reading ---------------------------------------------------------------------------------------------------------


def _merged(streams: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    return heapq.merge(*streams, key=lambda line: line.at_ms)


def _last(found: Iterator[LogLine], query: LogQuery) -> Iterator[LogLine]:
    """The last `tail` of the lines, or all."""
    return found if query.tail is None else iter(deque(found, maxlen=query.tail))


def _reader(source: _Source, query: LogQuery) -> _Reader:
    """A reader that starts where the last `tail` lines do."""
    return _Reader(source, 0 if query.tail is None else _last_lines(source, query.tail))


def _last_lines(source: _Source, count: int) -> int:
    """Where in a file to begin to read, so that its last `count` wanted lines come, and not many more. The first pieces
    of a line may stand before other lines, so the end of the line before is looked for in each stream."""
    with source.path.open("rb") as file:
        end = start = file.seek(0, 2)
        unseen = list(source.streams)
        for start, record in _backwards(file, end):
            if stream := _ends_line(record, source.streams):
                if count <= 0 and stream in unseen:
                    unseen.remove(stream)
                count -= 1
            if count < 0 and (not unseen or end - start > SPAN_BYTES):
                return start + len(record) + 1
    return 0


def _backwards(file: IO[bytes], position: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from the last whole one to the first, each with where it starts."""
    rest = b""  # the end of a line that began in the block before
    whole = False
    while position > 0:
        size = min(BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        first, *lines = (file.read(size) + rest).split(b"\n")
        at = position + len(first) + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            at -= len(line)
            if whole:
                yield at, line
            whole = True  # what follows the last line feed is not a whole line
            at -= 1
        rest = first
    if whole:
        yield 0, rest


def _ends_line(record: bytes, streams: str) -> str:
    """The stream of which this record ends a line; empty when it ends none of those wanted."""
    match = _RECORD.match(record + b"\n")
    stream = match[2].decode() if match else "-"
    return stream if stream in streams else ""


def _report(line: bytes) -> dict[str, Any] | None:
    """One line of a report file; None for a torn one."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _numbers(found: dict[str, Any]) -> dict[str, Any]:
    return {"t": found.get("t"), "step": found["step"], "metrics": found.get("metrics") or {}}
