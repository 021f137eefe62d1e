"""Forecast starts of waiting jobs against actual ones: elasticflow clusters, recorded durations as limits or unknown.

At regular times the forecast of every waiting job is asked for, while jobs arrive that it does not know. `covered` is
the part of the jobs that started in the range, which is to hold 80 % of them: not fewer than LEAST, and without limits
not more than MOST (`covered_too_many`, the same value); with limits many starts are exact, and in any range. `error`
is the median distance of the expected start, over the median wait from then on. `history`: no job has a limit, so that
run times are predicted.
`GANGER_BENCH_CLUSTERS` names others, as `01:8 02:13`: cluster and number of nodes of 8 GPUs.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

from bench.measure import Figure
from bench.waits.queueing import Queueing, recorded
from ganger.core.forecast.start_forecast import GangForecast, StartForecasts
from ganger.model.policy import Rules
from ganger.model.units import HOUR_MS
from ganger.policies import dynamic

CLUSTERS: Final = os.environ.get("GANGER_BENCH_CLUSTERS", "04:72 03:20 05:2")
JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "1000000"))
"""Maximum number of jobs; the default means all."""
EVERY_MS: Final = 12 * HOUR_MS
LEAST, MOST = 0.75, 0.9


class Asked(NamedTuple):
    """One forecast of one job."""

    name: str
    at_ms: int
    forecast: GangForecast


class Result(NamedTuple):
    """The outcome of the forecasts of one cluster."""

    trace: str
    has_limits: bool
    jobs: int
    unknown: int
    exact: float
    covered: float
    error: float


def run() -> list[Figure]:
    # The longest first, so that both processes end at about the same time.
    runs = [(cluster, has_limits) for cluster in CLUSTERS.split() for has_limits in (False, True)]
    with ProcessPoolExecutor(2) as processes:
        results = list(processes.map(_run, *zip(*runs, strict=True)))
    return [figure for result in results for figure in _figures(result)]


def _run(cluster: str, has_limits: bool) -> Result:
    trace, nodes = cluster.split(":")
    queueing, asked = Queueing(dynamic, int(nodes)), list[Asked]()
    queueing.begin(Rules())
    jobs = [job if has_limits else replace(job, limit_ms=None) for job in recorded(trace, JOBS)]
    at_ms = jobs[0].at_ms
    for job in jobs:
        for ask_ms in range(at_ms, job.at_ms, EVERY_MS):
            queueing.run_until(ask_ms)
            asked += _ask(queueing, ask_ms)
            at_ms = ask_ms + EVERY_MS
        queueing.run_until(job.at_ms)
        queueing.submit(job)
        queueing.cycle()
    queueing.run_until(1 << 60)
    return _compare(trace, has_limits, asked, queueing.started_ms)


def _ask(queueing: Queueing, at_ms: int) -> list[Asked]:
    forecasts = StartForecasts(queueing.state, dynamic, at_ms)
    gangs = [gang for members in queueing.state.pending.classes.values() for gang in members]
    return [Asked(gang.id, at_ms, forecasts.of(gang)) for gang in gangs]


def _compare(trace: str, has_limits: bool, asked: list[Asked], started_ms: dict[str, int]) -> Result:
    known = [row for row in asked if row.forecast.expected_ms is not None]
    covered = [(row.forecast.low_ms or 0) <= started_ms[row.name] <= (row.forecast.high_ms or 0) for row in known]
    errors = [abs(started_ms[row.name] - (row.forecast.expected_ms or 0)) for row in known]
    waits = [started_ms[row.name] - row.at_ms for row in known]
    return Result(
        trace=trace,
        has_limits=has_limits,
        jobs=len(known),
        unknown=len(asked) - len(known),
        exact=sum(error == 0 for error in errors) / len(known),
        covered=sum(covered) / len(known),
        error=median(errors) / median(waits),
    )


def _figures(result: Result) -> list[Figure]:
    name = f"start_forecast.{result.trace}_{'limits' if result.has_limits else 'history'}"
    print(f"{name}: {result.jobs} forecasts, {result.unknown} unknown, {result.exact:.0%} exact")
    return [
        _figure(f"{name}.covered", "", result.covered, ">=", LEAST),
        *([] if result.has_limits else [_figure(f"{name}.covered_too_many", "", result.covered, "<=", MOST)]),
        _figure(f"{name}.error", "of the wait", result.error, "<", 1 / 3),
    ]


def _figure(name: str, unit: str, value: float, op: str, bar: float) -> Figure:
    return Figure(name=name, unit=unit, samples=(value,), value=value, op=op, bar=bar)
