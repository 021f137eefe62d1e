"""Forecast of the starts of all pending gangs: a range for each, what it is based on, and what it depends on.

The first gangs in the policy's order are simulated on the nodes (`core.forecast.queue_simulation`); those far back
follow from the work before them (`core.forecast.later_starts`). Neither knows the jobs that are yet to be submitted,
nor those that end before their limit. So how wrong such forecasts were is learned: now and then a scheduling cycle
records some, and the range of a new one is its wait times the ratios of actual to forecast waits of about that length.

Sources: quantiles of past errors as a range are split conformal prediction (V. Vovk et al., 2005); a forecast of the
whole queue by simulation is that of Slurm's `squeue --start`, which has it for the jobs that backfill considers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ganger.core.forecast.later_starts import NO_STARTS, LaterStarts, later_starts
from ganger.core.forecast.queue_simulation import QueueSimulation
from ganger.core.forecast.start_order import start_order
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.share_bounds import Floats
from ganger.core.reservations.queue_rotation import is_large_cluster
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model.decision import StartForecast
from ganger.model.units import MINUTE_MS

MAX_SIMULATED: Final = 1_000
MAX_SIMULATED_LARGE: Final = 300
"""Gangs that are simulated on the nodes, and on those of a large cluster."""
FRONT: Final = 10
"""The last of so many equal parts of the simulated gangs is where the others follow on."""
MAX_RECORDED: Final = 4
"""Gangs of which a forecast is recorded at a time, from the whole length of the queue.

Few, since all of them are wrong for the same reasons: many errors of one time would pass for many times.
"""
INSIDE: Final = 0.85
"""The part of the seen ratios in a range for 80 % of the starts: what is seen lags behind what is coming."""
FEW: Final = 0.25
"""The part of the actual waits that must be as short, and as long, as forecast for the forecast to stand.

