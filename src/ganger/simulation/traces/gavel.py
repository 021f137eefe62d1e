"""The formats of Gavel and Shockwave: tab-separated job lists without a header, times in seconds.

Forms are detected by their number of fields: those of 7, 9, 10 and 11 say only how many steps a job makes, so that its
duration depends on the GPU and is unknown here; Shockwave's of 12 has it. A job has no name: it is called by the number
of its line, from 0, as the sources do. The first field is the model, with its batch size in brackets. Scale factor is
GPUs. Command, mode (static, accordion, gns), weight, SLO (-1: none) and the rest are kept as text.
"""

import re
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.traces.record_checks import new_job_check, submitted_ms
from ganger.simulation.traces.trace import RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import Row

_MODEL = re.compile(r"(?P<model>.+) \(batch size (?P<batch>[0-9]{1,9})\)")
_JOB: Final = ("job_type", "command")
_STEPS: Final = ("steps_argument", "needs_data", "steps")
_POSITIONS: Final = (
    (*_JOB, *_STEPS, "arrival", "scale_factor"),
    (*_JOB, *_STEPS, "scale_factor", "weight", "slo", "arrival"),
    (*_JOB, "directory", *_STEPS, "scale_factor", "weight", "slo", "arrival"),
    (*_JOB, "directory", *_STEPS, "scale_factor", "mode", "weight", "slo", "arrival"),
    (*_JOB, "directory", *_STEPS, "scale_factor", "mode", "weight", "slo", "duration", "arrival"),
)


def job(row: Row) -> RecordedJob:
    """Return the job of a row."""
    model_name, batch_size = model_and_batch(row.required("model"))
    return RecordedJob(
        name=str(row.line - 1),
        submitted_ms=row.rounded("submitted", SECOND_MS),
        duration_ms=row.rounded("duration", SECOND_MS) if row.has("duration") else None,
        gpus=row.integer("gpus"),
        iterations=row.integer("iterations"),
        model_name=model_name,
        batch_size=batch_size,
        extra=row.extra(),
        line=row.line,
    )


def model_and_batch(job_type: str) -> tuple[str, int | None]:
    """Return model and batch size of `ResNet-18 (batch size 32)`; no batch size if it has none."""
    match = _MODEL.fullmatch(job_type)
    return (match["model"], int(match["batch"])) if match else (job_type, None)


FORMAT: Final = Format(
    name="gavel",
    doc="job lists of Gavel's and Shockwave's simulators",
    columns=(
        {
            "model": "job_type",
            "iterations": "steps",
            "gpus": "scale_factor",
            "duration": "duration",
            "submitted": "arrival",
        },
    ),
    record=job,
    new_check=new_job_check,
    time_of=submitted_ms,
    positions=_POSITIONS,
    delimiter="\t",
)
