"""A file of a trace, whatever its format, as a `Trace`: every row is a record, or counted with what is wrong with it.

Lines are looked at one at a time; only the records stay. Called by whoever replays a trace, and by `ganger sim import`.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from ganger.model.cluster import Node
from ganger.simulation.traces import elasticflow, fault_trace, ganger_format, gavel, muri, openb, spot_trace, swf
from ganger.simulation.traces.text_lines import Line, numbered_lines
from ganger.simulation.traces.trace import (
    KEPT,
    MEANING,
    Findings,
    Flaw,
    NodeFault,
    RecordedJob,
    SpotCapacity,
    SpotChange,
    Trace,
    Unreadable,
)
from ganger.simulation.traces.trace_format import Format, Layout, Misfit
from ganger.simulation.traces.trace_row import Broken, Row

T = TypeVar("T")

JOBS: Final = (
    ganger_format.JOBS,
    openb.PODS,
    elasticflow.FORMAT,
    muri.MURI,
    muri.TIRESIAS,
    gavel.FORMAT,
    swf.FORMAT,
)
NODES: Final = (ganger_format.NODES, openb.NODES)
_PAGE: Final = "docs/reference/trace-format.md says what each format has"


def read_jobs(path: Path, format: str = "") -> Trace[RecordedJob]:
    """The jobs of a file: of that format, or of the one that its first line tells. Unreadable: there is none to use."""
    return _read(path, JOBS, format)


def read_nodes(path: Path, format: str = "") -> Trace[Node]:
    """The nodes of a file, likewise."""
    return _read(path, NODES, format)


def read_faults(path: Path) -> Trace[NodeFault]:
    """The faults of nodes in a file."""
    return _read(path, (fault_trace.FORMAT,), fault_trace.FORMAT.name)


def read_spot_changes(path: Path) -> Trace[SpotChange]:
    """Which spot nodes come and go."""
    return _read(path, (spot_trace.CHANGES,), spot_trace.CHANGES.name)


def read_spot_capacity(path: Path) -> Trace[SpotCapacity]:
    """How many spot nodes there are."""
    return _read(path, (spot_trace.CAPACITY,), spot_trace.CAPACITY.name)


def _read(path: Path, formats: tuple[Format[T], ...], name: str) -> Trace[T]:
    lines = _with_content(numbered_lines(path))
    number, first = next(lines, (0, ""))
    if not first:
        raise Unreadable(str(path), "is empty", "fetch or write the file again")
    if isinstance(first, Flaw):
        raise Unreadable(f"{path}:{number}", f"the first line has {MEANING[first]}", "write the file as UTF-8 text")
    form = _named(path, formats, name) if name else _told(f"{path}:{number}", formats, first)
    rows = (line for line in chain([(number, first)], lines) if not _is_remark(form, line[1]))
    number, first = next(rows, (number, ""))
    layout = _layout(f"{path}:{number}", form, first)
    return _records(path, form, layout, chain([(number, first)] if form.positions and first else [], rows))


def _with_content(lines: Iterator[tuple[int, Line]]) -> Iterator[tuple[int, Line]]:
    return ((number, line) for number, line in lines if isinstance(line, Flaw) or line.strip())


def _is_remark(form: Format[T], line: Line) -> bool:
    return bool(form.comment) and not isinstance(line, Flaw) and line.lstrip().startswith(form.comment)


def _named(path: Path, formats: tuple[Format[T], ...], name: str) -> Format[T]:
    for form in formats:
        if form.name == name:
            return form
    raise Unreadable(str(path), f"{name!r} is no format of such files", f"name one of {_names(formats)}")


def _told(place: str, formats: tuple[Format[T], ...], first: str) -> Format[T]:
    """The format that the first line tells: the one that fits or, of several, the one that needs what all others do."""
    fitting = {form.name: form.fit(first) for form in formats}
    needs = {name: needed for name, needed in fitting.items() if needed is not None}
    for form in formats:
        if form.name in needs and all(needs[form.name] > needs[name] for name in needs if name != form.name):
            return form
    if needs:
        raise Unreadable(place, f"may be of {' or '.join(needs)}", "name the one that it is")
    reason = f"the first line is of no format that is known: {first[:80]!r}"
    raise Unreadable(place, reason + _nearest(formats, first), f"name the format, one of {_names(formats)}; {_PAGE}")


def _nearest(formats: tuple[Format[T], ...], first: str) -> str:
    """What is missing of the format that has the most columns in common with the first line, if that is most."""
    there = {name.strip() for name in first.split(",")}
    needs = [
        (len(needed - there), form.name, needed) for form in formats if not form.positions for needed in form.needs()
    ]
    missing, name, needed = min(needs, key=lambda near: near[0] / len(near[2]))
    if 2 * missing > len(needed):
        return ""
    return f"; for {name} there is no column {', '.join(sorted(needed - there))}"


def _names(formats: tuple[Format[T], ...]) -> str:
    return ", ".join(form.name for form in formats)


def _layout(place: str, form: Format[T], first: Line) -> Layout:
    try:
        return form.layout("" if isinstance(first, Flaw) else first)
    except Misfit as misfit:
        raise Unreadable(place, f"is not of the format {form.name}: {misfit}", _PAGE) from None


def _records(path: Path, form: Format[T], layout: Layout, lines: Iterable[tuple[int, Line]]) -> Trace[T]:
    findings, records, rows = Findings(), list[T](), 0
    watch, latest_ms = form.watch(), 0
    for number, line in lines:
        rows += 1
        try:
            record = _record(form, layout, number, line)
        except Broken as broken:
            findings.add(broken.flaw, number, broken.what)
            continue
        if wrong := watch(record):
            findings.add(wrong[0], number, wrong[1])
            if wrong[0] not in KEPT:
                continue
        if (at_ms := form.at_ms(record)) < latest_ms:
            findings.add(Flaw.TIME_BACK, number, f"{at_ms} ms, after {latest_ms} ms")
        latest_ms = max(latest_ms, at_ms)
        records.append(record)
    if not records:
        raise Unreadable(str(path), _none_of(rows, findings, form.name), _PAGE)
    return Trace(
        place=str(path),
        format=form.name,
        rows=rows,
        records=tuple(sorted(records, key=form.at_ms)),
        extra_columns=layout.extra_columns,
        findings=findings.all(),
    )


def _record(form: Format[T], layout: Layout, number: int, line: Line) -> T:
    if isinstance(line, Flaw):
        raise Broken(line, MEANING[line])
    fields = form.split(line)
    if len(fields) != layout.fields:
        raise Broken(Flaw.FIELDS, f"{len(fields)} fields, not {layout.fields}")
    return form.record(Row(number, fields, layout.at, layout.extra))


def _none_of(rows: int, findings: Findings, name: str) -> str:
    if not rows:
        return f"has no rows of the format {name}"
    return f"none of {rows} rows of the format {name} can be used: " + ", ".join(map(str, findings.all()))
