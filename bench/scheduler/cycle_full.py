"""The first scheduling cycle over 10,000 nodes x 8 GPUs and 100,000 gangs of mixed shapes, 40 queues and 500 users.

CPU time of `plan` alone, on five fleets one after the other, from a state that has never been planned. Existing objects
are frozen, as a started server freezes them. The queue order is the default.
"""

import gc
import os
import time

from bench.measure import Figure, median
from bench.scheduler.fleet import Fleet
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
RUNS = 5
BAR_S = 1.5


def run() -> list[Figure]:
    samples, started = [], []
    for _ in range(RUNS):
        fleet = Fleet(dynamic, nodes=NODES, gangs=10 * NODES)
        fleet.fill()
        gc.collect()
        gc.freeze()
        before = time.process_time()
        planned = fleet.cycle()
        samples.append(time.process_time() - before)
        gc.unfreeze()
        started.append(float(sum(decision.kind == "start" for decision in planned.decisions)))
    return [median("cycle_full", "s", samples, under=BAR_S), median("cycle_full_started", "gangs", started)]
