"""What a run with failures should come to by the closed form, beside which a simulation is printed. Pure.

Called by `simulation.arguments.fault_arguments`. A job on n nodes that each fail at a constant rate (exponential times
between failures) loses a node every M = 1 / (n x rate) ms of running. To get through R ms of starting and x ms of work
and writing takes, with D ms from each failure until it can start again,

    E(R, x) = (M + D) (exp(R / M)) (exp(x / M) - 1)

ms in the mean, when a failure during the start begins it anew: Daly's complete model (J. T. Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22, 2006) with the
time to a restart, D, as in M. Bougeret et al., "Checkpointing strategies for parallel jobs", SC 2011. A job is one such
piece for each checkpoint interval; the last has no checkpoint. D is detection and waiting for a node.

The best interval is sqrt(2 d M) for writes of d ms (J. W. Young, "A first order approximation to the optimum checkpoint
interval", Communications of the ACM 17, 1974), and with Daly's further terms closer where d is not small beside M.

Waiting for repair: of N nodes as many are down as a binomial draw says, and S can be missed: spares, and nodes that
jobs do not need in the mean. With k down, whoever lost the last waits for k - S returns, in the mean r / j for each of
the j that are down by then. That other jobs end, and others queue, is not in it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ganger.simulation.metrics.goodput import Pace
from ganger.simulation.metrics.run_history import History
from ganger.simulation.node_outages import Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How a cluster fails. rate: failures of one node in a ms of its being up; repair_ms, detect_ms: means."""

    nodes: int
    rate: float
    repair_ms: float
    detect_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The same figures as of `Goodput`, and the best intervals of a job on `widest` nodes, the most that one has; None
    where there is nothing to divide by, or nothing fails or is written. missed: nodes that jobs can do without."""

    failures: Failures
    missed: int
    goodput: float | None
    ettr: float | None
    mtti_ms: float | None
    waiting_ms: float
    widest: int
    young_ms: float | None
    daly_ms: float | None


def measured(outages: Sequence[Outage], nodes: int, until_ms: int) -> Failures:
    """How often nodes failed until then, and for how long."""
    seen = [outage for outage in outages if outage.from_ms < until_ms]
    down_ms = sum(min(outage.until_ms, until_ms) - outage.from_ms for outage in seen)
    up_ms, many = nodes * until_ms - down_ms, max(1, len(seen))
    return Failures(
        nodes=nodes,
        rate=len(seen) / up_ms if up_ms > 0 else 0.0,
        repair_ms=sum(outage.until_ms - outage.from_ms for outage in seen) / many,
        detect_ms=sum(outage.known_ms - outage.from_ms for outage in seen) / many,
    )


def forecast(jobs: Sequence[History], failures: Failures, pace: Pace, capacity: int) -> Forecast:
    """What the jobs that came to their end should have come to. `capacity`: all GPU time there was, as of `Goodput`."""
    had = sum(job.gpu_milli * (each.ended_ms - each.began_ms) for job in jobs for each in job.attempts)
    missed = max(0, failures.nodes - -(-had * failures.nodes // capacity)) if capacity else 0
    waiting_ms = wait_ms(failures, missed)
    useful = allocated = wall = job_ms = fails = 0.0
    widest = 0
    for job in jobs:
        if job.ended_ms is None:
            continue
        nodes = job.attempts[-1].nodes
        rate, widest = nodes * failures.rate, max(widest, nodes)
        on_nodes_ms = expected_ms(job.duration_ms, rate, pace, failures.detect_ms)
        job_ms, fails = job_ms + on_nodes_ms, fails + rate * expected_ms(job.duration_ms, rate, pace, 0)
        useful += job.gpu_milli * job.duration_ms
        allocated += job.gpu_milli * on_nodes_ms
        wall += job.gpu_milli * expected_ms(job.duration_ms, rate, pace, failures.detect_ms + waiting_ms)
    mtbf_ms = 1 / (widest * failures.rate) if widest and failures.rate else None
    return Forecast(
        failures=failures,
        missed=missed,
        goodput=useful / allocated if allocated else None,
        ettr=useful / wall if wall else None,
        mtti_ms=job_ms / fails if fails and math.isfinite(job_ms) else None,
        waiting_ms=waiting_ms,
        widest=widest,
        young_ms=young_ms(pace.write_ms, mtbf_ms) if pace.write_ms and mtbf_ms else None,
        daly_ms=daly_ms(pace.write_ms, mtbf_ms) if pace.write_ms and mtbf_ms else None,
    )


def expected_ms(work_ms: int, rate: float, pace: Pace, down_ms: float) -> float:
    """Mean ms from the first start to the end of `work_ms` of work, for a job that loses a node `rate` times in a ms of
    running; `down_ms` pass from each loss until it can start again. Infinity where it would hardly ever end."""
    if pace.checkpoint_ms:
        whole = max(0, -(-work_ms // pace.checkpoint_ms) - 1)
        rest_ms = work_ms - whole * pace.checkpoint_ms
        grown = whole * _grown(pace.checkpoint_ms + pace.write_ms, rate) + _grown(rest_ms, rate)
    else:
        grown = float(work_ms)
    times = _exp(pace.start_ms * rate) * grown + _grown(pace.start_ms, rate)
    return times * (1 + rate * down_ms)


def young_ms(write_ms: float, mtbf_ms: float) -> float:
    """Young's interval between checkpoints."""
    return math.sqrt(2 * write_ms * mtbf_ms)


def daly_ms(write_ms: float, mtbf_ms: float) -> float:
    """Daly's, of the higher order."""
    part = write_ms / (2 * mtbf_ms)
    if part >= 1:
        return mtbf_ms
    return young_ms(write_ms, mtbf_ms) * (1 + math.sqrt(part) / 3 + part / 9) - write_ms


def wait_ms(failures: Failures, missed: int) -> float:
    """Mean ms that a job waits for a node, once one of its own is known to be lost and `missed` can be done without."""
    share = failures.rate * failures.repair_ms
    likely, mean_ms, waits_ms = _binomial(failures.nodes - 1, share / (1 + share)), 0.0, 0.0
    for down in range(missed + 1, failures.nodes + 1):
        waits_ms += failures.repair_ms / down
        mean_ms += likely(down - 1) * max(0.0, waits_ms - failures.detect_ms)
    return mean_ms


def _binomial(of: int, chance: float) -> Callable[[int], float]:
    """How likely each number of them is, of whom each is so with that chance."""

    def likely(many: int) -> float:
        if not chance:
            return float(many == 0)
        ways = math.lgamma(of + 1) - math.lgamma(many + 1) - math.lgamma(of - many + 1)
        return math.exp(ways + many * math.log(chance) + (of - many) * math.log1p(-chance))

    return likely


def _grown(ms: float, rate: float) -> float:
    """(exp(rate x ms) - 1) / rate: the ms themselves where nothing fails."""
    if not rate:
        return float(ms)
    try:
        return math.expm1(rate * ms) / rate
    except OverflowError:
        return math.inf


def _exp(power: float) -> float:
    try:
        return math.exp(power)
    except OverflowError:
        return math.inf
