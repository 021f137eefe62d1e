"""What a server counts of its own work, for whoever scrapes it: how long rounds take, what they decide, who waits why.

`engine.loop` keeps the figures of its rounds; `of` puts those of all parts together, for `rest.routes.server_routes`,
which writes them as Prometheus reads them. Nothing here costs more than an addition while nobody asks."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ganger.core.state.gang import class_text
from ganger.core.state.state import State
from ganger.model.decision import Decision
from ganger.ports import Metric

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UNTOLD: Final = "untold"
"""In place of the reason of those who wait whom no round has looked at yet."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often something took so long: `counts` for each of BOUNDS_S, up to which it took, and one for what took
    longer; total_s: all of it together."""

    counts: tuple[int, ...]
    total_s: float


class CycleMetrics:
    """Told of every round."""

    def __init__(self) -> None:
        """None yet."""
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0
        self._decided: Counter[str] = Counter()

    def took(self, seconds: float, decisions: Iterable[Decision]) -> None:
        """A round is over."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total_s += seconds
        self._decided.update(each.kind for each in decisions)

    def spread(self) -> Histogram:
        """How long rounds took so far."""
        return Histogram(tuple(self._counts), self._total_s)

    def decided(self) -> Metric:
        """How many decisions of each kind there were."""
        return Metric("ganger_decisions", "What rounds decided.", "counter", "kind", dict(self._decided))


def of_state(state: State) -> Iterable[Metric]:
    """What there is to count of a state: gangs, and why those that wait do."""
    states = Counter(str(gang.state) for gang in state.gangs.values() if not gang.is_head)
    waiting: Counter[str] = Counter()
    for key, gangs in state.classes.items():
        reason = state.waits.get(class_text(key))
        waiting[str(reason.why) if reason else UNTOLD] += len(gangs)
    yield Metric("ganger_gangs", "LiveGeneration gangs, by state.", "gauge", "state", dict(states))
    yield Metric("ganger_waiting_gangs", "Gangs that wait, by reason.", "gauge", "reason", dict(waiting))
