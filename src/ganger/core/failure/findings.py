"""Findings: a rank's log reduced to the few lines that are evidence of a failure, each with its class and place.

A finding is what one line says by itself; which of them is the cause is decided in `first_cause`. Exceptions follow the
rule of `signatures`: the message of an exception of the program's own type never speaks for a fault of a machine."""

import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from ganger.core.failure.exception_types import classify_exception
from ganger.core.failure.failure_classes import Depth
from ganger.core.failure.log_line import LogLine, parse_log_line
from ganger.core.failure.log_signatures.signature_table import SignatureSearch

FINDINGS_OF_CLASS: Final = 4
"""Findings of one class that are kept for each rank of a file, the oldest; others are counted."""
MAX_RANKS: Final = 100_000
MAX_FRAMES: Final = 64
"""Frames of tracebacks that are remembered, the newest."""
STALE_PROGRESS: Final = 20
"""Lines of progress after an error from which on it counts as survived."""

_FRAME: Final = re.compile(
    r'(?:File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:, in (?P<function>\S+))?'
    r"|│ (?P<boxed>/\S+):(?P<at>\d{1,9}) in )"
)
_LIBRARY: Final = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<")
_SAVE_FILE: Final = "torch/serialization.py"
_SAVE_FUNCTIONS: Final = ("save", "_save", "_legacy_save", "_open_zipfile_writer")
"""Functions of torch that write a checkpoint. What fails in them without a name is most often a full disk or quota:
file systems over the network report it as an I/O error when they write what they had accepted."""
_EXCEPTION: Final = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*?(?:Error|Exception|Exit|Interrupt|Iteration"
    r"|Timeout|Group|Killed|Died)\w*|[A-Z]\w*(?:NotFound|Empty|Full)"
    r"|(?<=\.)[a-z]*error))(?:\((?P<inner>[\w.]+)\))?(?:: ?(?P<message>.*))?$"
)
_IGNORED: Final = re.compile(r"exception ignored in|--- logging error|\s*\^+\s*$", re.IGNORECASE)
_SURVIVED: Final = (
    *("retry", "retries left", "will try", "trying again", "falling back", "fallback", "skipping", "skipped"),
    *("recovered", "ignoring", "ignored", "reconnected", " info ", "info:", "[info]", "debug"),
)
"""Words of a line whose writer went on."""
_WORK: Final = re.compile(
    r"WorkNCCL\(SeqNum=(?P<seq>\d{1,15}), OpType=(?P<op>\w+)(?:,"
    r" NumelIn=(?P<numel>\d{1,18}))?.*?Timeout\(ms\)=(?P<timeout>\d{1,12})\)"
)
_GROUP: Final = re.compile(r"\[PG (?:ID )?(?P<group>\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """File and line number (from 1) of a line of a log."""

    file: str
    line: int

    def after(self, lines: int) -> "Place":
        """Return the place in a file that has that many lines before it."""
        return Place(self.file, self.line + lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line that is evidence.

    Attributes:
        name: A name of `CLASSES`.
        depth: Of the line, which may only be a weak sign of its class.
        at_s: Second of the year by the clock of the line, None if it names none.
        source: `train.py:31` of the innermost frame of the program's own code, for an exception.
        is_generic: An exception of which nothing more is known than that the program raised it.
    """

    name: str
    depth: int
    place: Place
    text: str
    rank: int | None = None
    node: str = ""
    at_s: int | None = None
    source: str = ""
    is_generic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWork:
    """A collective operation in which a rank waited: its number in the group, type and size (elements, None unknown).

    is_complete: The rank waited in none: it is the newest that was complete.
    """

    rank: int
    group: str
    sequence: int
    operation: str
    elements: int | None
    place: Place
    text: str
    is_complete: bool = False


@dataclass(slots=True)
class FileFindings:
    """All that one log, or a part of it, says.

    counts: findings of (class, rank), those not kept included; lines: those of the part, for the parts after it.
    """

    findings: list[Finding] = field(default_factory=list)
    works: list[CollectiveWork] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    counts: dict[tuple[str, int | None], int] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    lines: int = 0

    def shift(self, lines: int) -> None:
        """Add the lines of the file before the part to the numbers of its own."""
        if lines:
            self.findings = [replace(found, place=found.place.after(lines)) for found in self.findings]
            self.works = [replace(work, place=work.place.after(lines)) for work in self.works]


def is_telling(raw: str, search: SignatureSearch) -> bool:
    """Return whether a line, or one that differs from it only in numbers, may be evidence or part of a traceback."""
    if 'File "' in raw or "│ /" in raw or (raw[:1] == "{" and "\\n" in raw):
        return True
    text = parse_log_line(raw).text
    return _EXCEPTION.match(text) is not None or search.has_rows(text)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The class, depth, source and `is_generic` of a finding."""

    name: str
    depth: int
    source: str = ""
    is_generic: bool = field(default=False, kw_only=True)


class LogFindings:
    """Reader of one log: `read` takes its telling lines in order, `result` has what they say.

    rank, node: those that the name of the file says, for lines that name none.
    """

    def __init__(self, file: str, search: SignatureSearch, rank: int | None = None, node: str = "") -> None:
        self.result = FileFindings()
        self._file = file
        self._search = search
        self._rank = rank
        self._node = node
        self._frames: deque[tuple[int, str]] = deque(maxlen=MAX_FRAMES)
        self._last_work: dict[int, int] = {}
        self._exceptions: dict[int | None, int] = {}
        self._weakest: dict[tuple[str, int | None], int] = {}
        if rank is not None:
            self.result.ranks.add(rank)

    def read(self, number: int, raw: str) -> None:
        """Read the line of this number (from 1)."""
        if raw[:1] == "{" and "\\n" in raw:
            for piece in raw.replace('\\"', '"').split("\\n"):
                self._read_line(number, piece)
        else:
            self._read_line(number, raw)

    def _read_line(self, number: int, raw: str) -> None:
        if ('File "' in raw or "│ /" in raw) and _FRAME.search(raw):
            self._frames.append((number, raw))
            return
        line = parse_log_line(raw)
        is_source = bool(self._frames) and self._frames[-1][0] == number - 1 and line.text[:1] == " "
        if is_source or _IGNORED.match(line.text):
            return
        place = Place(self._file, number)
        self._read_work(line, place)
        if exception := _EXCEPTION.match(line.text.lstrip("| │")):
            self._add_exception(exception, line, place)
        elif match := self._search.find(line.text):
            lowered = line.text.lower()
            if match.depth < Depth.NOISE and "nccl info" in lowered:
                return
            is_survived = Depth.FACT < match.depth < Depth.END and any(word in lowered for word in _SURVIVED)
            depth = Depth.END if is_survived else match.depth
            self.result.cancelled.update(match.signature.cancels)
            self._add(line, place, _Evidence(match.failure_class.name, depth))

    def _add_exception(self, exception: re.Match[str], line: LogLine, place: Place) -> None:
        name = exception["inner"] or exception["name"]
        match = classify_exception(name, exception["message"] or "", self._search)
        if match is None:
            return
        failure_class, depth, is_generic = match
        source, saves = self._source(line, self._exceptions.get(line.rank, 0))
        if len(self._exceptions) < MAX_RANKS:
            self._exceptions[line.rank] = place.line
        if saves and (is_generic or failure_class == "shared_storage_error"):
            failure_class, is_generic = "disk_full", True
        self._add(line, place, _Evidence(failure_class, depth, source, is_generic=is_generic))

    def _source(self, line: LogLine, after: int) -> tuple[str, bool]:
        """Return the innermost frame of the program's own code, and whether torch was writing a checkpoint there.

        after: the line of the rank's exception before this one.
        """
        innermost, saves = "", False
        for number, raw in reversed(self._frames):
            frame = _FRAME.search(raw)
            if number <= after:
                break
            if frame is None or parse_log_line(raw).rank != line.rank:
                continue
            file = frame["file"] or frame["boxed"]
            source = f"{file}:{frame['line'] or frame['at']}"
            if not _LIBRARY.search(file):
                return source, saves
            innermost = innermost or source
            saves = saves or (file.endswith(_SAVE_FILE) and frame["function"] in _SAVE_FUNCTIONS)
        return innermost, saves

    def _rank_of(self, line: LogLine) -> int | None:
        rank = line.find_rank()
        return self._rank if rank is None else rank

    def _read_work(self, line: LogLine, place: Place) -> None:
        if "PG" not in line.text and "WorkNCCL" not in line.text:
            return
        rank = self._rank_of(line)
        if rank is None:
            return
        if found := _WORK.search(line.text):
            self._last_work[rank] = len(self.result.works)
            work = CollectiveWork(
                rank=rank,
                group="",
                sequence=int(found["seq"]),
                operation=found["op"].lstrip("_"),
                elements=int(found["numel"]) if found["numel"] else None,
                place=place,
                text=line.text,
            )
            if len(self.result.works) < MAX_RANKS and not any(
                known.rank == work.rank and known.sequence == work.sequence
                for known in self.result.works[-FINDINGS_OF_CLASS:]
            ):
                self.result.works.append(work)
        if (group := _GROUP.search(line.text)) and rank in self._last_work:
            index = self._last_work.pop(rank)
            if index < len(self.result.works):
                self.result.works[index] = replace(self.result.works[index], group=group["group"])

    def _add(self, line: LogLine, place: Place, evidence: _Evidence) -> None:
        rank, depth = self._rank_of(line), evidence.depth
        if rank is not None and len(self.result.ranks) < MAX_RANKS:
            self.result.ranks.add(rank)
        key = (evidence.name, rank)
        count = self.result.counts[key] = self.result.counts.get(key, 0) + 1
        if count > FINDINGS_OF_CLASS and depth >= self._weakest.get(key, depth):
            return
        self._weakest[key] = max(depth, self._weakest.get(key, depth))
        self.result.findings.append(
            Finding(
                name=evidence.name,
                depth=depth,
                place=place,
                text=line.text,
                rank=rank,
                node=line.find_node() or self._node,
                at_s=line.find_time_s(),
                source=evidence.source,
                is_generic=evidence.is_generic,
            )
        )
