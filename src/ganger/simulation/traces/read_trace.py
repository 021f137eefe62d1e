"""The reader of a trace of any format: every row becomes a record, or is counted with its flaw.

Lines are read one at a time; only the records are kept in memory.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from ganger.model.cluster import Node
from ganger.simulation.traces import elasticflow, fault_trace, ganger_format, gavel, muri, openb, swf
from ganger.simulation.traces.schedulers import kubernetes_pods, sacct
from ganger.simulation.traces.text_lines import Line, begins_with, numbered_lines
from ganger.simulation.traces.trace import (
    KEPT_FLAWS,
    MEANING,
    Findings,
    Flaw,
    NodeFault,
    RecordedJob,
    Trace,
    UnreadableTrace,
)
from ganger.simulation.traces.trace_format import Format, FormatMismatch, Layout
from ganger.simulation.traces.trace_row import BadRow, Row

T = TypeVar("T")

JOB_FORMATS: Final = (
    ganger_format.JOBS,
    openb.PODS,
    elasticflow.FORMAT,
    muri.MURI,
    muri.TIRESIAS,
    gavel.FORMAT,
    swf.FORMAT,
    sacct.FORMAT,
)
"""Formats with a line for each job. Kubernetes' is JSON, and has a reader of its own."""
NODE_FORMATS: Final = (ganger_format.NODES, openb.NODES)
_PAGE: Final = "docs/reference/trace-format.md says what each format has"


def read_jobs(path: Path, format: str = "") -> Trace[RecordedJob]:
    """Return the jobs of a file. UnreadableTrace: it has none. `format`: empty: detected by the first line."""
    if format == kubernetes_pods.NAME or (not format and begins_with(path, b"{")):
        return kubernetes_pods.read_pods(path)
    return _read(path, JOB_FORMATS, format)


def read_nodes(path: Path, format: str = "") -> Trace[Node]:
    """Return the nodes of a file. UnreadableTrace: it has none. `format`: empty: detected by the first line."""
    return _read(path, NODE_FORMATS, format)


def read_faults(path: Path) -> Trace[NodeFault]:
    """Return the node faults of a file."""
    return _read(path, (fault_trace.FORMAT,), fault_trace.FORMAT.name)


def read_rows(path: Path, format: Format[T]) -> Trace[T]:
    """Return the records of a file of a known format."""
    return _read(path, (format,), format.name)


def _read(path: Path, formats: tuple[Format[T], ...], name: str) -> Trace[T]:
    lines = _without_blank_lines(numbered_lines(path))
    number, first = next(lines, (0, ""))
    if not first:
        raise UnreadableTrace(str(path), "is empty", "fetch or write the file again")
    if isinstance(first, Flaw):
        raise UnreadableTrace(
            f"{path}:{number}", f"the first line has {MEANING[first]}", "write the file as UTF-8 text"
        )
    trace_format = _format_by_name(path, formats, name) if name else _detect_format(f"{path}:{number}", formats, first)
    rows = (line for line in chain([(number, first)], lines) if not _is_comment(trace_format, line[1]))
    number, first = next(rows, (number, ""))
    layout = _layout(f"{path}:{number}", trace_format, first)
    return _records(
        path, trace_format, layout, chain([(number, first)] if trace_format.positions and first else [], rows)
    )


def _without_blank_lines(lines: Iterator[tuple[int, Line]]) -> Iterator[tuple[int, Line]]:
    return ((number, line) for number, line in lines if isinstance(line, Flaw) or line.strip())


def _is_comment(trace_format: Format[T], line: Line) -> bool:
    return bool(trace_format.comment) and not isinstance(line, Flaw) and line.lstrip().startswith(trace_format.comment)


def _format_by_name(path: Path, formats: tuple[Format[T], ...], name: str) -> Format[T]:
    for trace_format in formats:
        if trace_format.name == name:
            return trace_format
    raise UnreadableTrace(str(path), f"{name!r} is not a format of these traces", f"name one of {_names(formats)}")


