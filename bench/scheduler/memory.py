"""Memory of the core with 10,000 nodes, 100,000 pending gangs, and as many running ones as the nodes hold.

The resident set of a process that does nothing else, after the decisions of the first cycle.
"""

import os
import subprocess
import sys

from bench.measure import ROOT, Figure, median

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
BAR_MB = 398.0
RUNS = 3
FILL = """
import psutil
from bench.scheduler.fleet import Fleet
from ganger.policies import priority
fleet = Fleet(priority, nodes={nodes}, gangs=10 * {nodes})
fleet.fill()
fleet.decide(fleet.cycle())
fleet.cycle()
print(psutil.Process().memory_info().rss / 1e6)
"""


def run() -> list[Figure]:
    command = [sys.executable, "-c", FILL.format(nodes=NODES)]
    samples = [float(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout) for _ in range(RUNS)]
    return [median("memory", "MB", samples, under=BAR_MB)]
