"""What a job's ranks wrote and reported, read from their files while they may still grow.

Called by the backend on the threads of readers: it only reads files and shares no state. A record is one line of a
file, `<unix ms> <stream> <text>`; stream `O` or `E` is a piece of a line of stdout or stderr that goes on in the next
record of that stream (docs/reference/launcher-protocol.md, "Files"). However long a log is, only a block of each file
is in memory."""

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Final

from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.log_files import Part, Source, Sources, newest_generation, parts_of
from ganger.launcher_server import message_schema
from ganger.launcher_server.message_schema import BadMessage
from ganger.model.units import format_bytes
from ganger.patterns import pattern
from ganger.ports import LogLine, LogQuery

BLOCK_BYTES: Final = 64 * 1024
LONGEST_LINE: Final = 256 * 1024
"""Characters; a longer line is given in parts."""
SPAN_BYTES: Final = 1 << 20
"""How far back the start of a line is looked for that begins before other lines."""
POLL_FIRST_S: Final = 0.05
POLL_MAX_S: Final = 0.2
LIMIT: Final = "keep.rank_log_size of settings.toml"
HELD_S: Final = 1.0
"""How long a follower keeps the start of a line back, waiting for its end."""

_at = attrgetter("at_ms")
_RECORD = re.compile(rb"^(\d+) ([oeOE]) (.*)$", re.MULTILINE)


class _Reader:
    """Reads a log onward from where it stopped, `position` bytes after its beginning, whole lines only, and gives those
    that fit."""

    def __init__(self, source: Source, fits: Callable[[int, str], bool] | None, position: int = 0) -> None:
        self._source = source
        self._fits = fits
        self._part = 0
        self._position = position
        self._pieces: dict[str, tuple[int, str]] = {}
        self._grew_s = 0.0

    def read(self) -> Iterator[LogLine]:
        """The lines that have come since the last time; what comes meanwhile is for the next time. A line in the place
        of those that have gone before they were read."""
        parts = tuple(self._source.parts)
        yield from self._read(parts[self._part])
        while self._part + 1 < len(parts):
            self._part += 1
            yield from self._read(parts[self._part])

    def _read(self, part: Part) -> Iterator[LogLine]:
        offset = max(0, self._position - part.start)
        try:
            if part.path.stat().st_size <= offset:
                return
            file = part.path.open("rb")
        except OSError:
            return
        with file:
            left = file.seek(0, 2) - offset
            file.seek(offset)
            rest = b""
            while block := file.read(min(BLOCK_BYTES, left)):
                left -= len(block)
                block = rest + block
                end = block.rfind(b"\n") + 1
                rest = block[end:]
                if end and self._position < part.start:
                    yield from self._left_out(part.start - self._position, block)
                    self._position = part.start
                self._position += end
                self._grew_s = time.monotonic()
                yield from self._lines(block[:end])

    def _left_out(self, missing: int, block: bytes) -> Iterator[LogLine]:
        """A line that says how much is missing before this block."""
        yield from self.held(float("inf"))
        first = _RECORD.search(block)
        at_ms = int(first[1]) - 1 if first else 0  # before that line, and after what a follower had before
        text = f"ganger: {format_bytes(missing)} of this log were left out here: it is longer than {LIMIT} allows"
        if self._fits is None or self._fits(at_ms, text):
            yield self._line(at_ms, "e", text)

    def held(self, now_s: float) -> Iterator[LogLine]:
        """The starts of lines that have not gone on for a while before `now_s`."""
        if self._pieces and now_s - self._grew_s >= HELD_S:
            for stream, (at_ms, text) in sorted(self._pieces.items(), key=lambda piece: piece[1][0]):
                if self._fits is None or self._fits(at_ms, text):
                    yield self._line(at_ms, stream, text)
            self._pieces.clear()

    def read_all(self) -> Iterator[LogLine]:
        """All there is, lines that never got their end as well."""
        yield from self.read()
        yield from self.held(float("inf"))

    def _lines(self, block: bytes) -> Iterator[LogLine]:
        """What a block of whole records gives. What is no record was torn by a crash of the machine."""
        wanted, fits = self._source.streams, self._fits
        for stamp, letter, content in _RECORD.findall(block):
            kind = letter.decode()
            stream = kind.lower()
            if stream not in wanted:
                continue
            at_ms, text = int(stamp), content.decode(errors="replace")
            if self._pieces and (start := self._pieces.pop(stream, None)):
                text = start[1] + text
            if kind != stream and len(text) < LONGEST_LINE:
                self._pieces[stream] = (at_ms, text)
            elif fits is None or fits(at_ms, text):
                yield self._line(at_ms, stream, text)

    def _line(self, at_ms: int, stream: str, text: str) -> LogLine:
        return LogLine(at_ms, self._source.generation, self._source.rank, stream, text)


def lines(layout: JobFiles, query: LogQuery) -> Iterator[LogLine]:
    """What the ranks of one generation, or of all from `query.first` on, have written so far, merged by time.
    ValueError when the job's name is none."""
    newest = newest_generation(layout, query.job)
    oldest = query.generation or query.first or newest
    sources = [source for source in Sources(layout, query, oldest).new() if source.generation <= max(newest, oldest)]
    fits = _sieve(query)
    yield from _last(_merged(_reader(source, query, fits).read_all() for source in sources), query)


