"""ganger's own trace format, to which every other one is converted (docs/reference/trace-format.md).

A file is CSV with a header, plain or gzip. Columns have the names of the fields of `RecordedJob` and `Node`, so that a
file can be written by hand. Times are those of ISO 8601 (`submitted`) or ms from any origin (`submitted_ms`); they are
written as the former, with an unknown origin as 1970. A column that is empty in every row is left out. Columns of other
formats that have no meaning here are `x_` and their name, but for the results of a run, which need no prefix: a file of
them is a trace too. Records of another format that are written and read again are equal.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TextIO

from ganger.model.cluster import RACK, Node
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.traces.record_checks import gpu_types, new_job_check, new_node_check, submitted_ms
from ganger.simulation.traces.trace import Flaw, RecordedJob, Trace
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import BadRow, Row, iso_text

EXTRA: Final = "x_"
JOB_COLUMNS: Final = tuple(f.name for f in fields(RecordedJob) if f.name not in ("extra", "line"))
ISO_COLUMNS: Final = {"submitted_ms": "submitted", "started_ms": "started", "deadline_ms": "deadline"}
"""Column of ISO 8601 for each time of a job."""
RESULT_COLUMNS: Final = (
    *("policy", "seed", "ended", "outcome", "jct_ms", "queueing_ms", "ran_ms", "slowdown_10s"),
    *("starts", "preemptions", "migrations"),
)
"""Columns that a run adds to those of its jobs."""
NODE_COLUMNS: Final = ("name", "gpus", "gpu_type", "gpu_memory_bytes", "cpu_milli", "memory_bytes", "domains")
LEVELS: Final = ("zone", "spine", *RACK)
"""Topology levels, outermost first; a node with fewer domains has the last of them."""
_REQUIRED_JOB_COLUMNS: Final = ("name", "submitted_ms", "duration_ms", "gpus")
_KEYS: Final = {ISO_COLUMNS.get(name, name): ISO_COLUMNS.get(name, name) for name in JOB_COLUMNS}
_REQUIRED_NODE_COLUMNS: Final = ("name", "gpus", "gpu_type")


def job(row: Row) -> RecordedJob:
    """Return the job of a row."""
    gpus, gpu_milli, nodes = row.integer("gpus"), row.integer_or_none("gpu_milli", 1), row.integer_or_none("nodes", 1)
    if gpu_milli is not None and (gpus or gpu_milli >= DEVICE_MILLI):
        raise BadRow(Flaw.CONTRADICTION, f"gpu_milli {gpu_milli} is a share of one GPU and excludes gpus {gpus}")
    if nodes is not None and (gpus % nodes or (gpu_milli and nodes > 1)):
        raise BadRow(Flaw.CONTRADICTION, f"{gpus} GPUs cannot be divided equally among {nodes} nodes")
    max_gpus = row.integer_or_none("max_gpus")
    if max_gpus is not None and (max_gpus < gpus or not gpus):
        raise BadRow(Flaw.CONTRADICTION, f"max_gpus {max_gpus} of an elastic job that asks for {gpus} GPUs")
    return RecordedJob(
        name=row.required("name"),
        submitted_ms=row.iso_time("submitted") if row.has("submitted") else row.integer("submitted_ms"),
        duration_ms=row.integer_or_none("duration_ms"),
        gpus=gpus,
        max_gpus=max_gpus,
        gpu_milli=gpu_milli,
        nodes=nodes,
        cpu_milli=row.integer_or_none("cpu_milli"),
        memory_bytes=row.integer_or_none("memory_bytes"),
        gpu_types=gpu_types(row.text("gpu_types")),
        user=row.text("user"),
        queue=row.text("queue"),
        priority=row.signed_or_none("priority"),
        started_ms=row.iso_time_or_none("started") if row.has("started") else row.integer_or_none("started_ms"),
        limit_ms=row.integer_or_none("limit_ms", 1),
        deadline_ms=row.iso_time_or_none("deadline") if row.has("deadline") else row.integer_or_none("deadline_ms"),
        iterations=row.integer_or_none("iterations"),
        model_name=row.text("model_name"),
        batch_size=row.integer_or_none("batch_size"),
        extra=row.extra(),
        line=row.line,
    )


def node(row: Row) -> Node:
    """Return the node of a row."""
    gpus, gpu_type = row.integer("gpus"), row.text("gpu_type").lower()
    if bool(gpus) != bool(gpu_type):
        raise BadRow(Flaw.CONTRADICTION, f"{gpus} GPUs of type {gpu_type!r}")
    return Node(
        name=row.required("name"),
        gpus=gpus,
        gpu_type=gpu_type,
        gpu_memory_bytes=row.integer_or_none("gpu_memory_bytes") or 0,
        cpu_milli=row.integer_or_none("cpu_milli") or 0,
        memory_bytes=row.integer_or_none("memory_bytes") or 0,
        domains=_domains(row.text("domains")),
    )


def _domains(text: str) -> tuple[str, ...]:
    domains = tuple(text.split("|")) if text else ()
    if len(domains) > len(LEVELS):
        raise BadRow(Flaw.CONTRADICTION, f"domains {text!r}: more than {len(LEVELS)} of them, outermost first")
    return domains


JOBS: Final = Format(
    name="ganger",
    doc="ganger's own, of docs/reference/trace-format.md",
    columns=({name: name for name in JOB_COLUMNS}, _KEYS),
    optional=frozenset({*JOB_COLUMNS, *_KEYS}) - {*_REQUIRED_JOB_COLUMNS, "submitted"},
    record=job,
    new_check=new_job_check,
    time_of=submitted_ms,
    prefix=EXTRA,
    unprefixed=frozenset(RESULT_COLUMNS),
)
NODES: Final = Format(
    name="ganger",
    doc="ganger's own, of docs/reference/trace-format.md",
    columns=({name: name for name in NODE_COLUMNS},),
    optional=frozenset(NODE_COLUMNS) - {*_REQUIRED_NODE_COLUMNS},
    record=node,
    new_check=new_node_check,
    time_of=lambda _: 0,
    prefix=EXTRA,
)


def write_jobs(trace: Trace[RecordedJob], path: Path) -> None:
    """Write jobs to a file, which replaces an existing one only when it is complete."""
    columns = [
        name for name in JOB_COLUMNS if name in _REQUIRED_JOB_COLUMNS or any(map(_has_value(name), trace.records))
    ]
    header = [*(ISO_COLUMNS.get(name, name) for name in columns), *map(extra_column, trace.extra_columns)]
    write_rows(path, header, ([*_row(job, columns), *job.extra] for job in trace.records))


def extra_column(name: str) -> str:
    """Return the column of a file for a column without a meaning here."""
    return name if name in RESULT_COLUMNS else EXTRA + name


def write_nodes(nodes: Iterable[Node], path: Path) -> None:
    """Write nodes to a file, which replaces an existing one only when it is complete."""
    write_rows(path, list(NODE_COLUMNS), (_row(node, NODE_COLUMNS) for node in nodes))


def _has_value(name: str) -> Callable[[RecordedJob], bool]:
    return lambda job: getattr(job, name) not in (None, "", ())


def _row(record: RecordedJob | Node, columns: Iterable[str]) -> list[str]:
    return [field_text(getattr(record, name), is_time=name in ISO_COLUMNS) for name in columns]


def field_text(value: Any, *, is_time: bool) -> str:
    """Return a value as the text of a field."""
    if is_time and value is not None:
        return iso_text(value)
    if isinstance(value, tuple):
        return "|".join(value)
    return "" if value is None else str(value)


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a file of CSV, which replaces an existing one only when it is complete."""
    part = path.with_name(path.name + ".part")
    with _text_file(part, is_packed=path.suffix == ".gz") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    part.replace(path)


@contextmanager
def _text_file(path: Path, *, is_packed: bool) -> Iterator[TextIO]:
    """Open a file for writing; equal content makes equal bytes, since a gzip has neither name nor time."""
    with path.open("wb") as raw:
        if not is_packed:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
                yield text
            return
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
        with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="") as text:
            yield text
