"""The jobs of a run as columns of equal length: those of ganger's own trace format, and what became of each job.

Every job of the trace has a row, also one that was not submitted. Times are on the clock of the trace. `started` is the
start in the simulation, so that a file of the columns is a trace of the simulated cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ganger.model.units import DEVICE_MILLI, SECOND_MS
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.metrics.wait_distribution import waited_ms
from ganger.simulation.simulate import Outcome
from ganger.simulation.traces.ganger_format import ISO_COLUMNS, JOB_COLUMNS, RESULT_COLUMNS, extra_column
from ganger.simulation.traces.trace import RecordedJob, Trace

JobColumns = dict[str, list[Any]]
"""Values by column: None where there is none; times in Unix ms."""
TIME_COLUMNS: Final = frozenset({*ISO_COLUMNS.values(), "ended"})
NO_TRACE: Final[Trace[RecordedJob]] = Trace(path="", format="", rows=0, records=())
"""The trace of a run whose jobs are those of a log."""
SLOWDOWN_MS: Final = 10 * SECOND_MS


def job_columns(outcome: Outcome, trace: Trace[RecordedJob] = NO_TRACE, **run: Any) -> JobColumns:
    """Return the columns of a run; `run`: values of columns that all of its rows have, first in order.

    A column of the trace that is empty in every row is left out.
    """
    histories = dict(zip(outcome.names, outcome.histories, strict=True))
    records = trace.records or tuple(_record(name, history) for name, history in histories.items())
    offset_ms = _offset_ms(records, histories)
    rows = [_row(record, histories.get(record.name), offset_ms) for record in records]
    names = [*(ISO_COLUMNS.get(name, name) for name in JOB_COLUMNS)]
    extra = {extra_column(name): index for index, name in enumerate(trace.extra_columns)}
    columns: JobColumns = {name: [value] * len(rows) for name, value in run.items()}
    columns |= {name: [row[name] for row in rows] for name in names}
    columns |= {name: [record.extra[index] for record in records] for name, index in extra.items() if name not in run}
    columns |= {name: [row[name] for row in rows] for name in RESULT_COLUMNS if rows and name in rows[0]}
    kept = {*run, *RESULT_COLUMNS, "name", "submitted", "duration_ms", "gpus"}
    return {
        name: values
        for name, values in columns.items()
        if name in kept or any(value not in (None, "", ()) for value in values)
    }


def stacked(parts: Sequence[JobColumns]) -> JobColumns:
    """Return the rows of several runs in one; a column that a run lacks is empty in its rows."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [value for part in parts for value in part.get(name, [None] * len(part["name"]))] for name in names}


def arrays(columns: JobColumns) -> dict[str, NDArray[Any]]:
    """Return the columns as arrays for a data frame: times as datetime64, numbers with gaps as floats."""
    return {name: _array(name, values) for name, values in columns.items()}


def _array(name: str, values: list[Any]) -> NDArray[Any]:
    if name in TIME_COLUMNS:
        return np.array([np.datetime64("NaT") if value is None else value for value in values], dtype="datetime64[ms]")
    numbers = [value for value in values if value is not None]
    if numbers and all(isinstance(value, int | float) for value in numbers):
        gaps = len(numbers) < len(values)
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64 if gaps else None)
    text = ["|".join(value) if isinstance(value, tuple) else value for value in values]
    return np.array(text, dtype=object)


def _record(name: str, history: JobHistory) -> RecordedJob:
    """Return a job of a log as one of a trace; shares of several GPUs count as whole ones."""
    is_share = 0 < history.gpu_milli < DEVICE_MILLI
    return RecordedJob(
        name=name,
        submitted_ms=history.submitted_ms,
        duration_ms=history.duration_ms or None,
        gpus=0 if is_share else -(-history.gpu_milli // DEVICE_MILLI),
        gpu_milli=history.gpu_milli if is_share else None,
        user=history.tenant,
    )


def _offset_ms(records: Sequence[RecordedJob], histories: Mapping[str, JobHistory]) -> int:
    """Return what is added to a time of the run for one of the trace: all jobs were submitted at equal distances."""
    for record in records:
        if record.name in histories:
            return record.submitted_ms - histories[record.name].submitted_ms
    return 0


def _row(record: RecordedJob, history: JobHistory | None, offset_ms: int) -> dict[str, Any]:
    row = {ISO_COLUMNS.get(name, name): getattr(record, name) for name in JOB_COLUMNS}
    if history is None:
        empty = dict.fromkeys(("started", "ended", "jct_ms", "queueing_ms", "ran_ms", "slowdown_10s"))
        outcome = "no_duration" if record.duration_ms is None else "left_out"
        return row | empty | {"outcome": outcome, "starts": 0, "preemptions": 0, "migrations": 0}
    ended_ms, started_ms = history.ended_ms, history.first_start_ms
    jct_ms = None if ended_ms is None else ended_ms - history.submitted_ms
    slowdown = None if jct_ms is None else max(1.0, jct_ms / max(history.duration_ms, SLOWDOWN_MS))
    return row | {
        "started": None if started_ms is None else started_ms + offset_ms,
        "ended": None if ended_ms is None else ended_ms + offset_ms,
        "outcome": "ended" if ended_ms is not None else "unfinished" if history.gone_ms is None else "stopped",
        "jct_ms": jct_ms,
        "queueing_ms": waited_ms(history),
        "ran_ms": history.ran_ms,
        "slowdown_10s": slowdown,
        "starts": len(history.attempts),
        "preemptions": sum(attempt.preempted for attempt in history.attempts),
        "migrations": sum(attempt.moved for attempt in history.attempts),
    }
