"""ganger's own format: what every other one becomes (docs/reference/trace-format.md). CSV with a header, gzip if it is
called so.

Columns are called as in `RecordedJob` and in `Node`, so that a file can be written by hand. One that is empty in every
row is left out. Columns of other formats that have no meaning here are `x_` and their name. What is read of another
format, written so and read again, is the same (a law).
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TextIO

from ganger.model.cluster import RACK, Node
from ganger.model.units import DEVICE_MILLI
from ganger.simulation.traces.record_checks import each_job, each_node, gpu_types, submitted_ms
from ganger.simulation.traces.trace import Flaw, RecordedJob, Trace
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import Broken, Row

EXTRA: Final = "x_"
JOB_COLUMNS: Final = tuple(f.name for f in fields(RecordedJob) if f.name not in ("extra", "line"))
NODE_COLUMNS: Final = ("name", "gpus", "gpu_type", "gpu_memory_bytes", "cpu_milli", "memory_bytes", "domains")
LEVELS: Final = ("zone", "spine", *RACK)
"""Of the domains of a node, the last as many as it has."""
_JOB_NEEDS: Final = ("name", "submitted_ms", "duration_ms", "gpus")
_NODE_NEEDS: Final = ("name", "gpus", "gpu_type")


def job(row: Row) -> RecordedJob:
    """One job."""
    gpus, gpu_milli, nodes = row.whole("gpus"), row.whole_or_none("gpu_milli", 1), row.whole_or_none("nodes", 1)
    if gpu_milli is not None and (gpus or gpu_milli >= DEVICE_MILLI):
        raise Broken(Flaw.CONTRADICTION, f"gpu_milli {gpu_milli} is of one GPU, instead of gpus {gpus}")
    if nodes is not None and (gpus % nodes or (gpu_milli and nodes > 1)):
        raise Broken(Flaw.CONTRADICTION, f"{gpus} GPUs are not the same on each of {nodes} nodes")
    return RecordedJob(
        name=row.needed("name"),
        submitted_ms=row.whole("submitted_ms"),
        duration_ms=row.whole_or_none("duration_ms"),
        gpus=gpus,
        gpu_milli=gpu_milli,
        nodes=nodes,
        cpu_milli=row.whole_or_none("cpu_milli"),
        memory_bytes=row.whole_or_none("memory_bytes"),
        gpu_types=gpu_types(row.text("gpu_types")),
        user=row.text("user"),
        queue=row.text("queue"),
        priority=row.signed_or_none("priority"),
        started_ms=row.whole_or_none("started_ms"),
        limit_ms=row.whole_or_none("limit_ms", 1),
        deadline_ms=row.whole_or_none("deadline_ms"),
        iterations=row.whole_or_none("iterations"),
        model_name=row.text("model_name"),
        batch_size=row.whole_or_none("batch_size"),
        extra=row.extra(),
        line=row.line,
    )


def node(row: Row) -> Node:
    """One node."""
    gpus, gpu_type = row.whole("gpus"), row.text("gpu_type").lower()
    if bool(gpus) != bool(gpu_type):
        raise Broken(Flaw.CONTRADICTION, f"{gpus} GPUs of type {gpu_type!r}")
    return Node(
        name=row.needed("name"),
        gpus=gpus,
        gpu_type=gpu_type,
        gpu_memory_bytes=row.whole_or_none("gpu_memory_bytes") or 0,
        cpu_milli=row.whole_or_none("cpu_milli") or 0,
        memory_bytes=row.whole_or_none("memory_bytes") or 0,
        domains=_domains(row.text("domains")),
    )


def _domains(text: str) -> tuple[str, ...]:
    found = tuple(text.split("|")) if text else ()
    if len(found) > len(LEVELS):
        raise Broken(Flaw.CONTRADICTION, f"domains {text!r}: more than {len(LEVELS)} of them, outermost first")
    return found


JOBS: Final = Format(
    name="ganger",
    doc="ganger's own, of docs/reference/trace-format.md",
    columns=({name: name for name in JOB_COLUMNS},),
    optional=frozenset(JOB_COLUMNS) - {*_JOB_NEEDS},
    record=job,
    watch=each_job,
    at_ms=submitted_ms,
    prefix=EXTRA,
)
NODES: Final = Format(
    name="ganger",
    doc="ganger's own, of docs/reference/trace-format.md",
    columns=({name: name for name in NODE_COLUMNS},),
    optional=frozenset(NODE_COLUMNS) - {*_NODE_NEEDS},
    record=node,
    watch=each_node,
    at_ms=lambda _: 0,
    prefix=EXTRA,
)


def write_jobs(trace: Trace[RecordedJob], path: Path) -> None:
    """Write the jobs as a file of this format; the one that was there is replaced when it is complete."""
    columns = [name for name in JOB_COLUMNS if name in _JOB_NEEDS or any(map(_says(name), trace.records))]
    header = [*columns, *(EXTRA + name for name in trace.extra_columns)]
    _write(path, header, ([*_row(job, columns), *job.extra] for job in trace.records))


def write_nodes(nodes: Iterable[Node], path: Path) -> None:
    """Write nodes likewise."""
    _write(path, list(NODE_COLUMNS), (_row(node, NODE_COLUMNS) for node in nodes))


def _says(name: str) -> Callable[[RecordedJob], bool]:
    return lambda job: getattr(job, name) not in (None, "", ())


def _row(record: RecordedJob | Node, columns: Iterable[str]) -> list[str]:
    return [_text(getattr(record, name)) for name in columns]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "|".join(value)
    return "" if value is None else str(value)


def _write(path: Path, header: list[str], rows: Iterable[list[str]]) -> None:
    part = path.with_name(path.name + ".part")
    with _text_file(part, is_packed=path.suffix == ".gz") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    part.replace(path)


@contextmanager
def _text_file(path: Path, *, is_packed: bool) -> Iterator[TextIO]:
    """Equal content makes equal bytes: a gzip says neither its name nor when it was made."""
    with path.open("wb") as raw:
        if not is_packed:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
                yield text
            return
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
        with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="") as text:
            yield text
