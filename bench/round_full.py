"""The first round over 10,000 nodes x 8 GPUs and 100,000 pending gangs of mixed shapes, 40 queues, 500 users.

Processor time of the core alone, five fleets one after the other: what is measured is `plan`, from a state that has
never planned.
"""

import os
import time

from bench.fleet import Fleet
from bench.measure import Figure, median
from ganger.policies import priority

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
RUNS = 5
BAR_S = 2.0


def run() -> list[Figure]:
    samples, started = [], []
    for _ in range(RUNS):
        fleet = Fleet(priority, nodes=NODES, gangs=10 * NODES)
        fleet.fill()
        before = time.process_time()
        planned = fleet.round()
        samples.append(time.process_time() - before)
        started.append(float(sum(decision.kind == "start" for decision in planned.decisions)))
    return [median("round_full", "s", samples, under=BAR_S), median("round_full_started", "gangs", started)]
