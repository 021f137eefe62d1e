"""Waits of gangs of 16 GPUs or more with promised starts, against best effort: elasticflow cluster 04 on 576 GPUs.

Best effort is the same order with nothing promised and no starvation threshold: whoever fits starts. Utilisation is
what jobs used of the cluster until the last of them ended.
"""

import os
from typing import Final

from bench.measure import Figure, median
from bench.queueing import GPUS, Queueing, cluster04
from ganger.model.policy import Reservations, Rules, Starvation
from ganger.policies import fifo

NODES: Final = 72
JOBS = int(os.environ.get("GANGER_BENCH_JOBS", "2000"))
LARGE: Final = 16
NEVER_MS: Final = 1 << 40
POINT: Final = 0.01


def run() -> list[Figure]:
    promised, busy = _waits(Rules())
    nothing = Rules(reservations=Reservations(total=0, per_queue=0), starvation=Starvation(after_ms=NEVER_MS))
    best_effort, filled = _waits(nothing)
    p99, before = (_p99(waits) for waits in (promised, best_effort))
    return [
        Figure(name="big_gangs.p99", unit="h", samples=tuple(promised), value=p99, op="<=", bar=before / 2),
        median("big_gangs.p99_best_effort", "h", [before]),
        Figure(name="big_gangs.utilisation", unit="part", samples=(busy,), value=busy, op=">=", bar=filled - POINT),
    ]


def _waits(rules: Rules) -> tuple[list[float], float]:
    """Hours that large gangs waited, and the part of the cluster that was used."""
    queueing, jobs = Queueing(fifo, NODES), cluster04(JOBS)
    queueing.replay(rules, jobs)
    waits = [(queueing.started_ms[job.name] - job.at_ms) / 3_600_000 for job in jobs if job.gpus >= LARGE]
    there_ms = NODES * GPUS * (queueing.now_ms - jobs[0].at_ms)
    return waits, queueing.gpu_ms / there_ms


def _p99(waits: list[float]) -> float:
    return sorted(waits)[len(waits) * 99 // 100]
