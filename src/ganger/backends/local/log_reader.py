"""Output, reports and progress of a job's ranks, read from files that may still grow.

It only reads files and shares no state, so any thread may call it. A record is one line of a file, `<unix ms>
<stream> <text>`; stream `O` or `E` is a piece of a line of stdout or stderr that continues in the next record of that
stream, `u` or `v` the current text of a line that has not ended (docs/reference/launcher-protocol.md, "Files"). Only
one block of each file is in memory, however long a log is.
"""

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
from ganger.launcher.logs.log_records import UPDATE_CHARACTERS
from ganger.launcher_server import message_schema
from ganger.launcher_server.message_schema import BadMessage
from ganger.model.units import format_bytes
from ganger.patterns import pattern
from ganger.ports import LogLine, LogQuery

BLOCK_BYTES: Final = 64 * 1024
MAX_LINE: Final = 256 * 1024
"""Characters; a longer line is split."""
MAX_LIVE_LINE: Final = 16 * 1024
"""Characters; the rest of a longer line is left out for a live follower, which would fall behind with all of it."""
SPAN_BYTES: Final = 1 << 20
"""Distance back over which the start of a line is searched that begins before other lines."""
POLL_FIRST_S: Final = 0.05
POLL_MAX_S: Final = 0.2
LIMIT: Final = "keep.rank_log_size of settings.toml"
HELD_S: Final = 1.0
"""Time for which a follower holds the start of a line, waiting for its end."""

_time_of = attrgetter("at_ms")
_RECORD = re.compile(rb"^(\d+) ([oeOEuv]) (.*)$", re.MULTILINE)
_UPDATED: Final = {"u": "o", "v": "e"}


class _Reader:
    """Reads whole lines of a log onward from `position`, an offset in the log, and yields those that match."""

    def __init__(
        self, source: Source, matches: Callable[[int, str], bool] | None, position: int = 0, *, is_live: bool = False
    ) -> None:
        self._source = source
        self._matches = matches
        self._is_live = is_live
        self._left_out: dict[str, int] = {}  # bytes of a line that is cut
        self._part = 0
        self._position = position
        self._pieces: dict[str, tuple[int, list[str]]] = {}  # joined once: a long line has many
        self._updates: dict[str, tuple[int, str]] = {}
        self._yielded_updates: dict[str, tuple[int, str]] = {}
        self._last_growth_s = 0.0

    def read(self) -> Iterator[LogLine]:
        """Yield the lines since the last call, and a notice in the place of parts that were deleted unread."""
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
            remaining = file.seek(0, 2) - offset
            file.seek(offset)
            rest = b""
            while block := file.read(min(BLOCK_BYTES, remaining)):
                remaining -= len(block)
                block = rest + block
                end = block.rfind(b"\n") + 1
                rest = block[end:]
                if end and self._position < part.start:
                    yield from self._omission(part.start - self._position, block)
                    self._position = part.start
                self._position += end
                self._last_growth_s = time.monotonic()
                yield from self._lines(block[:end])

    def _omission(self, missing: int, block: bytes) -> Iterator[LogLine]:
        """Yield a notice of how many bytes are missing before this block."""
        yield from self.held(float("inf"))
        first = _RECORD.search(block)
        at_ms = int(first[1]) - 1 if first else 0  # sorted before that line, and after what a follower has read
        text = f"ganger: {format_bytes(missing)} of this log are missing here: it exceeds {LIMIT}"
        if self._matches is None or self._matches(at_ms, text):
            yield self._line(at_ms, "e", text)

    def held(self, now_s: float) -> Iterator[LogLine]:
        """Yield starts of lines that have not continued for a while before `now_s`."""
        if self._pieces and now_s - self._last_growth_s >= HELD_S:
            for stream, (at_ms, pieces) in sorted(self._pieces.items(), key=lambda piece: piece[1][0]):
                text = "".join(pieces)
                if self._matches is None or self._matches(at_ms, text):
                    yield self._line(at_ms, stream, text)
            self._pieces.clear()

    def read_all(self) -> Iterator[LogLine]:
        """Yield everything, including lines without an end."""
        yield from self.read()
        yield from self.unended()

    def updates(self) -> Iterator[LogLine]:
        """Yield the start of lines without an end, where it has changed since the last call."""
        for stream, (at_ms, text) in self._updates.items():
            if self._yielded_updates.get(stream) != (at_ms, text) and (
                self._matches is None or self._matches(at_ms, text)
            ):
                start = "".join((*self._pieces.get(stream, (0, []))[1], text))
                yield self._line(at_ms, stream, start[:UPDATE_CHARACTERS])._replace(is_unfinished=True)
        self._yielded_updates = dict(self._updates)

    def unended(self) -> Iterator[LogLine]:
        """Yield the last known text of lines without an end."""
        for stream, (at_ms, text) in self._updates.items():
            start_ms, pieces = self._pieces.get(stream, (at_ms, []))
            self._pieces[stream] = (start_ms, [*pieces, text])
        self._updates.clear()
        yield from self.held(float("inf"))

    def _lines(self, block: bytes) -> Iterator[LogLine]:
        """Yield the lines of a block of whole records; malformed records were torn by a crash of the machine."""
        streams, matches = self._source.streams, self._matches
        max_line = MAX_LIVE_LINE if self._is_live else MAX_LINE
        for stamp, code, content in _RECORD.findall(block):
            kind = code.decode()
            stream = _UPDATED.get(kind) or kind.lower()
            if stream not in streams:
                continue
            at_ms = int(stamp)
            if stream in self._left_out:
                yield from self._leave_out(at_ms, stream, kind, content)
                continue
            text = content.decode(errors="replace")
            if kind in _UPDATED:
                self._updates[stream] = (at_ms, text)
                continue
            if self._updates:
                self._updates.pop(stream, None)
            if kind != stream or self._pieces:
                pieces = self._pieces.pop(stream, (0, []))[1]
                pieces.append(text)
                if kind != stream and sum(map(len, pieces)) < max_line:
                    self._pieces[stream] = (at_ms, pieces)
                    continue
                text = "".join(pieces)
            if matches is None or matches(at_ms, text):
                yield self._line(at_ms, stream, text)
                if self._is_live and kind != stream:
                    self._left_out[stream] = 0

    def _leave_out(self, at_ms: int, stream: str, kind: str, content: bytes) -> Iterator[LogLine]:
        """Count the rest of a line that is cut; at its end, yield a notice."""
        if kind not in _UPDATED:
            self._left_out[stream] += len(content)
        if kind == stream:
            left_out = format_bytes(self._left_out.pop(stream))
            yield self._line(at_ms, stream, f"ganger: {left_out} more of this line: ganger logs JOB > FILE")

    def _line(self, at_ms: int, stream: str, text: str) -> LogLine:
        return LogLine(at_ms, self._source.generation, self._source.rank, stream, text)


