"""A trace simulated in a process of its own, with the default queue order: its time and memory.

Used by `sim_speed` and `sim_growth`. Time is CPU time for reading the trace, deciding, keeping the log's rows and
computing the figures, without the start of the process. Memory is the peak resident size, libraries included.
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Final

from bench.measure import ROOT
from ganger import registry
from ganger.core.state.state import State
from ganger.model.cluster import Node
from ganger.model.policy import Rules, document_of
from ganger.model.units import MINUTE_MS
from ganger.simulation.trace_replay import TraceRun, simulate_trace
from ganger.simulation.traces.read_trace import read_jobs, read_nodes
from ganger.simulation.traces.trace import RecordedJob

TRACES: Final = ROOT.parent / "shared" / "traces"
CLUSTER: Final = "elasticflow/cluster04.csv.gz"
EQUAL: Final = tuple(Node(name=f"n{number:02}", gpus=8, cpu_milli=10**9, memory_bytes=1 << 46) for number in range(72))


@dataclass(frozen=True, slots=True)
class Simulated:
    """Costs of a simulation.

    Attributes:
        read_s, run_s: CPU time to read the trace and to run it.
        events: submissions and ends.
        starts: starts of jobs.
        peak_mb: peak memory.
    """

    read_s: float
    run_s: float
    events: int
    starts: int
    peak_mb: float

    @property
    def spent_s(self) -> float:
        """CPU time of both."""
        return self.read_s + self.run_s


def simulated(jobs: str, nodes: str = "", *, first: int = sys.maxsize, copies_to: int = 0) -> Simulated:
    """Simulate the first jobs of a trace, on the nodes of a file or on 72 nodes with 8 GPUs each.

    `copies_to` is the total number of jobs, made of copies of these, one after the other. Raises CalledProcessError for
    a missing trace.
    """
    command = [sys.executable, "-m", "bench.simulator.simulating", jobs, nodes, str(first), str(copies_to)]
    return Simulated(**json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout))


def main(jobs: str, nodes: str, first: str, copies_to: str) -> None:
    began_s = time.process_time()
    trace = read_jobs(TRACES / jobs)
    records = _copied(trace.records[: int(first)], int(copies_to)) if int(copies_to) else trace.records[: int(first)]
    run = TraceRun(
        trace=replace(trace, records=records),
        nodes=read_nodes(TRACES / nodes).records if nodes else EQUAL,
        order=registry.order,
        document=document_of(Rules(), State().document.queues),
    )
    read_s = time.process_time() - began_s
    outcome = simulate_trace(run)
    run_s = time.process_time() - began_s - read_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps(asdict(Simulated(read_s, run_s, outcome.events, outcome.starts, peak_mb))))


def _copied(once: tuple[RecordedJob, ...], count: int) -> tuple[RecordedJob, ...]:
    """Return that many jobs, with a minute between the last submission of a copy and the first of the next."""
    lasts_ms = once[-1].submitted_ms - once[0].submitted_ms + MINUTE_MS
    records = []
    for index in range(count):
        copy, number = divmod(index, len(once))
        job = once[number]
        records.append(replace(job, name=f"{copy}-{job.name}", submitted_ms=job.submitted_ms + copy * lasts_ms))
    return tuple(records)


if __name__ == "__main__":
    main(*sys.argv[1:])
