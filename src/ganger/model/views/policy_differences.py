"""Differences of compared policies beyond the spread over seeds: intervals, differences, the best, and a headline.

The interval of a policy with several seeds is the one that has its mean with 95 % confidence, by Student's t. Policies
differ where their intervals are apart. Runs with the same seed had the same draws, so a difference is taken seed by
seed, and its interval is that of these differences; it excludes 0 wherever the two intervals are apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from ganger.model.units import format_duration
from ganger.model.views.simulation_figures import ALLOCATED, GOODPUT, MAKESPAN, Figure, JsonObject, statistic_of

NO_DIFFERENCE: Final = "no difference beyond the spread"
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom; it is within 4 % of the normal one from there."""
_NORMAL: Final = 1.960


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of a figure over runs, and its 95 % interval; `runs`: of a single one there is no interval."""

    mean: float
    half_width: float = 0.0
    runs: int = 1

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    def is_apart_from(self, other: "Estimate") -> bool:
        """Return whether the intervals have nothing in common; without intervals, whether the values differ."""
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure of a policy less that of another, as a share of the other's.

    share: with its interval over the seeds; -0.25: a quarter less
    is_beyond_spread: the intervals of the two policies are apart
    is_better: the difference is in the direction of better values
    """

    policy: str
    share: Estimate
    is_beyond_spread: bool
    is_better: bool


@dataclass(frozen=True, slots=True)
class Best:
    """The policies with the best value of a figure; `is_beyond_spread`: their intervals are apart from all others."""

    policies: tuple[str, ...] = ()
    is_beyond_spread: bool = True


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values and its interval."""
    n = len(values)
    if n < 2:
        return Estimate(values[0])
    quantile = _T[n - 2] if n - 2 < len(_T) else _NORMAL
    return Estimate(fmean(values), quantile * stdev(values) / math.sqrt(n), n)


def runs_by_policy(answer: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the runs of each policy, in the order in which they were asked for."""
    runs: dict[str, list[JsonObject]] = {}
    for run in answer["runs"]:
        runs.setdefault(run["policy"], []).append(run)
    return runs


def has_spread(answer: JsonObject) -> bool:
    """Return whether a policy has several runs."""
    return any(len(runs) > 1 for runs in runs_by_policy(answer).values())


def mean_runs(answer: JsonObject) -> dict[str, JsonObject]:
    """Return the run of each policy; of one with several, their mean, in the shape of a run."""
    means = {spread["policy"]: spread["mean"] for spread in answer["spread"]}
    return {policy: means.get(policy, runs[0]) for policy, runs in runs_by_policy(answer).items()}


def estimates(answer: JsonObject, figure: Figure) -> dict[str, Estimate]:
    """Return the figure of each policy that has it."""
    values = {
        policy: [value for run in runs if (value := figure.of(run)) is not None]
        for policy, runs in runs_by_policy(answer).items()
    }
    return {policy: estimate(of_policy) for policy, of_policy in values.items() if of_policy}


def best(by_policy: Mapping[str, Estimate], figure: Figure) -> Best:
    """Return which policies are best; none if no value is better than another, or all are equal."""
    means = {policy: value.mean for policy, value in by_policy.items()}
    if figure.best is None or len(set(means.values())) < 2:
        return Best()
    best_mean = figure.best(means.values())
    leaders = tuple(policy for policy, mean in means.items() if mean == best_mean)
    others = [value for policy, value in by_policy.items() if policy not in leaders]
    return Best(leaders, all(by_policy[leader].is_apart_from(other) for leader in leaders for other in others))


def differences(answer: JsonObject, figure: Figure, reference: str) -> list[Difference]:
    """Return the difference of each other policy to the reference; none where the reference is 0 or unknown."""
    runs, by_policy = runs_by_policy(answer), estimates(answer, figure)
    base = by_policy.get(reference)
    if base is None or not base.mean:
        return []
    found = []
    for policy, value in by_policy.items():
        if policy != reference:
            change = _change(runs[policy], runs[reference], figure)
            share = Estimate(change.mean / base.mean, abs(change.half_width / base.mean), change.runs)
            is_better = figure.best is not None and figure.best((value.mean, base.mean)) == value.mean
            found.append(
                Difference(
                    policy=policy,
                    share=share,
                    is_beyond_spread=value.is_apart_from(base),
                    is_better=is_better and value.mean != base.mean,
                )
            )
    return found


