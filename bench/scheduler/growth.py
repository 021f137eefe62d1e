"""Cycles and explanations as nodes and gangs double: 2,500, 5,000 and 10,000 nodes x 8 GPUs, ten gangs a node.

The first cycle, the median cycle after one event, and the median of `explain`, with the default queue order; CPU time
of the core alone, with existing objects frozen. `growth_*` is the worse of the two ratios of times at doubled sizes.
"""

import gc
import os
import statistics
import time
from itertools import pairwise

from bench.measure import Figure
from bench.scheduler.fleet import Fleet
from ganger.core.explain.explain import explain
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
SIZES = (NODES // 4, NODES // 2, NODES)
EVENTS, ASKED = 60, 30
BAR = 2.5


def run() -> list[Figure]:
    taken = [_measured(nodes) for nodes in SIZES]
    figures = []
    for name in taken[0]:
        times = [figures_of_size[name] for figures_of_size in taken]
        grown = tuple(later / sooner for sooner, later in pairwise(times))
        figures.append(Figure(name=f"growth_{name}", unit="x", samples=grown, value=max(grown), op="<", bar=BAR))
        figures.append(Figure(name=name, unit="s", samples=tuple(times), value=times[-1]))
    return figures


def _measured(nodes: int) -> dict[str, float]:
    fleet = Fleet(dynamic, nodes=nodes, gangs=10 * nodes)
    fleet.fill()
    gc.collect()
    gc.freeze()
    before = time.process_time()
    planned = fleet.cycle()
    first = time.process_time() - before
    fleet.decide(planned)
    later = [fleet.next_s() for _ in range(EVENTS)]
    waiting = [gang.id for members in fleet.state.pending.classes.values() for gang in members]
    explain_s = [_explain_s(fleet, name) for name in fleet.chance.sample(waiting, ASKED)]
    gc.unfreeze()
    return {"cycle_full": first, "cycle_next": statistics.median(later), "explain": statistics.median(explain_s)}


def _explain_s(fleet: Fleet, name: str) -> float:
    before = time.process_time()
    explain(fleet.state, name, fleet.now_ms, fleet.policy)
    return time.process_time() - before
