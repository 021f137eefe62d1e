"""The file of throughputs: steps per second of a model on a type of GPU, as CSV or as Gavel's JSON, plain or gzip.

Gavel's file has, for each type of GPU, jobs as `('model (batch size N)', gpus)`, and for each of these the throughput
alone (`null`) and beside others. Only the one alone is used. A throughput of 0 is no throughput: the job does not fit
into the memory of the GPU.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ganger.simulation.traces.gavel import model_and_batch
from ganger.simulation.traces.read_trace import read_rows
from ganger.simulation.traces.trace import MEANING, Flaw, UnreadableTrace
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import LARGEST, Row

JobKind = tuple[str, int | None, int | None]
"""Model, batch size and number of GPUs; None: any."""
Throughputs = Mapping[JobKind, Mapping[str, Fraction]]
"""Steps per second by kind of job and type of GPU."""
LARGEST_JSON_BYTES: Final = 256 << 20
_PAGE: Final = "docs/reference/trace-format.md says what a file of throughputs has"
_GZIP: Final = b"\x1f\x8b"
_JOB: Final = re.compile(r"\('(?P<type>.+)', (?P<gpus>[0-9]{1,6})\)")
_ALONE: Final = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The throughput of one kind of job on one type of GPU."""

    model: str
    batch_size: int | None
    gpus: int | None
    gpu_type: str
    steps_per_s: Fraction
    line: int = field(default=0, compare=False)

    @property
    def kind(self) -> JobKind:
        """The kind of job."""
        return self.model, self.batch_size, self.gpus


@lru_cache(maxsize=1)
def read_throughputs(path: Path) -> Throughputs:
    """Return the throughputs of a file. UnreadableTrace: it has none, or one of its rows has a flaw."""
    throughputs: dict[JobKind, dict[str, Fraction]] = {}
    for throughput in _from_json(path) if _is_json(path) else _from_csv(path):
        if throughput.steps_per_s:
            throughputs.setdefault(throughput.kind, {})[throughput.gpu_type] = throughput.steps_per_s
    return throughputs


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _throughput(row: Row) -> Throughput:
    return Throughput(
        model=row.required("model"),
        batch_size=row.integer_or_none("batch_size"),
        gpus=row.integer_or_none("gpus", 1),
        gpu_type=row.required("gpu_type").lower(),
        steps_per_s=Fraction(0) if row.text("steps_per_s") == _UNKNOWN else row.exact("steps_per_s"),
        line=row.line,
    )


def _new_check() -> Callable[[Throughput], tuple[Flaw, str] | None]:
    seen: set[tuple[JobKind, str]] = set()

    def check(throughput: Throughput) -> tuple[Flaw, str] | None:
        key = (throughput.kind, throughput.gpu_type)
        if key in seen:
            return Flaw.DUPLICATE, f"{throughput.model} on {throughput.gpu_type} again"
        seen.add(key)
        return None

    return check


_COLUMNS: Final = ("model", "batch_size", "gpus", "gpu_type", "steps_per_s")
_UNKNOWN: Final = "nan"
"""ElasticFlow's throughput of what was not measured."""
_ELASTICFLOW: Final = {
    **{name: name for name in _COLUMNS},
    "batch_size": "global_batch_size",
    "gpu_type": "gpu",
    "steps_per_s": "iterations_per_s",
}
"""The columns that ElasticFlow's throughputs have."""
FORMAT: Final = Format(
    name="throughputs",
    doc="throughputs by type of GPU",
    columns=({name: name for name in _COLUMNS}, _ELASTICFLOW),
    optional=frozenset({"batch_size", "gpus"}),
    record=_throughput,
    new_check=_new_check,
    time_of=lambda _: 0,
    prefix="x_",
)


def _from_csv(path: Path) -> Iterator[Throughput]:
    rows = read_rows(path, FORMAT)
    for finding in rows.findings:
        line, text = finding.examples[0]
        raise UnreadableTrace(f"{path}:{line}", f"{text} ({finding.flaw}: {MEANING[finding.flaw]})", _PAGE)
    yield from rows.records


# -- Gavel's JSON ------------------------------------------------------------------------------------------------------


def _is_json(path: Path) -> bool:
    return _unpacked(path, 64).lstrip().startswith(b"{")


def _unpacked(path: Path, limit_bytes: int) -> bytes:
    """Return the beginning of a file. UnreadableTrace: its gzip is damaged."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        with gzip.open(path) if is_packed else path.open("rb") as file:
            return file.read(limit_bytes)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableTrace(str(path), f"the gzip is damaged: {error}", "fetch the file again") from None


def _from_json(path: Path) -> Iterator[Throughput]:
    content = _unpacked(path, LARGEST_JSON_BYTES + 1)
    if len(content) > LARGEST_JSON_BYTES:
        raise UnreadableTrace(str(path), "is larger than 256 MiB", _PAGE)
    try:
        by_gpu_type = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnreadableTrace(str(path), f"is not JSON: {error}", _PAGE) from None
    for gpu_type, jobs in by_gpu_type.items():
        for job, beside in _object(path, gpu_type, jobs).items():
            match = _JOB.fullmatch(job)
            if match is None:
                raise UnreadableTrace(str(path), f"{gpu_type}: {job[:80]!r} is not ('model', gpus)", _PAGE)
            model, batch_size = model_and_batch(match["type"])
            steps_per_s = _object(path, job, beside).get(_ALONE, 0)
            yield Throughput(
                model=model,
                batch_size=batch_size,
                gpus=int(match["gpus"]),
                gpu_type=gpu_type.lower(),
                steps_per_s=_exact(path, f"{gpu_type} {job}", steps_per_s),
            )


def _object(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableTrace(str(path), f"{key[:80]!r} is not an object", _PAGE)
    return value


def _exact(path: Path, key: str, value: Any) -> Fraction:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= LARGEST:
        raise UnreadableTrace(str(path), f"{key}: {str(value)[:40]} is not a number of steps per second", _PAGE)
    return Fraction(value)
