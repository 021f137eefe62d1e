"""A recorded queue of gangs on a cluster of 8-GPU nodes, in virtual time: for the benches of waits and estimates.

Drives a `State` by events alone, as `bench.scheduler.fleet` does. The time limit of a job is its recorded duration,
unless a bench changes it.
"""

import csv
import gzip
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import ReservedStart, Start, Stop
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import Rules, document_of

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "elasticflow"
GPUS = 8
ORIGIN = Origin(directory="/")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One job of a trace; `limit_ms` is its time limit."""

    name: str
    at_ms: int
    runs_ms: int
    gpus: int
    limit_ms: int | None


def recorded(cluster: str, max_jobs: int) -> list[Recorded]:
    """Return the first jobs of one of elasticflow's clusters, in order of submission."""
    with gzip.open(TRACES / f"cluster{cluster}.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))[:max_jobs]
    return [
        Recorded(
            name=f"j{row['job_id']}",
            at_ms=1000 * int(row["submission_time"]),
            runs_ms=1000 * int(row["duration"]),
            gpus=int(row["num_gpu"]),
            limit_ms=1000 * int(row["duration"]),
        )
        for row in rows
    ]


@dataclass(slots=True)
class Queueing:
    """One run.

    Attributes:
        runs_ms: duration of each job.
        started_ms: first start of each job.
        waited_ms: time for which each job held no nodes until it ended.
        preemptions: number of times that a job was preempted; it loses no work, and starts again at once.
        first_reserved_ms: first reserved start of each job.
    """

    policy: Policy
    nodes: int
    state: State = field(default_factory=State)
    now_ms: int = 0
    runs_ms: dict[str, int] = field(default_factory=dict)
    started_ms: dict[str, int] = field(default_factory=dict)
    waited_ms: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    first_reserved_ms: dict[str, int] = field(default_factory=dict)
    ends: list[tuple[int, str, int]] = field(default_factory=list)
    gpu_ms: int = 0

    def begin(self, rules: Rules) -> None:
        """Add the nodes and the policy."""
        listed = (Node(name=f"n{n}", gpus=GPUS, cpu_milli=64_000, memory_bytes=1 << 40) for n in range(self.nodes))
        self._step(e.NodesListed(nodes=tuple(listed)))
        document = document_of(rules, self.state.document.queues)
        self._step(e.PolicySet(document=document, version=self.state.policy_version + 1))

    def submit(self, job: Recorded, priority: int = 0) -> None:
        """Submit a job at its time."""
        self.now_ms = max(self.now_ms, job.at_ms)
        nodes, gpus = max(1, job.gpus // GPUS), min(GPUS, job.gpus)
        spec = JobSpec(
            run=("train",),
            priority=priority,
            nodes=nodes,
            resources=Resources(gpu=GpuRequest(count=gpus), cpu_milli=1_000),
            limits=Limits(time_ms=job.limit_ms),
        )
        self.runs_ms[job.name], self.waited_ms[job.name] = job.runs_ms, -self.now_ms
        self._step(e.Submitted(job=Job(id=job.name, user="ann", spec=spec, origin=ORIGIN)))

    def cycle(self) -> None:
        """Run one scheduling cycle and carry out its decisions."""
        planned = plan(self.state, self.now_ms, self.policy)
        if not planned.decisions:
            return
        self._step(e.Decided(plan=planned, policy=self.policy.NAME, version=""))
        for decision in planned.decisions:
            if isinstance(decision, Start):
                self._start(decision)
            elif isinstance(decision, Stop):
                self._preempt(decision)
            elif isinstance(decision, ReservedStart) and decision.start_ms is not None:
                self.first_reserved_ms.setdefault(decision.gang, decision.start_ms)
        if planned.next_wake_ms == self.now_ms:
            self.cycle()

    def replay(
        self, rules: Rules, jobs: Iterable[Recorded], priority_of: Callable[[Recorded], int] = lambda _: 0
    ) -> None:
        """Submit each job at its time, and run all of them to their ends."""
        self.begin(rules)
        for job in jobs:
            self.run_until(job.at_ms)
            self.submit(job, priority_of(job))
            self.cycle()
        self.run_until(1 << 60)

    def run_until(self, until_ms: int) -> None:
        """End the jobs that end by `until_ms`, with a cycle after each end."""
        while self.ends and self.ends[0][0] <= until_ms:
            self.now_ms = max(self.now_ms, self.ends[0][0])
            while self.ends and self.ends[0][0] <= self.now_ms:
                _, name, generation = heapq.heappop(self.ends)
                gang = self.state.gangs.get(name)
                if gang is None or gang.attempt.generation != generation or gang.attempt.start is None:
                    continue  # it was preempted
                self.waited_ms[name] += self.now_ms - self.runs_ms[name]
                for kind in (e.Finished, e.Cleared):
                    self._step(kind(gang=name, generation=gang.attempt.generation, nodes=gang.nodes))
            self.cycle()

    def _start(self, start: Start) -> None:
        gang = self.state.gangs[start.gang]
        runs_ms = self.runs_ms[start.gang] - gang.ran_ms
        self.started_ms.setdefault(start.gang, self.now_ms)
        self.gpu_ms += gang.shape.nodes * gang.shape.gpus * runs_ms
        heapq.heappush(self.ends, (self.now_ms + runs_ms, start.gang, start.generation))

    def _preempt(self, stop: Stop) -> None:
        gang = self.state.gangs[stop.gang]
        self.preemptions += 1
        left_ms = self.runs_ms[stop.gang] - gang.ran_ms - (self.now_ms - gang.attempt.began_ms)
        self.gpu_ms -= gang.shape.nodes * gang.shape.gpus * left_ms
        self._step(e.Cleared(gang=stop.gang, generation=stop.generation, nodes=gang.nodes))

    def _step(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))