def lines(files: JobFiles, query: LogQuery) -> Iterator[LogLine]:
    """Yield the lines of one generation, or of all from `query.first` on, merged by time. ValueError for a bad name."""
    newest = newest_generation(files, query.job)
    oldest = query.generation or query.first or newest
    sources = [source for source in Sources(files, query, oldest).new() if source.generation <= max(newest, oldest)]
    matches = _matcher(query)
    yield from _take_tail(_merged(_reader(source, query, matches).read_all() for source in sources), query)


def follow(files: JobFiles, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
    """Yield the lines so far, then new ones, over later generations unless the query names one, until `ended()`.

    Yields None after each pass.
    """
    sources = Sources(files, query, query.generation or query.first or newest_generation(files, query.job))
    matches = _matcher(query)
    readers: list[_Reader] = []
    first, pause_s = True, POLL_FIRST_S
    while True:
        is_over = ended()  # before the last pass, which then reads everything
        readers += [_reader(source, query, matches, from_tail=first) for source in sources.new()]
        new = _merged(reader.read() for reader in readers)
        has_new = False
        for line in _take_tail(new, query) if first else new:
            has_new = True
            yield line
        if query.live and not is_over:
            yield from _merged(reader.updates() for reader in readers)
        now_s = time.monotonic()
        yield from _merged(reader.unended() if is_over else reader.held(now_s) for reader in readers)
        if is_over:
            return
        first, pause_s = False, POLL_FIRST_S if has_new else min(2 * pause_s, POLL_MAX_S)
        yield None
        time.sleep(pause_s)


def newest_lines(source: Source, most_bytes: int) -> Iterator[LogLine]:
    """Yield the lines in the last bytes of one log; none if it does not exist."""
    parts = parts_of(source.path)
    try:
        size = parts[-1].start + parts[-1].path.stat().st_size
    except OSError:
        return
    yield from _Reader(replace(source, parts=parts), None, max(0, size - most_bytes)).read_all()


def reports(files: JobFiles, job: str) -> Iterator[dict[str, Any]]:
    """Yield every report of rank 0 with a step, oldest first: {"generation", "rank", "t", "step", "metrics"}."""
    for generation, path in _report_files(files, job):
        with path.open("rb") as file:
            for report in map(_report, file):
                if report and report.get("step") is not None:
                    yield _numbers(report) | {"generation": generation, "rank": 0}


def progress(files: JobFiles, job: str) -> dict[str, Any] | None:
    """Return the newest report of rank 0 in the newest generation, None without one.

    The report has "step", "metrics", "t" and "phase".
    """
    paths = _report_files(files, job)
    if not paths or paths[-1][0] != newest_generation(files, job):
        return None
    with paths[-1][1].open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - BLOCK_BYTES))
        latest = [report for report in map(_report, file.readlines()) if report]
    stepped = [report for report in latest if report.get("step") is not None]
    phases = [report["phase"] for report in latest if "phase" in report]
    return _numbers(stepped[-1]) | {"phase": phases[-1] if phases else None} if stepped else None


