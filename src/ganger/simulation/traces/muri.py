"""Muri and Tiresias: job lists of their simulators. Times are ms in Muri's files and seconds in Tiresias's.

`num_gpu` is all GPUs of the gang, `duration` how long it runs alone. Muri's files have the columns of Tiresias's, and
`iteration_time` (ms) and the three `resource_time_*` besides, by which they are told; these, `priority` (0 or 1, drawn
at random by the source) and `interval` (to the submission before) stay as they are.
"""

from functools import partial
from typing import Final

from ganger.model.units import SECOND_MS
from ganger.simulation.traces.record_checks import each_job, submitted_ms
from ganger.simulation.traces.trace import RecordedJob
from ganger.simulation.traces.trace_format import Format
from ganger.simulation.traces.trace_row import Row

_SAME: Final = {
    "name": "job_id",
    "gpus": "num_gpu",
    "submitted": "submit_time",
    "iterations": "iterations",
    "model": "model_name",
    "duration": "duration",
}


def job(row: Row, unit_ms: int) -> RecordedJob:
    """One job of a file whose times are in `unit_ms`."""
    return RecordedJob(
        name=row.needed("name"),
        submitted_ms=row.rounded("submitted", unit_ms),
        duration_ms=row.rounded("duration", unit_ms),
        gpus=row.whole("gpus"),
        iterations=row.whole("iterations"),
        model_name=row.text("model"),
        batch_size=row.whole_or_none("batch"),
        extra=row.extra(),
        line=row.line,
    )


MURI: Final = Format(
    name="muri",
    doc="job lists of Muri's simulator, in ms",
    columns=({**_SAME, "batch": "batch_size"},),
    told_by=frozenset({"iteration_time"}),
    record=partial(job, unit_ms=1),
    watch=each_job,
    at_ms=submitted_ms,
)
TIRESIAS: Final = Format(
    name="tiresias",
    doc="job lists of Tiresias's simulator, in seconds",
    columns=(_SAME,),
    record=partial(job, unit_ms=SECOND_MS),
    watch=each_job,
    at_ms=submitted_ms,
)
