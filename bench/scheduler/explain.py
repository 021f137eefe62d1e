"""The full explanation of one of 100,000 pending gangs, with verified changes; and the reason of every job class.

10,000 nodes x 8 GPUs, all of them allocated. 100 gangs are drawn from all pending ones; CPU time of the core alone,
with existing objects frozen, as a started server freezes them. `explain_classes` is the number of classes.
"""

import gc
import os
import time

from bench.measure import Figure, median
from bench.scheduler.fleet import Fleet
from ganger.core.explain.explain import all_reasons, explain
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
ASKED = 100
BAR_S, BAR_ALL_S = 0.1, 1.0


def run() -> list[Figure]:
    fleet = Fleet(dynamic, nodes=NODES, gangs=10 * NODES)
    fleet.fill()
    fleet.decide(fleet.cycle())
    fleet.now_ms += 1_000
    fleet.cycle()
    waiting = [gang.id for members in fleet.state.classes.values() for gang in members]
    samples = []
    gc.collect()
    gc.freeze()
    for name in fleet.chance.sample(waiting, ASKED):
        before = time.process_time()
        explanation = explain(fleet.state, name, fleet.now_ms, fleet.policy)
        samples.append(time.process_time() - before)
        if explanation.reason is None or explanation.position is None:
            raise AssertionError(f"{name} is pending without a reason or a position: {explanation}")
    p99 = sorted(samples)[ASKED * 99 // 100 - 1]
    worst = Figure(name="explain_p99", unit="s", samples=tuple(samples), value=p99, op="<", bar=BAR_S)
    figures = [worst, *_every(fleet)]
    gc.unfreeze()
    return figures


def _every(fleet: Fleet) -> list[Figure]:
    samples, class_count = [], 0
    for _ in range(5):
        before = time.process_time()
        reasons = all_reasons(fleet.state, fleet.now_ms, fleet.policy)
        samples.append(time.process_time() - before)
        class_count = len(reasons)
    return [median("explain_every", "s", samples, under=BAR_ALL_S), median("explain_classes", "classes", [class_count])]