def _report_files(files: JobFiles, job: str) -> list[tuple[int, Path]]:
    """Return (generation, report file of rank 0), ordered by generation."""
    candidates = [
        (generation, task.generation(generation) / "rank-0.report")
        for task in files.tasks(job)
        for generation in task.generations()
    ]
    return sorted((generation, path) for generation, path in candidates if path.exists())


# -- reading ---------------------------------------------------------------------------------------------------------


def _merged(streams: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    return heapq.merge(*streams, key=_time_of)


def _take_tail(lines: Iterator[LogLine], query: LogQuery) -> Iterator[LogLine]:
    """Return the last `tail` lines, or all."""
    return lines if query.tail is None else iter(deque(lines, maxlen=query.tail))


def _matcher(query: LogQuery) -> Callable[[int, str], bool] | None:
    """Return a predicate on the time and text of a line; None if every line matches."""
    if not query.filters_lines:
        return None
    since_ms = query.since_ms or 0
    until_ms = float("inf") if query.until_ms is None else query.until_ms
    matches = pattern(query.grep or "").matches
    return lambda at_ms, text: since_ms <= at_ms <= until_ms and matches(text)


def _reader(
    source: Source, query: LogQuery, matches: Callable[[int, str], bool] | None, *, from_tail: bool = True
) -> _Reader:
    """Return a reader that starts at the last `tail` lines, or at the beginning if lines are filtered."""
    whole = query.tail is None or matches is not None or not from_tail
    return _Reader(source, matches, 0 if whole else _tail_offset(source, query.tail or 0), is_live=query.live)


def _tail_offset(source: Source, count: int) -> int:
    """Return the offset from which to read, so that the last `count` lines of the selected streams are included.

    The first pieces of a line may precede other lines, so the end of the previous line is searched in each stream.
    """
    end: int | None = None
    missing = list(source.streams)
    for start, record in _records_backwards(source.parts):
        end = start + len(record) if end is None else end
        if stream := _ends_line(record, source.streams):
            if count <= 0 and stream in missing:
                missing.remove(stream)
            count -= 1
        if count < 0 and (not missing or end - start > SPAN_BYTES):
            return start + len(record) + 1
    return 0


def _records_backwards(parts: Sequence[Part]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a log from the last whole one to the first, each with its offset in the log."""
    for part in reversed(parts):
        with suppress(FileNotFoundError), part.path.open("rb") as file:
            for offset, record in _lines_backwards(file, file.seek(0, 2)):
                yield part.start + offset, record


def _lines_backwards(file: IO[bytes], position: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from the last whole one to the first, each with its offset."""
    rest = b""  # the end of a line that began in the previous block
    is_whole = False
    while position > 0:
        size = min(BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        first, *lines = (file.read(size) + rest).split(b"\n")
        offset = position + len(first) + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            offset -= len(line)
            if is_whole:
                yield offset, line
            is_whole = True  # the text after the last line feed is not a whole line
            offset -= 1
        rest = first
    if is_whole:
        yield 0, rest


def _ends_line(record: bytes, streams: str) -> str:
    """Return the selected stream of which this record ends a line, or ""."""
    match = _RECORD.match(record)
    stream = match[2].decode() if match else "-"
    return stream if stream in streams else ""


def _report(line: bytes) -> dict[str, Any] | None:
    """Parse one line of a report file; None for a damaged one."""
    try:
        return message_schema.report(line) if line.endswith(b"\n") else None
    except BadMessage:
        return None


def _numbers(report: dict[str, Any]) -> dict[str, Any]:
    return {"t": report.get("t"), "step": report["step"], "metrics": report.get("metrics") or {}}
