"""The full explanation of one of 100,000 pending gangs, with verified changes; and the reason of every job class.

10,000 nodes x 8 GPUs, all of them allocated. 100 gangs are drawn from all pending ones; CPU time of the core alone,
with existing objects frozen, as a started server freezes them. `explain_forecast` is the time with the forecast start
of all pending gangs, and `explain_cached` that with the forecast made before. `explain_classes` is the number of
classes.
"""

import gc
import os
import time

from bench.measure import Figure, median
from bench.scheduler.fleet import Fleet
from ganger.core.explain.explain import all_reasons, explain, with_forecast
from ganger.core.forecast.start_forecast import StartForecasts
from ganger.policies import dynamic

NODES = int(os.environ.get("GANGER_BENCH_NODES", "10000"))
ASKED = 100
BAR_S, BAR_ALL_S = 0.02, 1.0
BAR_FORECAST_S, BAR_CACHED_S = 0.3, 0.03


def run() -> list[Figure]:
    fleet = Fleet(dynamic, nodes=NODES, gangs=10 * NODES)
    fleet.fill()
    fleet.decide(fleet.cycle())
    fleet.now_ms += 1_000
    fleet.cycle()
    waiting = [gang.id for members in fleet.state.pending.classes.values() for gang in members]
    gc.collect()
    gc.freeze()
    names = fleet.chance.sample(waiting, ASKED)
    forecasts = StartForecasts(fleet.state, fleet.policy, fleet.now_ms)
    figures = [
        _p99("explain_p99", [_explained_s(fleet, name, None) for name in names], BAR_S),
        _p99("explain_cached", [_explained_s(fleet, name, forecasts) for name in names], BAR_CACHED_S),
        median("explain_forecast", "s", [_forecast_s(fleet, name) for name in names[:5]], under=BAR_FORECAST_S),
        *_every(fleet),
    ]
    gc.unfreeze()
    return figures


def _p99(name: str, samples: list[float], bar_s: float) -> Figure:
    value = sorted(samples)[ASKED * 99 // 100 - 1]
    return Figure(name=name, unit="s", samples=tuple(samples), value=value, op="<", bar=bar_s)


def _explained_s(fleet: Fleet, name: str, forecasts: StartForecasts | None) -> float:
    before = time.process_time()
    explanation = explain(fleet.state, name, fleet.now_ms, fleet.policy)
    if forecasts is not None:
        explanation = with_forecast(explanation, fleet.state, fleet.policy, forecasts)
    taken_s = time.process_time() - before
    if explanation.reason is None or explanation.position is None:
        raise AssertionError(f"{name} is pending without a reason or a position: {explanation}")
    if forecasts is not None and (explanation.forecast is None or explanation.forecast.expected_ms is None):
        raise AssertionError(f"the start of {name} is unknown though all jobs have limits: {explanation}")
    return taken_s


def _forecast_s(fleet: Fleet, name: str) -> float:
    """Return the time of an explanation together with the forecast of all starts."""
    before = time.process_time()
    forecasts = StartForecasts(fleet.state, fleet.policy, fleet.now_ms)
    return time.process_time() - before + _explained_s(fleet, name, forecasts)


def _every(fleet: Fleet) -> list[Figure]:
    samples, class_count = [], 0
    for _ in range(5):
        before = time.process_time()
        reasons = all_reasons(fleet.state, fleet.now_ms, fleet.policy)
        samples.append(time.process_time() - before)
        class_count = len(reasons)
    return [median("explain_every", "s", samples, under=BAR_ALL_S), median("explain_classes", "classes", [class_count])]
