"""Proof, with its reason, that a gang cannot be placed on a full cluster: 10,000 nodes x 8 GPUs.

Gangs of four sizes, one of which could never be placed; CPU time of the core alone.
"""

import os
import time

from bench.measure import Figure, median
from bench.scheduler.fleet import Fleet
from ganger.core.placement.place import place
from ganger.core.placement.unschedulable import no_room
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.shape import Shape
from ganger.policies import priority

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
BAR_S = 0.05
SIZES = (1, 64, 1024, 2 * NODES)


def run() -> list[Figure]:
    fleet = Fleet(priority, nodes=NODES, gangs=10 * NODES)
    fleet.fill()
    fleet.decide(fleet.cycle())
    samples = []
    for nodes in SIZES:
        shape = Shape(nodes=nodes, gpus=8)
        for _ in range(5):
            before = time.process_time()
            shares = place(fleet.state.nodes, shape)
            reason = no_room(fleet.state, shape, fleet.now_ms, NEVER_MS)
            samples.append(time.process_time() - before)
            if shares or reason.have >= reason.need:
                raise AssertionError(f"{nodes} nodes with 8 free GPUs each were found: the cluster is not full")
    return [median("no_fit", "s", samples, under=BAR_S)]
