"""Differences between policies: what is beyond the spread over seeds, and the sentence that says so."""

from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model.units import MINUTE_MS
from ganger.model.views.policy_differences import (
    NO_DIFFERENCE,
    Estimate,
    best,
    compared_figures,
    differences,
    estimate,
    estimates,
    headline,
    wait_figure,
)

WAITS = st.lists(st.integers(0, 10_000), min_size=2, max_size=6)


def answer(**waits_ms: list[float]) -> dict[str, Any]:
    """Return the answer of a comparison: the mean wait of each run, by policy; a policy with one run draws nothing."""
    runs = [
        {
            "policy": policy,
            "name": policy,
            "seed": seed if len(of_policy) > 1 else None,
            "scorecard": {"queueing_ms": {"mean": wait_ms}},
        }
        for policy, of_policy in waits_ms.items()
        for seed, wait_ms in enumerate(of_policy)
    ]
    return {"runs": runs, "spread": []}


def test_the_interval_is_students() -> None:
    """Four values: 3.182 standard errors, as every table of t has for three degrees of freedom."""
    found = estimate([8, 10, 10, 12])
    assert (found.mean, found.runs) == (10, 4)
    assert found.half_width == pytest.approx(3.182 * (8 / 3) ** 0.5 / 2)
    assert estimate([7]) == Estimate(7, 0, 1)


@pytest.mark.parametrize(
    ("waits_ms", "policies", "is_beyond_spread"),
    [
        ({"a": [10], "b": [9]}, ("b",), True),
        ({"a": [9], "b": [9]}, (), True),
        ({"a": [100, 101, 102], "b": [50, 51, 52]}, ("b",), True),
        ({"a": [100, 101, 102], "b": [99, 101, 103]}, ("a", "b"), True),
        ({"a": [100, 101, 102], "b": [99, 100, 102.5]}, ("b",), False),
        ({"a": [100, 101, 102], "b": [50, 51, 52], "c": [50, 51, 53]}, ("b",), False),
        ({"a": [100, 101, 102], "b": [98]}, ("b",), True),
        ({"a": [100, 101, 102], "b": [99]}, ("b",), False),
    ],
)
def test_the_best_is_marked_only_where_intervals_are_apart(
    waits_ms: dict[str, list[float]], policies: tuple[str, ...], is_beyond_spread: bool
) -> None:
    compared = answer(**waits_ms)
    found = best(estimates(compared, wait_figure(compared)), wait_figure(compared))
    if policies == ("a", "b"):
        policies = ()  # equal means: none is better
    assert (found.policies, found.is_beyond_spread) == (policies, is_beyond_spread)


@given(WAITS, WAITS)
def test_a_difference_beyond_the_spread_excludes_zero_and_is_the_difference_of_the_means(
    first: list[int], second: list[int]
) -> None:
    compared = answer(a=[value + 1 for value in first], b=list(second))
    (found,) = differences(compared, wait_figure(compared), "a")
    base = fmean(first) + 1
    assert found.share.mean == pytest.approx((fmean(second) - base) / base)
    if found.is_beyond_spread:
        assert found.share.low > 0 or found.share.high < 0
        assert found.is_better == (fmean(second) < base)


@pytest.mark.parametrize(
    ("waits_ms", "title", "basis"),
    [
        ({"a": [60], "b": [30]}, "Jobs wait least under b: 30m 00s on average, 50 % less than a",
         "one run of each policy: nothing is drawn, so there is no interval"),
        ({"a": [30], "b": [60], "c": [40]}, "Jobs wait least under a: 30m 00s on average, 25 % less than c", ""),
        ({"a": [60, 62], "b": [59, 64]}, f"Mean wait: {NO_DIFFERENCE} between a and b",
         "It is from 1h 01m to 1h 01m, and the 95 % intervals overlap (2 seeds of each policy)"),
        ({"a": [60, 61, 62], "b": [30, 31, 32]},
         "Jobs wait least under b: 31m 00s on average, 49 % less than a (95 % interval 49 to 49 %)",
         "3 seeds of each policy"),
        ({"a": [60, 61, 62], "b": [30]}, "Jobs wait least under b: 30m 00s on average, 51 % less than a (95 % int",
         "3 seeds of each policy that draws"),
        ({"a": [60, 61, 62], "b": [30, 31, 32], "c": [31, 30, 32]},
         f"Jobs wait least under b and c, with {NO_DIFFERENCE}; under b 31m 00s", "3 seeds"),
        ({"a": [0], "b": [0]}, "No job waits under a and b", ""),
        ({"a": [5], "b": [5], "c": [5]}, "Jobs wait equally long under a, b and c", ""),
        ({"a": [5, 7]}, "a: jobs wait 6m 00s on average", "95 % interval 0ms to 18m 42s, 2 seeds of each policy"),
    ],
)  # fmt: skip
def test_the_headline_says_what_differs_and_by_how_much(
    waits_ms: dict[str, list[float]], title: str, basis: str
) -> None:
    compared = answer(**{name: [MINUTE_MS * value for value in of] for name, of in waits_ms.items()})
    found = headline(compared)
    assert found[0].startswith(title)
    assert found[1].startswith(basis)


def test_waits_are_compared_over_the_jobs_that_ended_in_all_runs() -> None:
    compared = answer(a=[60], b=[30])
    for run, wait_ms in zip(compared["runs"], (5, 10), strict=True):
        run["common"] = {"queueing_ms": {"mean": wait_ms, "p95": 1}, "jct_ms": {"mean": 1}}
    assert headline(compared)[0].startswith("Jobs wait least under a: 0ms on average, 50 % less than b")
    assert [figure.path for figure in compared_figures(compared)[:3]] == [
        "common.queueing_ms.mean",
        "common.queueing_ms.p95",
        "common.jct_ms.mean",
    ]
