"""Simple reference of `core.cycle.candidates`: every pending gang by itself, in order of its exact key."""

from ganger.core.cycle.attempt import Blocked, Preempts, Reserved, Started
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.cycle.viability import Viability
from ganger.core.state.pending_index import LaneEntry


class SimpleCandidates:
    """The candidates of one cycle in policy order; all are tested and compared for each of them."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle, self._viability = cycle, Viability(cycle)
        lanes = cycle.state.pending.lanes(cycle.policy).by_key.values()
        self._entries = [entry for lane in lanes for entry in lane.entries]
        self._first: LaneEntry | None = None

    def next(self) -> LaneEntry | None:
        while True:
            for kind in {id(entry.demand): entry.demand for entry in self._entries}.values():
                self._viability.close_if_full(kind)
            candidates = filter(self._viability.is_candidate, self._entries)
            self._first = min(candidates, key=lambda e: self._cycle.precedence.order_key(e.gang), default=None)
            if self._first is not None or not self._cycle.limits.rotate():
                return self._first
            self._viability.urgency.forget_all()

    def mark_started(self, outcome: Started) -> None:
        assert self._first is not None
        self._viability.record_start(self._first, outcome)

    def mark_refused(self, entry: LaneEntry, outcome: Preempts | Reserved | Blocked) -> None:
        self._viability.record_refusal(entry, outcome)
