"""Reading of logs into findings, by several processes where there is much to read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from ganger.core.failure.findings import FileFindings, LogFindings, is_telling
from ganger.core.failure.log_signatures.signature_table import SignatureSearch
from ganger.diagnosis.flight_recorder import NAME, read_dump
from ganger.diagnosis.line_filter import LineSelection, TellingTemplates
from ganger.diagnosis.log_files import LogFile

SINGLE_PROCESS_BYTES: Final = 16 << 20
PART_BYTES: Final = 16 << 20
"""Part of a larger file that one process reads at a time."""
MAX_PROCESSES: Final = 8
TASKS_OF_PROCESS: Final = 4


@dataclass(frozen=True, slots=True)
class LogPart:
    """The bytes [start, end) of a log."""

    log: LogFile
    start: int
    end: int


def read_logs(files: Sequence[LogFile]) -> tuple[list[FileFindings], list[str]]:
    """Return what the logs say, in their order, and a sentence for each that could not be read."""
    parts = [part for file in files for part in _parts(file)]
    processes = min(len(os.sched_getaffinity(0)), MAX_PROCESSES, len(parts))
    if processes < 2 or sum(file.size for file in files) < SINGLE_PROCESS_BYTES:
        results = [_read(parts)]
    else:
        from concurrent.futures import ProcessPoolExecutor  # not for the few logs of a small job

        with ProcessPoolExecutor(processes) as pool:
            results = list(pool.map(_read, _tasks(parts, processes * TASKS_OF_PROCESS)))
    found: list[FileFindings] = []
    lines = 0
    for part, findings in zip(parts, (findings for task, _ in results for findings in task), strict=True):
        if part.start == 0:
            lines = 0
        findings.shift(lines)
        lines += findings.lines
        found.append(findings)
    return found, [sentence for _, unread in results for sentence in unread]


@cache
def _signatures() -> tuple[SignatureSearch, TellingTemplates]:
    """Return what this process knows of lines that it has read, whichever part they are of."""
    search = SignatureSearch()
    return search, TellingTemplates(lambda line: is_telling(line.decode("utf-8", "replace"), search))


def _parts(file: LogFile) -> list[LogPart]:
    starts = range(0, max(file.size, 1), PART_BYTES)
    return [LogPart(file, start, min(start + PART_BYTES, file.size)) for start in starts]


def _tasks(parts: Sequence[LogPart], amount: int) -> list[list[LogPart]]:
    """Return the parts in about that many tasks of about equal size, in order."""
    share = sum(part.end - part.start for part in parts) // amount + 1
    tasks: list[list[LogPart]] = [[]]
    size = 0
    for part in parts:
        if size >= share:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += part.end - part.start
    return tasks


def _read(parts: Sequence[LogPart]) -> tuple[list[FileFindings], list[str]]:
    search, telling = _signatures()
    found, unread = [], []
    for part in parts:
        log = part.log
        reader = LogFindings(log.name, search, log.rank, log.node)
        try:
            with log.path.open("rb") as stream:
                if NAME in log.path.name:
                    found.append(read_dump(stream, log.name, log.rank) if part.start == 0 else FileFindings())
                    continue
                lines = LineSelection(stream, log.size, telling, part.start, part.end)
                for number, line in lines:
                    reader.read(number, line.decode("utf-8", "replace"))
                reader.result.lines = lines.newlines
        except ValueError as error:
            unread.append(f"{log.name}: {error}")
        except OSError as error:
            if part.start == 0:
                unread.append(f"{log.name}: {error.strerror}")
        found.append(reader.result)
    return found, unread
