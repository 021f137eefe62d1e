"""The formats of Muri and Tiresias: job lists of their simulators.

Times are ms in Muri's files and seconds in Tiresias's. `num_gpu` is all GPUs of the gang, `duration` how long it runs
alone. Muri's files have the columns of Tiresias's, and `iteration_time` (ms) and the three `resource_time_*` besides,
by which they are detected; these, `priority` (0 or 1, drawn at random by the source) and `interval` (to the submission
before) are kept as text.
"""

from functools import partial
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.traces.record_checks import new_job_check, submitted_ms
from ganger.simulation.traces.trace import RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import Row

_SHARED_COLUMNS: Final = {
    "name": "job_id",
    "gpus": "num_gpu",
    "submitted": "submit_time",
    "iterations": "iterations",
    "model": "model_name",
    "duration": "duration",
}


def job(row: Row, unit_ms: int) -> RecordedJob:
    """Return the job of a row. `unit_ms`: unit of its times."""
    return RecordedJob(
        name=row.required("name"),
        submitted_ms=row.rounded("submitted", unit_ms),
        duration_ms=row.rounded("duration", unit_ms),
        gpus=row.integer("gpus"),
        iterations=row.integer("iterations"),
        model_name=row.text("model"),
        batch_size=row.integer_or_none("batch"),
        extra=row.extra(),
        line=row.line,
    )


MURI: Final = Format(
    name="muri",
    doc="job lists of Muri's simulator, in ms",
    columns=({**_SHARED_COLUMNS, "batch": "batch_size"},),
    marker_columns=frozenset({"iteration_time"}),
    record=partial(job, unit_ms=1),
    new_check=new_job_check,
    time_of=submitted_ms,
)
TIRESIAS: Final = Format(
    name="tiresias",
    doc="job lists of Tiresias's simulator, in seconds",
    columns=(_SHARED_COLUMNS,),
    record=partial(job, unit_ms=SECOND_MS),
    new_check=new_job_check,
    time_of=submitted_ms,
)