With fewer it is replaced by their median, as where all time limits are far too long; otherwise the median would be the
worse guess, for it follows the past.
"""
NEAREST: Final = 128
"""Errors that a range is made from: those of the forecast waits nearest to it in length."""
UNSEEN_RATIOS: Final = (1 / 4, 1 / 2, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0)
"""Ratios that are assumed beside those seen, so that the range is not narrow while there are few."""
Basis = Literal["limits", "history", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangForecast:
    """The forecast start of one gang.

    Attributes:
        low_ms, high_ms: The range; None if the start is unknown.
        expected_ms: The most likely time.
        basis: Whether the run times that it depends on are limits, or some of them are predicted from history.
        after: The gang that has to end first, None if there is none or it is not known.
        waits_for_quota: Whether a quota keeps it waiting meanwhile.
    """

    low_ms: int | None = None
    expected_ms: int | None = None
    high_ms: int | None = None
    basis: Basis = "unknown"
    after: str | None = None
    waits_for_quota: bool = False


UNKNOWN: Final = GangForecast()


class StartForecasts:
    """The forecast starts of all pending gangs of a state at one time.

    Attributes:
        seq, policy: The newest event, and the queue order: while both are the same, the forecasts are.
    """

    def __init__(self, state: State, policy: Policy, now_ms: int) -> None:
        """Forecast the starts. The state is as before afterwards."""
        self.seq, self.policy, self._now_ms = state.seq, policy.NAME, now_ms
        self._simulation = _simulated(state, policy, now_ms)
        self._later = _later(state, policy, now_ms, self._simulation)
        order = self._simulation.order
        self._position = {gang.id: index for index, gang in reversed([*enumerate(order)])}
        self._ratios = WaitRatios(state.pending.forecast_errors.waits(now_ms))

    def of(self, gang: Gang) -> GangForecast:
        """Return the forecast of a pending gang."""
        simulation, index = self._simulation, self._position.get(gang.id)
        start_ms = self._later.of(gang) if index is None else int(simulation.start_ms[index])
        if gang.awaits or start_ms >= NEVER_MS:
            return UNKNOWN
        low_ms, expected_ms, high_ms = (self._now_ms + ms for ms in self._ratios.range_ms(start_ms - self._now_ms))
        is_predicted = simulation.is_predicted.any() if index is None else simulation.is_predicted[index]
        after = None if index is None else simulation.gang_of(int(simulation.after[index]))
        return GangForecast(
            low_ms=low_ms,
            expected_ms=expected_ms,
            high_ms=high_ms,
            basis="history" if is_predicted else "limits",
            after=None if after is None else after.id,
            waits_for_quota=index is not None and bool(simulation.waits_for_quota[index]),
        )


def forecasts_to_record(
    state: State, now_ms: int, policy: Policy, starting: dict[str, Gang]
) -> tuple[StartForecast, ...]:
    """Return forecasts of some gangs, to be recorded; none of those that start with this very cycle."""
    simulation = _simulated(state, policy, now_ms)
    known = [
        StartForecast(gang=gang.id, start_ms=start_ms)
        for gang, start_ms in zip(simulation.order, simulation.start_ms.tolist(), strict=True)
        if start_ms < NEVER_MS and gang.id not in starting and not gang.is_head
    ]
    return tuple(known[:: max(1, -(-len(known) // MAX_RECORDED))])


class WaitRatios:
    """Actual over forecast waits, by the length of the forecast wait."""

    def __init__(self, waits: Sequence[tuple[int, int]]) -> None:
        """Take (forecast, actual) waits. A minute is added to each, so that those of no wait have a ratio too."""
        minutes: Floats = 1 + np.array(waits, dtype=np.float64).reshape(-1, 2) / MINUTE_MS
        order = np.argsort(minutes[:, 0], kind="stable")
        self._forecast_minutes = minutes[order, 0]
        self._ratios = minutes[order, 1] / minutes[order, 0]

    def range_ms(self, wait_ms: int) -> tuple[int, int, int]:
        """Return the shortest, the most likely and the longest actual wait for a forecast one."""
        minutes = 1 + wait_ms / MINUTE_MS
        first, last = (int(np.searchsorted(self._forecast_minutes, minutes, side)) for side in ("left", "right"))
        begin = max(0, min((first + last - NEAREST) // 2, len(self._ratios) - NEAREST))
        ratios = np.sort(np.append(self._ratios[begin : begin + NEAREST], UNSEEN_RATIOS))
        # The shortest interval, and not equal parts on both sides: starts are often as forecast or later, never before.
        inside, few = math.ceil(len(ratios) * INSIDE), int(len(ratios) * FEW)
        lowest = int(np.argmin(ratios[inside - 1 :] / ratios[: len(ratios) - inside + 1]))
        low, high = ratios[lowest], ratios[lowest + inside - 1]
        is_likely = ratios[few] <= 1 <= ratios[-1 - few]
        chosen = (low, min(max(low, 1.0 if is_likely else ratios[len(ratios) // 2]), high), high)
        low_ms, expected_ms, high_ms = (
            wait_ms if ratio == 1 else max(0, round((minutes * ratio - 1) * MINUTE_MS)) for ratio in chosen
        )
        return low_ms, expected_ms, high_ms


def _simulated(state: State, policy: Policy, now_ms: int) -> QueueSimulation:
    """Return the simulation of the first gangs: of none where running gangs are ordered, which may be preempted."""
    max_gangs = MAX_SIMULATED_LARGE if is_large_cluster(state) else MAX_SIMULATED
    order = [] if policy.ORDERS_RUNNING else start_order(state, policy, now_ms, max_gangs)
    simulation = QueueSimulation(state, policy, now_ms, order)
    simulation.run()
    return simulation


def _later(state: State, policy: Policy, now_ms: int, simulation: QueueSimulation) -> LaterStarts:
    """Return the starts of the gangs after those that were simulated."""
    starts_ms = simulation.start_ms[-(-len(simulation.order) // FRONT) * -1 :]
    starts_ms = starts_ms[starts_ms < NEVER_MS]
    simulated = np.unique([gang.number for gang in simulation.order])
    if not len(starts_ms) or len(simulated) == sum(map(len, state.pending.classes.values())):
        return NO_STARTS
    return later_starts(state, policy, now_ms, simulated, int(np.median(starts_ms)))
