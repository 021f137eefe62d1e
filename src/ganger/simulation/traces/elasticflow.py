"""The format of ElasticFlow: Microsoft's training clusters of 2021 (microsoft/elasticflow-traces), times in seconds.

`submission_time`, `duration` and `num_gpu` (all GPUs of the gang) were recorded; the authors of the source made up
`num_iteration`, `model_name`, `batch_size` and `deadline`, which is a time. Files of pkusys/ElasticFlow call three of
these `submit_time`, `iteration` and `ddl`.
"""

from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.traces.record_checks import new_job_check, submitted_ms
from ganger.simulation.traces.trace import RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import Row

_SHARED_COLUMNS: Final = {
    "name": "job_id",
    "duration": "duration",
    "gpus": "num_gpu",
    "model": "model_name",
    "batch": "batch_size",
}


def job(row: Row) -> RecordedJob:
    """Return the job of a row."""
    return RecordedJob(
        name=row.required("name"),
        submitted_ms=row.rounded("submitted", SECOND_MS),
        duration_ms=row.rounded("duration", SECOND_MS),
        gpus=row.integer("gpus"),
        deadline_ms=row.rounded("deadline", SECOND_MS),
        iterations=row.integer("iterations"),
        model_name=row.text("model"),
        batch_size=row.integer("batch"),
        extra=row.extra(),
        line=row.line,
    )


FORMAT: Final = Format(
    name="elasticflow",
    doc="Microsoft's clusters of 2021, as published with ElasticFlow",
    columns=(
        {**_SHARED_COLUMNS, "submitted": "submission_time", "iterations": "num_iteration", "deadline": "deadline"},
        {**_SHARED_COLUMNS, "submitted": "submit_time", "iterations": "iteration", "deadline": "ddl"},
    ),
    record=job,
    new_check=new_job_check,
    time_of=submitted_ms,
)
