"""The scheduling cycle after one event on a full cluster: 10,000 nodes x 8 GPUs, 100,000 gangs, most of them pending.

200 events one second apart, each followed by one cycle: 45 % ends of a gang, 45 % submissions, 10 % lost nodes.
CPU time of the core alone: the event and the cycle. Existing objects are frozen, as a started server freezes
them. The queue order is the default.
"""

import gc
import os

from bench.measure import Figure, median
from bench.scheduler.fleet import Fleet
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
EVENTS = 200
BAR_S = 0.035


def run() -> list[Figure]:
    fleet = Fleet(dynamic, nodes=NODES, gangs=10 * NODES)
    fleet.fill()
    fleet.decide(fleet.cycle())
    gc.collect()
    gc.freeze()
    samples = [fleet.next_s() for _ in range(EVENTS)]
    gc.unfreeze()
    p99 = sorted(samples)[EVENTS * 99 // 100]
    worst = Figure(name="cycle_next_p99", unit="s", samples=tuple(samples), value=p99, op="<", bar=BAR_S)
    return [worst, median("cycle_next", "s", samples)]