def follow(layout: JobFiles, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
    """The same, then what comes, over the generations that follow unless one is asked for, until `ended()`. None after
    each look."""
    sources = Sources(layout, query, query.generation or query.first or newest_generation(layout, query.job))
    fits = _sieve(query)
    readers: list[_Reader] = []
    first, pause_s = True, POLL_FIRST_S
    while True:
        over = ended()  # asked before the last look, which then finds all there is
        readers += [_reader(source, query, fits) if first else _Reader(source, fits) for source in sources.new()]
        new = _merged(reader.read() for reader in readers)
        came = False
        for line in _last(new, query) if first else new:
            came = True
            yield line
        yield from _merged(reader.held(float("inf") if over else time.monotonic()) for reader in readers)
        if over:
            return
        first, pause_s = False, POLL_FIRST_S if came else min(2 * pause_s, POLL_MAX_S)
        yield None
        time.sleep(pause_s)


def newest_lines(source: Source, most_bytes: int) -> Iterator[LogLine]:
    """The lines in the last bytes of one file; of a file that is not there, none."""
    parts = parts_of(source.path)
    try:
        size = parts[-1].start + parts[-1].path.stat().st_size
    except OSError:
        return
    yield from _Reader(replace(source, parts=parts), None, max(0, size - most_bytes)).read_all()


def metrics(layout: JobFiles, job: str) -> Iterator[dict[str, Any]]:
    """Every report of rank 0 with a step, oldest first: {"generation", "rank", "t", "step", "metrics"}."""
    for generation, path in _reports(layout, job):
        with path.open("rb") as file:
            for found in map(_report, file):
                if found and found.get("step") is not None:
                    yield _numbers(found) | {"generation": generation, "rank": 0}


def progress(layout: JobFiles, job: str) -> dict[str, Any] | None:
    """The newest report of rank 0 in the newest generation: {"step", "metrics", "t", "phase"}; None without one."""
    reports = _reports(layout, job)
    if not reports or reports[-1][0] != newest_generation(layout, job):
        return None
    with reports[-1][1].open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - BLOCK_BYTES))
        latest = [found for found in map(_report, file.readlines()) if found]
    stepped = [found for found in latest if found.get("step") is not None]
    phases = [found["phase"] for found in latest if "phase" in found]
    return _numbers(stepped[-1]) | {"phase": phases[-1] if phases else None} if stepped else None


def _reports(layout: JobFiles, job: str) -> list[tuple[int, Path]]:
    """(generation, rank 0's reports) in order of generations."""
    found = [
        (generation, task.generation(generation) / "rank-0.report")
        for task in layout.tasks(job)
        for generation in task.generations()
    ]
    return sorted((generation, path) for generation, path in found if path.exists())


# -- reading ---------------------------------------------------------------------------------------------------------


def _merged(streams: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    return heapq.merge(*streams, key=_at)


def _last(found: Iterator[LogLine], query: LogQuery) -> Iterator[LogLine]:
    """The last `tail` of the lines, or all."""
    return found if query.tail is None else iter(deque(found, maxlen=query.tail))


def _sieve(query: LogQuery) -> Callable[[int, str], bool] | None:
    """Whether a line, by its time and its text, is wanted; None when every line is."""
    if not query.filters_lines:
        return None
    since_ms = query.since_ms or 0
    until_ms = float("inf") if query.until_ms is None else query.until_ms
    matches = pattern(query.grep or "").matches
    return lambda at_ms, text: since_ms <= at_ms <= until_ms and matches(text)


def _reader(source: Source, query: LogQuery, fits: Callable[[int, str], bool] | None) -> _Reader:
    """A reader that starts where the last `tail` lines do; at the beginning when only reading tells which those are."""
    whole = query.tail is None or fits is not None
    return _Reader(source, fits, 0 if whole else _last_lines(source, query.tail or 0))


def _last_lines(source: Source, count: int) -> int:
    """Where in a log to begin to read, so that its last `count` wanted lines come, and not many more. The first pieces
    of a line may stand before other lines, so the end of the line before is looked for in each stream."""
    end: int | None = None
    unseen = list(source.streams)
    for start, record in _all_backwards(source.parts):
        end = start + len(record) if end is None else end
        if stream := _ends_line(record, source.streams):
            if count <= 0 and stream in unseen:
                unseen.remove(stream)
            count -= 1
        if count < 0 and (not unseen or end - start > SPAN_BYTES):
            return start + len(record) + 1
    return 0


def _all_backwards(parts: Sequence[Part]) -> Iterator[tuple[int, bytes]]:
    """The lines of a log from the last whole one to the first, each with where in the log it starts."""
    for part in reversed(parts):
        with suppress(FileNotFoundError), part.path.open("rb") as file:
            for at, record in _backwards(file, file.seek(0, 2)):
                yield part.start + at, record


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
    match = _RECORD.match(record)
    stream = match[2].decode() if match else "-"
    return stream if stream in streams else ""


def _report(line: bytes) -> dict[str, Any] | None:
    """One line of a report file; None for a torn one."""
    try:
        return message_schema.report(line) if line.endswith(b"\n") else None
    except BadMessage:
        return None


def _numbers(found: dict[str, Any]) -> dict[str, Any]:
    return {"t": found.get("t"), "step": found["step"], "metrics": found.get("metrics") or {}}
