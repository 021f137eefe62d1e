"""What `ganger sim` costs as traces grow: memory with 100,000 jobs, and time with twice as many at equal load.

The jobs are those of ElasticFlow's cluster 04, one copy of the trace after the other, on 72 nodes x 8 GPUs; each run in
a process of its own, with the default order. Peak resident memory is of the whole process, its libraries too.
"""

import json
import os
import subprocess
import sys
from typing import Final

from bench.measure import ROOT, Figure, median

JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "100000"))
RUNS: Final = 3
BAR_MB: Final = 300.0
BAR_TIMES: Final = 2.3
DOUBLED: Final = 8_000
"""Jobs of the runs that are compared, and half of it: the first half of a trace and all of it are loaded alike."""
ONE: Final = """
import json, resource, sys, time
from dataclasses import replace
from pathlib import Path
from ganger.backends.simulator.traces.read import read_jobs
from ganger.core.state import State
from ganger.engine import registry
from ganger.model.cluster import Node
from ganger.model.policy import Rules, document_of
from ganger.wiring.simulate import Run, simulate

many, of = int(sys.argv[2]), int(sys.argv[3])
trace = read_jobs(Path(sys.argv[1]))
once, records = trace.records[:of], []
lasts_ms = once[-1].submitted_ms - once[0].submitted_ms + 60_000
for at in range(many):
    copy, number = divmod(at, len(once))
    job = once[number]
    records.append(replace(job, name=f"{copy}-{job.name}", submitted_ms=job.submitted_ms + copy * lasts_ms))
nodes = tuple(Node(name=f"n{at:02}", gpus=8, cpu_milli=10**9, memory_bytes=1 << 46) for at in range(72))
document = document_of(Rules(), State().queues)
run = Run(trace=replace(trace, records=tuple(records)), nodes=nodes, order=registry.order, document=document)
began_s = time.process_time()
outcome = simulate(run)
spent_s = time.process_time() - began_s
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
print(json.dumps({"s": spent_s, "mb": peak_mb, "jobs": outcome.starts}))
"""


def run() -> list[Figure]:
    # The same jobs again and again: load is equal, and only how many there have been differs.
    pairs = [(_ran(DOUBLED, DOUBLED // 2), _ran(DOUBLED // 2, DOUBLED // 2)) for _ in range(RUNS)]
    times = [twice["s"] / once["s"] for twice, once in pairs]
    most = _ran(JOBS, sys.maxsize)
    return [
        median("sim_growth", "times", times, under=BAR_TIMES),
        Figure(name="sim_growth_memory", unit="MB", samples=(most["mb"],), value=most["mb"], op="<=", bar=BAR_MB),
        median("sim_growth_100000", "s", [most["s"]]),
    ]


def _ran(jobs: int, of: int) -> dict[str, float]:
    trace = ROOT.parent / "shared" / "traces" / "elasticflow" / "cluster04.csv.gz"
    command = [sys.executable, "-c", ONE, str(trace), str(jobs), str(of)]
    found: dict[str, float] = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    return found