def _detect_format(location: str, formats: tuple[Format[T], ...], first: str) -> Format[T]:
    """Return the format that fits the first line; of several the one that requires all that the others do."""
    fits = {trace_format.name: trace_format.fit(first) for trace_format in formats}
    required = {name: columns for name, columns in fits.items() if columns is not None}
    for trace_format in formats:
        name = trace_format.name
        if name in required and all(required[name] > required[other] for other in required if other != name):
            return trace_format
    if required:
        raise UnreadableTrace(location, f"may be of {' or '.join(required)}", "name the one that it is")
    reason = f"the first line is of no known format: {first[:80]!r}{_missing_columns(formats, first)}"
    raise UnreadableTrace(location, reason, f"name the format, one of {_names(formats)}; {_PAGE}")


def _missing_columns(formats: tuple[Format[T], ...], first: str) -> str:
    """Return what the first line lacks of the most similar format, unless it lacks more than half of its columns."""
    candidates = [
        (required - {name.strip() for name in first.split(trace_format.delimiter)}, trace_format.name, len(required))
        for trace_format in formats
        if not trace_format.positions
        for required in trace_format.required_columns()
    ]
    missing, name, required_columns = min(candidates, key=lambda candidate: len(candidate[0]) / candidate[2])
    if 2 * len(missing) > required_columns:
        return ""
    return f"; for {name} there is no column {', '.join(sorted(missing))}"


def _names(formats: tuple[Format[T], ...]) -> str:
    names = [trace_format.name for trace_format in formats]
    return ", ".join([*names, kubernetes_pods.NAME] if formats is JOB_FORMATS else names)


def _layout(location: str, trace_format: Format[T], first: Line) -> Layout:
    try:
        return trace_format.layout("" if isinstance(first, Flaw) else first)
    except FormatMismatch as mismatch:
        raise UnreadableTrace(location, f"is not of the format {trace_format.name}: {mismatch}", _PAGE) from None


def _records(path: Path, trace_format: Format[T], layout: Layout, lines: Iterable[tuple[int, Line]]) -> Trace[T]:
    findings, records, rows = Findings(), list[T](), 0
    check, latest_ms = trace_format.new_check(), 0
    for number, line in lines:
        rows += 1
        try:
            record = _record(trace_format, layout, number, line)
        except BadRow as bad_row:
            findings.add(bad_row.flaw, number, bad_row.text)
            continue
        if flawed := check(record):
            findings.add(flawed[0], number, flawed[1])
            if flawed[0] not in KEPT_FLAWS:
                continue
        if (time_ms := trace_format.time_of(record)) < latest_ms:
            findings.add(Flaw.TIME_BACK, number, f"{time_ms} ms, after {latest_ms} ms")
        latest_ms = max(latest_ms, time_ms)
        records.append(record)
    if not records:
        raise UnreadableTrace(str(path), _no_records(rows, findings, trace_format.name), _PAGE)
    records = trace_format.combine(records, findings)
    return Trace(
        path=str(path),
        format=trace_format.name,
        rows=rows,
        records=tuple(sorted(records, key=trace_format.time_of)),
        extra_columns=layout.extra_columns,
        findings=findings.all(),
    )


def _record(trace_format: Format[T], layout: Layout, number: int, line: Line) -> T:
    if isinstance(line, Flaw):
        raise BadRow(line, MEANING[line])
    fields = trace_format.split(line)
    if len(fields) != layout.fields:
        raise BadRow(Flaw.FIELDS, f"{len(fields)} fields, not {layout.fields}")
    return trace_format.record(Row(number, fields, layout.indices, layout.extra))


def _no_records(rows: int, findings: Findings, name: str) -> str:
    if not rows:
        return f"has no rows of the format {name}"
    return f"none of {rows} rows of the format {name} can be used: " + ", ".join(map(str, findings.all()))
