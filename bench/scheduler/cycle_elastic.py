"""The scheduling cycle after one event with 2,000 elastic gangs, against the same load with rigid ones.

10,000 nodes x 8 GPUs, 20,000 gangs, most of them pending. The first 2,000 have a range of nodes in one fleet and one
size in the other; 100 events one second apart, as in `cycle_next`, and the same for both. CPU time of the core alone:
the event and the cycle.
"""

import gc
import os
import statistics

from bench.measure import Figure
from bench.scheduler.fleet import Fleet
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
ELASTIC = int(os.environ.get("GANGER_BENCH_ELASTIC", "2000"))
EVENTS = 100
BAR = 1.3


def run() -> list[Figure]:
    firsts, nexts = {}, {}
    for elastic in (0, ELASTIC):
        fleet = Fleet(dynamic, nodes=NODES, gangs=2 * NODES, elastic=elastic)
        fleet.fill()
        gc.collect()
        gc.freeze()
        firsts[elastic] = fleet.first_s()
        nexts[elastic] = [fleet.next_s() for _ in range(EVENTS)]
        gc.unfreeze()
    medians = {elastic: statistics.median(samples) for elastic, samples in nexts.items()}
    return [
        Figure(
            name="cycle_elastic_next",
            unit="x",
            samples=tuple(nexts[ELASTIC]),
            value=medians[ELASTIC] / medians[0],
            op="<",
            bar=BAR,
        ),
        Figure(
            name="cycle_elastic_full",
            unit="x",
            samples=(firsts[0], firsts[ELASTIC]),
            value=firsts[ELASTIC] / firsts[0],
            op="<",
            bar=BAR,
        ),
    ]
