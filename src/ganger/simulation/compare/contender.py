"""One run of a comparison: the simulation, its figures, and its series for charts.

It is the work of a process of its own, so its input and output can be pickled.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.simulation.compare.common_jobs import JOB_TIMES, job_times
from ganger.simulation.compare.process_pool import ReportProgress
from ganger.simulation.estimate_regret import regret_json
from ganger.simulation.json_output import Record, findings_json, occupancy_for, outcome_json
from ganger.simulation.metrics.occupancy import Occupancy
from ganger.simulation.metrics.time_series import series
from ganger.simulation.metrics.wait_distribution import wait_quantiles_ms
from ganger.simulation.results.job_columns import job_columns
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import TraceRun, simulate_trace

JOBS: Final = "jobs"
"""Key of the columns of a run's jobs, which stay in the process that compares."""
REPORT_INTERVAL_S: Final = 0.2
ROWS_PER_CLOCK_READ: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContender:
    """A run of a trace.

    seed: None where nothing is drawn
    with_jobs: the result has the columns of the jobs
    """

    policy: str
    seed: int | None
    run: TraceRun
    with_jobs: bool = False

    @property
    def name(self) -> str:
        """Name of the run in tables."""
        return self.policy if self.seed is None else f"{self.policy} #{self.seed}"


class ProgressReader:
    """A reader of log rows that reports the progress of a run: one half is submissions, the other is ends."""

    def __init__(self, jobs: int, report_progress: ReportProgress) -> None:
        self._all, self._report_progress = 2 * max(1, jobs), report_progress
        self._done = self._rows = 0
        self._reported_s = time.monotonic()

    def read(self, row: e.Stamped) -> None:
        """Read the next row of the log."""
        self._rows += 1
        self._done += isinstance(row.event, e.Submitted | e.Finished)
        if self._rows % ROWS_PER_CLOCK_READ == 0 and time.monotonic() - self._reported_s > REPORT_INTERVAL_S:
            self._reported_s = time.monotonic()
            self._report_progress(min(1.0, self._done / self._all))


def run_trace_contender(contender: TraceContender, report_progress: ReportProgress) -> Record:
    """Run a trace and return its names, figures, series and, of a small run, its Gantt chart."""
    run = contender.run
    occupancy = occupancy_for(run)
    progress = ProgressReader(len(run.trace.records), report_progress)
    outcome = simulate_trace(run, occupancy.fold, progress.read)
    names = {"policy": contender.policy, "seed": contender.seed, "name": contender.name}
    jobs = {JOBS: job_columns(outcome, run.trace, policy=contender.policy, seed=contender.seed)}
    figures = contender_json(names, outcome, occupancy, run.nodes) | {"estimates": regret_json(run, outcome)}
    return figures | jobs if contender.with_jobs else figures


def contender_json(names: Record, outcome: Outcome, occupancy: Occupancy, nodes: Sequence[Node]) -> Record:
    """Return a run under its names, with its series and, of a small run, its Gantt chart."""
    first_ms = min((job.submitted_ms for job in outcome.histories), default=0)
    idle = [(at_ms - first_ms, share) for at_ms, share in occupancy.idle_of_no_use(outcome.histories)]
    return {
        **names,
        "findings": findings_json(outcome.findings),
        **outcome_json(outcome, occupancy),
        JOB_TIMES: job_times(outcome),
        "series": {
            **asdict(series(outcome.histories)),
            "idle_of_no_use": idle,
            "wait_quantiles_ms": wait_quantiles_ms(outcome.histories),
        },
        "gantt": _gantt_json(outcome, occupancy, nodes, first_ms),
    }


def _gantt_json(outcome: Outcome, occupancy: Occupancy, nodes: Sequence[Node], first_ms: int) -> Record | None:
    """Return nodes, jobs and downtime in ms after the first submission; None of a run that is too large for a chart."""
    if occupancy.bars is None:
        return None
    end_ms = max((bar.to_ms for bar in occupancy.bars), default=first_ms)
    bars = [
        {
            "job": bar.job,
            "name": outcome.names[bar.job],
            "tenant": outcome.histories[bar.job].tenant,
            "node": bar.node,
            "devices": list(bar.devices),
            "from_ms": bar.from_ms - first_ms,
            "to_ms": bar.to_ms - first_ms,
        }
        for bar in occupancy.bars
    ]
    down = [
        asdict(span) | {"from_ms": span.from_ms - first_ms, "to_ms": span.to_ms - first_ms}
        for span in occupancy.downtime.spans(first_ms, end_ms)
    ]
    return {"nodes": [{"name": node.name, "gpus": node.gpus} for node in nodes], "bars": bars, "down": down}