def _change(runs: Sequence[JsonObject], reference: Sequence[JsonObject], figure: Figure) -> Estimate:
    """Return the change seed by seed; where seeds are not the same, with the sum of both intervals."""
    by_seed, base_by_seed = (
        {run["seed"]: value for run in of_policy if (value := figure.of(run)) is not None}
        for of_policy in (runs, reference)
    )
    if by_seed.keys() == base_by_seed.keys():
        return estimate([value - base_by_seed[seed] for seed, value in by_seed.items()])
    own, base = estimate(list(by_seed.values())), estimate(list(base_by_seed.values()))
    return Estimate(own.mean - base.mean, own.half_width + base.half_width, max(own.runs, base.runs))


# -- the headline ------------------------------------------------------------------------------------------------------


def wait_figure(answer: JsonObject, statistic: str = "mean") -> Figure:
    """Return the waiting time by which runs are compared: of the jobs that ended in all of them."""
    return statistic_of("queueing_ms", statistic, is_common=any(run.get("common") for run in answer["runs"]))


def compared_figures(answer: JsonObject) -> tuple[Figure, ...]:
    """Return the figures whose differences are shown."""
    is_common = any(run.get("common") for run in answer["runs"])
    waits = (wait_figure(answer), wait_figure(answer, "p95"), statistic_of("jct_ms", "mean", is_common=is_common))
    goodput = (GOODPUT,) if any(GOODPUT.of(run) not in (None, 1) for run in answer["runs"]) else ()
    return (*waits, MAKESPAN, ALLOCATED, *goodput)


def headline(answer: JsonObject) -> tuple[str, str]:
    """Return what differs between the policies and by how much, and what that is based on, as two sentences."""
    figure = wait_figure(answer)
    by_policy = estimates(answer, figure)
    if not by_policy:
        return "No job ended", "so there is nothing to compare"
    basis = _basis(by_policy)
    if len(by_policy) == 1:
        ((policy, wait),) = by_policy.items()
        return f"{policy}: jobs wait {_time(wait.mean)} on average", _with_interval(basis, wait)
    if not any(wait.mean for wait in by_policy.values()):
        return f"No job waits under {_listed(list(by_policy))}", basis
    if len({(wait.mean, wait.half_width) for wait in by_policy.values()}) == 1:
        return f"Jobs wait equally long under {_listed(list(by_policy))}", basis
    least = min(by_policy.values(), key=lambda wait: wait.mean)
    alike = [policy for policy, wait in by_policy.items() if not wait.is_apart_from(least)]
    if len(alike) == len(by_policy):
        means = [wait.mean for wait in by_policy.values()]
        span = f"It is from {_time(min(means))} to {_time(max(means))}, and the 95 % intervals overlap"
        return f"Mean wait: {NO_DIFFERENCE} between {_listed(alike)}", f"{span} ({basis})"
    return _title(answer, figure, by_policy, alike), basis


def _title(answer: JsonObject, figure: Figure, by_policy: Mapping[str, Estimate], alike: Sequence[str]) -> str:
    """Return the sentence for policies of which some wait less than others."""
    first = next(iter(by_policy))
    # The user names first what is in use; where that is among the best, the next best is what it is compared with.
    others = [policy for policy in by_policy if policy not in alike]
    reference = first if first in others else min(others, key=lambda policy: by_policy[policy].mean)
    leader = min(alike, key=lambda policy: by_policy[policy].mean)
    (difference,) = [of for of in differences(answer, figure, reference) if of.policy == leader]
    share = difference.share
    interval = f" (95 % interval {_percent(-share.high)} to {_percent(-share.low)} %)" if share.runs > 1 else ""
    wait = f"{_time(by_policy[leader].mean)} on average, {_percent(-share.mean)} % less than {reference}{interval}"
    if len(alike) == 1:
        return f"Jobs wait least under {leader}: {wait}"
    return f"Jobs wait least under {_listed(alike)}, with {NO_DIFFERENCE}; under {leader} {wait}"


def _basis(by_policy: Mapping[str, Estimate]) -> str:
    runs = [estimate.runs for estimate in by_policy.values()]
    if max(runs) < 2:
        return "one run of each policy: nothing is drawn, so there is no interval"
    return f"{max(runs)} seeds of each policy{'' if min(runs) > 1 else ' that draws'}"


def _with_interval(basis: str, wait: Estimate) -> str:
    return basis if wait.runs < 2 else f"95 % interval {_time(max(0, wait.low))} to {_time(wait.high)}, {basis}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f}" if abs(percent) >= 10 else f"{percent:.1f}"


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)


def _listed(names: Sequence[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last
