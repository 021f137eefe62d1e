"""How fast `ganger sim` is: events (a submission or an end) or pods a second of processor time, with the default order.

Gangs: the first 2,000 jobs of ElasticFlow's cluster 04 on 72 nodes x 8 GPUs, whose queue is never empty for long; all
15,802 of them; and the pods of openb on their 1,213 nodes. Each whole: what reads the trace, decides, keeps the log's
rows and makes the figures, in a process of its own, without its start. Peers were measured on two cores under load, on
the same jobs: Lucid 27 to 38, the PAI simulator 114 to 190 jobs a second, FGD's 9 pods a second.
"""

import json
import os
import subprocess
import sys
from typing import Final

from bench.measure import ROOT, Figure, median

TRACES: Final = ROOT.parent / "shared" / "traces"
RUNS: Final = int(os.environ.get("GANGER_BENCH_RUNS", "3"))
EVENTS_A_SECOND: Final = 8_000
PODS_A_SECOND: Final = 5_000
BAR_S: Final = 5
SATURATED: Final = 2_000
ONE: Final = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
from ganger.backends.simulator.traces.read import read_jobs, read_nodes
from ganger.core.state import State
from ganger.engine import registry
from ganger.model.cluster import Node
from ganger.model.policy import Rules, document_of
from ganger.wiring.simulate import Run, simulate

jobs, nodes, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
began_s = time.process_time()
trace = read_jobs(jobs)
trace = replace(trace, records=trace.records[:first])
equal = tuple(Node(name=f"n{at:02}", gpus=8, cpu_milli=10**9, memory_bytes=1 << 46) for at in range(72))
listed = read_nodes(Path(nodes)).records if nodes else equal
document = document_of(Rules(), State().queues)
outcome = simulate(Run(trace=trace, nodes=listed, order=registry.order, document=document))
print(json.dumps({"s": time.process_time() - began_s, "events": outcome.events, "jobs": outcome.starts}))
"""


def run() -> list[Figure]:
    every = [_ran("elasticflow/cluster04.csv.gz", "", SATURATED) for _ in range(RUNS)]
    whole = [_ran("elasticflow/cluster04.csv.gz", "", sys.maxsize) for _ in range(RUNS)]
    pods = [
        _ran("openb/openb_pod_list_default.csv.gz", "openb/openb_node_list_gpu_node.csv", sys.maxsize)
        for _ in range(RUNS)
    ]
    return [
        _at_least("sim_speed", "events/s", [one["events"] / one["s"] for one in every], EVENTS_A_SECOND),
        median("sim_speed_whole", "s", [one["s"] for one in whole], under=BAR_S),
        _at_least("sim_speed_openb", "pods/s", [one["jobs"] / one["s"] for one in pods], PODS_A_SECOND),
    ]


def _ran(jobs: str, nodes: str, first: int) -> dict[str, float]:
    command = [sys.executable, "-c", ONE, str(TRACES / jobs), nodes and str(TRACES / nodes), str(first)]
    found: dict[str, float] = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    return found


def _at_least(name: str, unit: str, samples: list[float], bar: float) -> Figure:
    middle = sorted(samples)[len(samples) // 2]
    return Figure(name=name, unit=unit, samples=tuple(samples), value=middle, op=">=", bar=bar)
