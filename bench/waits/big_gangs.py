"""Waits of gangs of 16 GPUs or more with reserved starts, against best effort: elasticflow cluster 04 on 576 GPUs.

Best effort is the same queue order without reservations and without a starvation threshold: every gang that fits
starts. Utilisation is the part of the cluster that jobs used until the last of them ended. A table shows beside the
waits of the large gangs what the smaller ones pay for them, also for two other clusters of that family: a policy that
helps one trace alone is not an improvement.

With a third policy large gangs have a priority that is higher by one named level, so that the default order preempts
smaller ones for them. A preempted job loses no work, as with a notice in which it saves, and waits again.
"""

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from bench.measure import Figure, median
from bench.waits.queueing import GPUS, Queueing, Recorded, recorded
from ganger.model.policy import Reservations, Rules, Starvation
from ganger.policies import dynamic

JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "1000000"))
"""Maximum number of jobs; the default means all."""
CLUSTER, NODES = "04", 72
OTHERS: Final = (("02", 16), ("03", 20))
LARGE: Final = 16
NEVER_MS: Final = 1 << 40
POINT: Final = 0.01
NOTHING: Final = Rules(reservations=Reservations(total=0, per_queue=0), starvation=Starvation(after_ms=NEVER_MS))


PREEMPTING: Final = "preempting"
POLICIES: Final = (("reserved", Rules()), ("best effort", NOTHING), (PREEMPTING, Rules()))


class Outcome(NamedTuple):
    """Sorted waits of large and small gangs in hours, and the used part of the cluster."""

    large: list[float]
    small: list[float]
    used: float


def run() -> list[Figure]:
    print(f"{'cluster':8}{'policy':12}{'large p50':>10}{'p99':>8}{'small p50':>10}{'p99':>8} h{'used':>7}")
    reserved, best_effort, preempting = (_outcome(*policy, CLUSTER, NODES) for policy in POLICIES)
    p99, bar = _part(reserved.large, 99), _part(best_effort.large, 99) / 2
    figures = [
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
        *_bars("big_gangs", preempting, best_effort),
    ]
    for cluster, nodes in OTHERS if len(recorded("03", JOBS)) < JOBS else ():
        reserved, best_effort, preempting = (_outcome(*policy, cluster, nodes) for policy in POLICIES)
        figures += _beside(f"big_gangs.{cluster}", reserved, best_effort)
        figures += _bars(f"big_gangs.{cluster}", preempting, best_effort)
    return figures


def _bars(name: str, preempting: Outcome, best_effort: Outcome) -> list[Figure]:
    """Return the waits of both classes of gangs with preemption, against best effort."""
    figures = []
    for gangs, most in (("large", 1 / 2), ("small", 1.2)):
        waits, bar = getattr(preempting, gangs), most * _part(getattr(best_effort, gangs), 99)
        p99 = _part(waits, 99)
        figures.append(
            Figure(name=f"{name}.{gangs}_preempting", unit="h", samples=tuple(waits), value=p99, op="<=", bar=bar)
        )
    return figures


def _beside(name: str, reserved: Outcome, best_effort: Outcome) -> list[Figure]:
    """Return the waits of both classes of gangs with reservations and with best effort."""
    figures = []
    for order, outcome in (("", reserved), ("_best_effort", best_effort)):
        for gangs, waits in (("large", outcome.large), ("small", outcome.small)):
            figures += [median(f"{name}.{gangs}_p{part}{order}", "h", [_part(waits, part)]) for part in (50, 95, 99)]
        figures.append(median(f"{name}.used{order}", "part", [outcome.used]))
    return figures


def _outcome(policy: str, rules: Rules, cluster: str, nodes: int) -> Outcome:
    """Run the jobs of a cluster and print its line of the table."""
    queueing, jobs = Queueing(dynamic, nodes), recorded(cluster, JOBS)
    if policy == PREEMPTING:
        queueing.replay(rules, jobs, lambda job: rules.preemption.priority_gap if job.gpus >= LARGE else 0)
    else:
        queueing.replay(rules, jobs)
    available_ms = nodes * GPUS * (queueing.now_ms - jobs[0].at_ms)

    def waits(matches: Callable[[Recorded], bool]) -> list[float]:
        return sorted(queueing.waited_ms[job.name] / 3_600_000 for job in jobs if matches(job))

    large, small = waits(lambda job: job.gpus >= LARGE), waits(lambda job: job.gpus < LARGE)
    used = queueing.gpu_ms / available_ms
    p50s_and_p99s = "".join(f"{_part(of, 50):10.2f}{_part(of, 99):8.2f}" for of in (large, small))
    print(f"{cluster:8}{policy:12}{p50s_and_p99s}  {used:7.4f}{queueing.preemptions:6}", flush=True)
    return Outcome(large, small, used)


def _part(waits: list[float], percent: int) -> float:
    return waits[len(waits) * percent // 100]
