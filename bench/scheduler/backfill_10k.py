"""Conservative reservations: a start for each of 10,000 pending gangs of mixed shapes, on 10,000 nodes, two days ahead.

The cluster is full of gangs that end by their time limits; every pending gang gets a reserved start in the order of
submission, each after all before it. CPU time of the core alone. Peer: Slurm 22.05 tests a job in 0.27 s, so that
10,000 take 45 minutes (reference: scheduling, section 3).
"""

import os
import time

from bench.measure import Figure, median
from bench.scheduler.fleet import Fleet
from ganger.core.cycle.precedence import Precedence
from ganger.core.reservations.reservations import CycleReservations
from ganger.model.job import GangState
from ganger.model.units import DAY_MS
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
GANGS = int(os.environ.get("GANGER_BENCH_GANGS", "10000"))
RUNS = 3
BAR_S = 2.0


def run() -> list[Figure]:
    fleet = Fleet(dynamic, nodes=NODES, gangs=NODES)
    fleet.fill()
    fleet.decide(fleet.cycle())
    waiting = [gang for gang in fleet.state.gangs.values() if gang.state is GangState.PENDING]
    while len(waiting) < GANGS:
        fleet.submit()
        waiting.append(next(reversed(fleet.state.gangs.values())))
    samples, reserved, soon = [], [], []
    precedence = Precedence(fleet.state, fleet.now_ms, dynamic)
    for _ in range(RUNS):
        before = time.process_time()
        reservations = CycleReservations(fleet.state, fleet.now_ms, {}, precedence.movable_by)
        for gang in waiting[:GANGS]:
            reservations.reserve(gang)
        samples.append(time.process_time() - before)
        starts_ms = [reservation.start_ms - fleet.now_ms for reservation in reservations.by_gang.values()]
        reserved.append(float(len(starts_ms)))
        soon.append(float(sum(start_ms <= 2 * DAY_MS for start_ms in starts_ms)))
    return [
        median("backfill_10k", "s", samples, under=BAR_S),
        median("backfill_10k.reserved", "gangs", reserved),
        median("backfill_10k.within_two_days", "gangs", soon),
    ]
