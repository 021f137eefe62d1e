"""Waits of gangs of 16 GPUs or more with reserved starts, against best effort: elasticflow cluster 04 on 576 GPUs.

Best effort is the same order without reservations and no starvation threshold: whoever fits starts. Utilisation is
what jobs used of the cluster until the last of them ended. What it costs the smaller gangs is printed beside it, and
the same of two other clusters of that family, all of their jobs: what helps one trace alone would be no policy.
"""

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from bench.measure import Figure, median
from bench.queueing import GPUS, Queueing, Recorded, recorded
from ganger.model.policy import Reservations, Rules, Starvation
from ganger.policies import dynamic

JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "1000000"))
"""At most so many: all of them."""
CLUSTER, NODES = "04", 72
OTHERS: Final = (("02", 16), ("03", 20))
LARGE: Final = 16
NEVER_MS: Final = 1 << 40
POINT: Final = 0.01
NOTHING: Final = Rules(reservations=Reservations(total=0, per_queue=0), starvation=Starvation(after_ms=NEVER_MS))


class Outcome(NamedTuple):
    """Hours that large and other gangs waited, in order, and the part of the cluster that was used."""

    large: list[float]
    others: list[float]
    used: float


def run() -> list[Figure]:
    reserved, best_effort = (_outcome(rules, CLUSTER, NODES, JOBS) for rules in (Rules(), NOTHING))
    p99, bar = _part(reserved.large, 99), _part(best_effort.large, 99) / 2
    found = [
        Figure(name="big_gangs.p99", unit="h", samples=tuple(reserved.large), value=p99, op="<=", bar=bar),
        Figure(
            name="big_gangs.utilisation",
            unit="part",
            samples=(reserved.used,),
            value=reserved.used,
            op=">=",
            bar=best_effort.used - POINT,
        ),
        *_beside("big_gangs", reserved, best_effort),
    ]
    for cluster, nodes in OTHERS if len(recorded("03", JOBS)) < JOBS else ():
        outcomes = (_outcome(rules, cluster, nodes, JOBS) for rules in (Rules(), NOTHING))
        found += _beside(f"big_gangs.{cluster}", *outcomes)
    return found


def _beside(name: str, reserved: Outcome, best_effort: Outcome) -> list[Figure]:
    """Waits under both, of both."""
    found = []
    for order, outcome in (("", reserved), ("_best_effort", best_effort)):
        for of, waits in (("large", outcome.large), ("others", outcome.others)):
            found += [median(f"{name}.{of}_p{part}{order}", "h", [_part(waits, part)]) for part in (50, 95, 99)]
        found.append(median(f"{name}.used{order}", "part", [outcome.used]))
    return found


def _outcome(rules: Rules, cluster: str, nodes: int, most: int) -> Outcome:
    queueing, jobs = Queueing(dynamic, nodes), recorded(cluster, most)
    queueing.replay(rules, jobs)
    there_ms = nodes * GPUS * (queueing.now_ms - jobs[0].at_ms)

    def waits(chosen: Callable[[Recorded], bool]) -> list[float]:
        return sorted((queueing.started_ms[job.name] - job.at_ms) / 3_600_000 for job in jobs if chosen(job))

    large, others = waits(lambda job: job.gpus >= LARGE), waits(lambda job: job.gpus < LARGE)
    return Outcome(large, others, queueing.gpu_ms / there_ms)


def _part(waits: list[float], percent: int) -> float:
    return waits[len(waits) * percent // 100]
