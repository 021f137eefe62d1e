"""The full answer for one of 100,000 pending gangs, with its verified changes; and the reason of every pending class.

10,000 nodes x 8 GPUs, all of them taken. 100 gangs are asked about, drawn from all that wait; processor time of the
core alone, with what was there before frozen, as a server that has started freezes it. `explain_classes`: how many
classes there are.
"""

import gc
import os
import time

from bench.fleet import Fleet
from bench.measure import Figure, median
from ganger.core.explain.explain import all_reasons, explain
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
ASKED = 100
BAR_S, BAR_ALL_S = 0.1, 1.0


def run() -> list[Figure]:
    fleet = Fleet(dynamic, nodes=NODES, gangs=10 * NODES)
    fleet.fill()
    fleet.decide(fleet.round())
    fleet.now_ms += 1_000
    fleet.round()
    waiting = [gang.id for members in fleet.state.classes.values() for gang in members]
    samples = []
    gc.collect()
    gc.freeze()
    for name in fleet.chance.sample(waiting, ASKED):
        before = time.process_time()
        said = explain(fleet.state, name, fleet.now_ms, fleet.policy)
        samples.append(time.process_time() - before)
        if said.reason is None or said.position is None:
            raise AssertionError(f"{name} waits without a reason, or without a place: {said}")
    p99 = sorted(samples)[ASKED * 99 // 100 - 1]
    worst = Figure(name="explain_p99", unit="s", samples=tuple(samples), value=p99, op="<", bar=BAR_S)
    figures = [worst, *_every(fleet)]
    gc.unfreeze()
    return figures


def _every(fleet: Fleet) -> list[Figure]:
    samples, answered = [], 0
    for _ in range(5):
        before = time.process_time()
        found = all_reasons(fleet.state, fleet.now_ms, fleet.policy)
        samples.append(time.process_time() - before)
        answered = len(found)
    return [median("explain_every", "s", samples, under=BAR_ALL_S), median("explain_classes", "classes", [answered])]
