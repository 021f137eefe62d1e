"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, `;` before comments, seconds.

A processor is a CPU: such a job asks for no GPU, and its number of nodes is left to the scheduler. It asks for the
processors it requested or, if that is unknown, for those it had; memory is KiB for each of them. -1 means unknown. The
requested time is its limit, the run time its duration. Rows of status 2, 3 and 4 are parts of a job that a row of
status 0 or 1 describes as a whole, and are dropped. Status, group, executable, partition, the job before and the think
time are kept as text. Source: Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers".
"""

import re
from collections.abc import Sequence
from typing import Final

from ganger.model.units import KIB_BYTES, SECOND_MS
from ganger.simulation.traces.record_checks import new_job_check, submitted_ms
from ganger.simulation.traces.trace import Flaw, RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import BadRow, Row, bounded

_COLUMNS: Final = (
    *("job", "submit", "wait", "run", "processors", "cpu_time", "memory"),
    *("requested_processors", "requested_time", "requested_memory"),
    *("status", "user", "group", "executable", "queue", "partition", "preceding_job", "think_time"),
)
_STATUS: Final = 1
"""Index among the columns that are kept as text."""
_PARTS: Final = ("2", "3", "4")
_UNKNOWN = re.compile(r"-1(\.0*)?")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")


def job(row: Row) -> RecordedJob:
    """Return the job of a row."""
    status = row.extra()[_STATUS]
    if status in _PARTS:
        raise BadRow(Flaw.PART_OF_A_JOB, f"job {row.text('name')} has status {status}")
    submitted_ms, wait_ms = row.rounded("submitted", SECOND_MS), _known(row, "wait", SECOND_MS)
    processors = _count(row, "requested_processors") or _count(row, "processors") or 0
    memory_bytes = _known(row, "requested_memory", KIB_BYTES)
    if memory_bytes is None:
        memory_bytes = _known(row, "memory", KIB_BYTES)
    return RecordedJob(
        name=row.required("name"),
        submitted_ms=submitted_ms,
        duration_ms=_known(row, "run", SECOND_MS),
        cpu_milli=bounded("processors", processors * 1000),
        memory_bytes=None if memory_bytes is None else bounded("memory", memory_bytes * processors),
        user=_word(row, "user"),
        queue=_word(row, "queue"),
        started_ms=None if wait_ms is None else bounded("wait", submitted_ms + wait_ms),
        limit_ms=_known(row, "requested_time", SECOND_MS) or None,
        extra=row.extra(),
        line=row.line,
    )


def _known(row: Row, key: str, unit: int = 1) -> int | None:
    return None if _UNKNOWN.fullmatch(row.text(key)) else row.rounded(key, unit)


def _count(row: Row, key: str) -> int | None:
    return None if _UNKNOWN.fullmatch(row.text(key)) else row.integer(key)


def _word(row: Row, key: str) -> str:
    return "" if _UNKNOWN.fullmatch(row.text(key)) else row.text(key)


def _are_numbers(fields: Sequence[str]) -> bool:
    return all(_NUMBER.fullmatch(field) for field in fields)


FORMAT: Final = Format(
    name="swf",
    doc="the Standard Workload Format of the Parallel Workloads Archive",
    columns=(
        {
            "name": "job",
            "submitted": "submit",
            "wait": "wait",
            "run": "run",
            "processors": "processors",
            "memory": "memory",
            "requested_processors": "requested_processors",
            "requested_time": "requested_time",
            "requested_memory": "requested_memory",
            "user": "user",
            "queue": "queue",
        },
    ),
    record=job,
    new_check=new_job_check,
    time_of=submitted_ms,
    positions=(_COLUMNS,),
    delimiter=None,
    comment=";",
    matches=_are_numbers,
)
