"""A closed-form forecast of goodput with failures, beside which a simulation is printed.

A job on n nodes that each fail at a constant rate (exponential times between failures) loses a node every
M = 1 / (n x rate) ms of running. To get through R ms of starting and x ms of work and writing takes, with D ms from
each failure until it can start again,

    E(R, x) = (M + D) (exp(R / M)) (exp(x / M) - 1)

ms on average, if a failure during the start restarts it: Daly's complete model (J. T. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22, 2006) with the time to a
restart, D, as in M. Bougeret et al., "Checkpointing strategies for parallel jobs", SC 2011. A job is one such piece for
each checkpoint interval; the last has no checkpoint. D is detection and waiting for a node.

The best interval is sqrt(2 d M) for writes of d ms (J. W. Young, "A first order approximation to the optimum checkpoint
interval", Communications of the ACM 17, 1974); Daly's further terms are closer where d is not small beside M.

Waiting for repair: of N nodes a binomial number is down, and S can be missed: spares, and nodes that jobs do not need
on average. With k down, the job that lost the last of them waits for k - S returns, on average r / j for each of the j
that are down by then. That other jobs end, and others queue, is left out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ganger.simulation.metrics.goodput import CheckpointCosts
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.node_outages import Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The failures of a cluster.

    rate: failures of one node per ms that it is up
    repair_ms, detect_ms: means
    """

    nodes: int
    rate: float
    repair_ms: float
    detect_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The same figures as in `Goodput`, and the best checkpoint intervals; None where a figure has no meaning.

    missed: number of nodes that jobs can do without
    widest: number of nodes of the largest job, for which the intervals are best
    """

    failures: Failures
    missed: int
    goodput: float | None
    ettr: float | None
    mtti_ms: float | None
    waiting_ms: float
    widest: int
    young_ms: float | None
    daly_ms: float | None


def observed_failures(outages: Sequence[Outage], nodes: int, until_ms: int) -> Failures:
    """Return the failures until a time."""
    observed = [outage for outage in outages if outage.from_ms < until_ms]
    down_ms = sum(min(outage.until_ms, until_ms) - outage.from_ms for outage in observed)
    up_ms, count = nodes * until_ms - down_ms, max(1, len(observed))
    return Failures(
        nodes=nodes,
        rate=len(observed) / up_ms if up_ms > 0 else 0.0,
        repair_ms=sum(outage.until_ms - outage.from_ms for outage in observed) / count,
        detect_ms=sum(outage.known_ms - outage.from_ms for outage in observed) / count,
    )


def forecast(jobs: Sequence[JobHistory], failures: Failures, costs: CheckpointCosts, capacity: int) -> Forecast:
    """Return the forecast for the jobs that ended. `capacity`: all GPU time of the run, in units of `Goodput`."""
    allocated = sum(job.gpu_us for job in jobs)
    missed = max(0, failures.nodes - -(-allocated * failures.nodes // capacity)) if capacity else 0
    waiting_ms = wait_ms(failures, missed)
    useful = expected_allocated = wall = jobs_ms = interruptions = 0.0
    widest = 0
    for job in jobs:
        if job.ended_ms is None:
            continue
        nodes = job.attempts[-1].nodes
        rate, widest = nodes * failures.rate, max(widest, nodes)
        on_nodes_ms = expected_ms(job.duration_ms, rate, costs, failures.detect_ms)
        jobs_ms += on_nodes_ms
        interruptions += rate * expected_ms(job.duration_ms, rate, costs, 0)
        useful += job.gpu_milli * job.duration_ms
        expected_allocated += job.gpu_milli * on_nodes_ms
        wall += job.gpu_milli * expected_ms(job.duration_ms, rate, costs, failures.detect_ms + waiting_ms)
    mtbf_ms = 1 / (widest * failures.rate) if widest and failures.rate else None
    return Forecast(
        failures=failures,
        missed=missed,
        goodput=useful / expected_allocated if expected_allocated else None,
        ettr=useful / wall if wall else None,
        mtti_ms=jobs_ms / interruptions if interruptions and math.isfinite(jobs_ms) else None,
        waiting_ms=waiting_ms,
        widest=widest,
        young_ms=young_ms(costs.write_ms, mtbf_ms) if costs.write_ms and mtbf_ms else None,
        daly_ms=daly_ms(costs.write_ms, mtbf_ms) if costs.write_ms and mtbf_ms else None,
    )


def expected_ms(work_ms: int, rate: float, costs: CheckpointCosts, down_ms: float) -> float:
    """Return the mean ms from the first start to the end of a job; infinity if it would hardly ever end.

    rate: losses of a node per ms of running
    down_ms: from each loss until the job can start again
    """
    if costs.checkpoint_ms:
        whole_intervals = max(0, -(-work_ms // costs.checkpoint_ms) - 1)
        rest_ms = work_ms - whole_intervals * costs.checkpoint_ms
        interval_ms = _with_repetitions(costs.checkpoint_ms + costs.write_ms, rate)
        total_ms = whole_intervals * interval_ms + _with_repetitions(rest_ms, rate)
    else:
        total_ms = float(work_ms)
    total_ms = _exp(costs.start_ms * rate) * total_ms + _with_repetitions(costs.start_ms, rate)
    return total_ms * (1 + rate * down_ms)


def young_ms(write_ms: float, mtbf_ms: float) -> float:
    """Return Young's interval between checkpoints."""
    return math.sqrt(2 * write_ms * mtbf_ms)


def daly_ms(write_ms: float, mtbf_ms: float) -> float:
    """Return Daly's interval between checkpoints, of a higher order than Young's."""
    part = write_ms / (2 * mtbf_ms)
    if part >= 1:
        return mtbf_ms
    return young_ms(write_ms, mtbf_ms) * (1 + math.sqrt(part) / 3 + part / 9) - write_ms


def wait_ms(failures: Failures, missed: int) -> float:
    """Return the mean ms that a job waits for a node, from when the loss of its own is known.

    missed: number of nodes that jobs can do without
    """
    ratio = failures.rate * failures.repair_ms
    probability, mean_ms, returns_ms = _binomial(failures.nodes - 1, ratio / (1 + ratio)), 0.0, 0.0
    for down in range(missed + 1, failures.nodes + 1):
        returns_ms += failures.repair_ms / down
        mean_ms += probability(down - 1) * max(0.0, returns_ms - failures.detect_ms)
    return mean_ms


def _binomial(trials: int, chance: float) -> Callable[[int], float]:
    """Return the probability of each number of successes."""

    def probability(successes: int) -> float:
        if not chance:
            return float(successes == 0)
        ways = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
        return math.exp(ways + successes * math.log(chance) + (trials - successes) * math.log1p(-chance))

    return probability


def _with_repetitions(ms: float, rate: float) -> float:
    """Return (exp(rate x ms) - 1) / rate, the mean time to get through `ms`; `ms` itself if nothing fails."""
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
