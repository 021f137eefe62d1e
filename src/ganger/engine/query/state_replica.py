"""State replicas, which follow the loop's state by its events: one to read, one to try changes on.

To copy a state with 100,000 jobs takes seconds; to follow costs what happened since the last question.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from ganger.core.fold.fold import fold
from ganger.core.forecast.start_forecast import StartForecasts
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.job_arrays import ArrayJob
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.model.event import Stamped

MAX_LAG: Final = 20_000
"""Events that a replica may be behind; beyond that it is copied again."""


class StateReplica:
    """A replica for readers: nothing is changed in it. Safe from any thread, for one reader at a time.

    No reader waits until the cycle under way is planned. The replica is not followed before the first reader comes, nor
    once none has come for long.
    """

    def __init__(self, copy_first: Callable[[], State]) -> None:
        """Begin without a copy.

        copy_first: returns a copy of the first state, between two cycles; `follow` is not called meanwhile.
        """
        self._copy = copy_first
        self._lock = threading.Lock()
        self._state: State | None = None
        self._new: deque[Stamped] = deque()
        self._is_followed = False

    def follow(self, rows: Iterable[Stamped]) -> None:
        """Add rows of the log. Called by the one thread that writes; it waits for no reader."""
        if self._is_followed:
            self._new.extend(rows)
            self._is_followed = len(self._new) <= MAX_LAG

    @contextmanager
    def state(self) -> Iterator[State]:
        """Hold the state after all rows that were followed, for one reader at a time.

        Nothing changes inside it; what is kept beyond it is a copy.
        """
        with self._lock:
            yield self._catch_up()

    def begin(self) -> None:
        """Follow from now on; what happened before is in the copy."""
        self._new.clear()
        self._is_followed = True

    def _catch_up(self) -> State:
        state, self._state = self._state, None  # if this fails, the next reader gets a new one
        while state is not None and self._new:
            fold(state, self._new.popleft())
        if state is None or not self._is_followed:
            state = self._copy()
        self._state = state
        return state


class LiveState(Protocol):
    """The first state and its clock, which the loop has."""

    def now_ms(self) -> int:
        """Return the time of the first state."""

    def wait(self, after_seq: int, timeout_s: float) -> int:
        """Return the newest seq, as soon as it is beyond `after_seq`, or after `timeout_s`."""

    def copy(self) -> State:
        """Return a copy of the first state."""


class TrialReplica:
    """A replica to try changes on: why a job is pending, what would start it, what a submission would do.

    Safe from any thread: one question at a time, and the loop waits for none. It follows the log.
    """

    def __init__(self, live: LiveState, log: EventLog) -> None:
        """Copy nothing before the first question."""
        self._live, self._log = live, log
        self._lock = threading.Lock()
        self._state: State | None = None
        self._forecasts: StartForecasts | None = None

    @contextmanager
    def state(self) -> Iterator[tuple[State, int]]:
        """Hold the state after the newest whole cycle, and the time.

        Changes may be tried in it and undone; no event may be folded into it.
        """
        with self._lock:
            # If the question fails, the next one gets a new state.
            state, self._state = self._catch_up(), None
            yield state, max(self._live.now_ms(), state.at_ms)
            self._state = state

    def start_forecasts(self, state: State, now_ms: int, policy: Policy) -> StartForecasts:
        """Return the forecast starts of all pending jobs of the state that is held, made once until it changes."""
        forecasts = self._forecasts
        if forecasts is None or (forecasts.seq, forecasts.policy) != (state.seq, policy.NAME):
            forecasts = self._forecasts = StartForecasts(state, policy, now_ms)
        return forecasts

    def _catch_up(self) -> State:
        state, newest = self._state, self._live.wait(-1, 0)
        if state is None or newest - state.seq > MAX_LAG or state.seq + 1 < self._log.first_replayable():
            return self._live.copy()
        for row in self._log.iter_rows(state.seq, newest):
            fold(state, row)
        return state


def copy_of(state: State) -> State:
    """Return a state that can be changed independently: nothing that changes is shared."""
    gangs = {name: _copy_gang(gang) for name, gang in state.gangs.items()}
    return state.copy(gangs, map(_copy_array, state.arrays.values()))


def _copy_array(array: ArrayJob) -> ArrayJob:
    return replace(array, rest=list(array.rest), counts=dict(array.counts))


def _copy_gang(gang: Gang) -> Gang:
    return replace(gang, account=copy.copy(gang.account), attempt=copy.copy(gang.attempt))
