"""Accounting of 10,000 jobs: whether their times add up, per job and in the report, and the cost of the report.

Each job failed once, so that its time has every part; a tenth is still live. The log is a file, as a server's is.
"""

import tempfile
import time
from pathlib import Path

from bench.measure import Figure, median
from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.job_costs import CostQuery
from ganger.engine.eventlog.projection import Projection, project
from ganger.engine.query.time_report import report
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.views.service_views import PARTS
from ganger.registry import policies

JOBS, LIVE, RUNS = 10_000, 1_000, 20
BAR_S = 0.1


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder:
        log = EventLog(Path(folder) / "ganger.db")
        history = _History(log)
        for number in range(JOBS):
            history.run_job(f"job-{number}", ends=number < JOBS - LIVE)
            if number % 100 == 99:
                history.write()
        samples = []
        for _ in range(RUNS):
            started = time.perf_counter()
            time_report = report(history.state, log, history.now_ms, CostQuery(seq=history.state.seq))
            samples.append(time.perf_counter() - started)
        jobs_off, wall_ms = 0, 0
        for name, (submitted_ms, ended_ms) in history.spans.items():
            gang, logged = history.state.gangs.get(name), log.job(name)
            ledger = gang.account.ledger(history.now_ms) if gang else logged[1] if logged else None
            took_ms = (ended_ms or history.now_ms) - submitted_ms
            wall_ms += took_ms
            parts = [getattr(ledger, f"{part}_ms") for part in PARTS]
            jobs_off += min(parts) < 0 or sum(parts) != took_ms
        log.close()
    report_off = abs(time_report.time.total_ms - wall_ms) + abs(sum(time_report.jobs.values()) - JOBS)
    print(f"{history.state.seq} events; {time_report.time}")
    return [
        Figure(name="accounting_jobs_off", unit="", samples=(jobs_off,), value=jobs_off, op="==", bar=0),
        Figure(name="accounting_report_off", unit="ms", samples=(report_off,), value=report_off, op="==", bar=0),
        median("accounting_report", "s", samples, under=BAR_S),
    ]


class _History:
    """A state and its log, with jobs that run one after the other."""

    def __init__(self, log: EventLog) -> None:
        self.state, self.now_ms = State(), 1_700_000_000_000
        self.spans: dict[str, tuple[int, int | None]] = {}
        self._log, self._rows, self._projections = log, list[e.Stamped](), list[Projection]()
        self._policy: Policy = policies()["fifo"]  # type: ignore[assignment]
        node = Node(name="n1", gpus=LIVE, gpu_type="h100", cpu_milli=1000 * LIVE, memory_bytes=1 << 40)
        self._record(e.NodesListed(nodes=(node,)))

    def run_job(self, name: str, *, ends: bool) -> None:
        """Run a job that hangs, starts again and, if `ends` is set, finishes."""
        resources = Resources(gpu=GpuRequest(count=1), cpu_milli=1)
        spec = JobSpec(name="job", resources=resources, run="true")
        self._record(e.Submitted(job=Job(id=name, user="ada", spec=spec, origin=Origin(directory="/"), request_id="")))
        submitted_ms = self.now_ms
        self._start_attempt(name, 1)
        self._record(e.Checkpointed(gang=name, generation=1, step=2, took_ms=300))
        since_ms = self.now_ms + 500
        self._record(
            e.Failed(gang=name, generation=1, node="n1", cause=Cause.HUNG, rank=0, since_ms=since_ms),
            e.Cleared(gang=name, generation=1, nodes=("n1",)),
        )
        self._start_attempt(name, 2)
        if ends:
            self._record(e.Finished(gang=name, generation=2, nodes=("n1",)))
            self._record(e.Cleared(gang=name, generation=2, nodes=("n1",)))
        self.spans[name] = (submitted_ms, self.now_ms if ends else None)

    def _start_attempt(self, name: str, generation: int) -> None:
        self._record(e.Started(gang=name, generation=generation, nodes=("n1",)))
        self._record(e.Progressed(gang=name, generation=generation, step=generation))

    def _record(self, *events: e.Event) -> None:
        """Fold events a second later, together with the decision that follows from them."""
        self.now_ms += 1_000
        rows = [e.Stamped(self.state.seq + n, self.now_ms, event) for n, event in enumerate(events, 1)]
        touched = {gang.id: gang for row in rows for gang in fold(self.state, row)}
        planned = plan(self.state, self.now_ms, self._policy)
        if planned.decisions:
            decided = e.Decided(plan=planned, policy="fifo", version="bench")
            rows.append(e.Stamped(self.state.seq + 1, self.now_ms, decided))
            touched |= {gang.id: gang for gang in fold(self.state, rows[-1])}
        self._rows += rows
        self._projections += [project(gang, self.now_ms) for gang in touched.values()]  # type: ignore[arg-type]

    def write(self) -> None:
        """Append the events since the last call in one transaction; the cost of the log is measured elsewhere."""
        self._log.append(self._rows, self._projections)
        self._rows, self._projections = [], []
