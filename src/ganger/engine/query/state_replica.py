"""Second copies of the state that follow the first by its events: one to read, one to try things on.

To copy a state with 100,000 jobs takes seconds; to follow costs what happened since the last question.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.model.event import Stamped

FAR: Final = 20_000
"""Events that a replica may be behind; beyond that it is copied anew."""


class StateReplica:
    """A replica for readers: nothing is changed in it. Safe from any thread, for one reader at a time.

    No reader waits until the cycle under way is planned. The replica is not followed before the first reader comes, nor
    once none has come for long.
    """

    def __init__(self, copied: Callable[[], State]) -> None:
        """`copied` returns a copy of the first state, between two cycles; `follow` is not called meanwhile."""
        self._copied = copied
        self._alone = threading.Lock()
        self._state: State | None = None
        self._new: deque[Stamped] = deque()
        self._is_followed = False

    def follow(self, rows: Iterable[Stamped]) -> None:
        """Take in what happened. Called by the one thread that writes; it waits for no reader."""
        if self._is_followed:
            self._new.extend(rows)
            self._is_followed = len(self._new) <= FAR

    @contextmanager
    def state(self) -> Iterator[State]:
        """Hold the state after all that `follow` took in. Inside it nothing changes and no other reader is let in; what
        is kept beyond it is a copy."""
        with self._alone:
            yield self._caught_up()

    def begin(self) -> None:
        """Follow from now on; what happened before is in the copy."""
        self._new.clear()
        self._is_followed = True

    def _caught_up(self) -> State:
        state, self._state = self._state, None  # if this fails, the next reader gets a new one
        while state is not None and self._new:
            fold(state, self._new.popleft())
        if state is None or not self._is_followed:
            state = self._copied()
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
    """A replica to try things on: why a job waits, what would start it, what a submission would come to.

    Safe from any thread: one question at a time, and the loop waits for none. It follows the log.
    """

    def __init__(self, live: LiveState, log: EventLog) -> None:
        """Copy nothing before the first question."""
        self._live, self._log = live, log
        self._alone = threading.Lock()
        self._state: State | None = None

    @contextmanager
    def state(self) -> Iterator[tuple[State, int]]:
        """Hold the state after the newest whole cycle, and the time. Things may be tried in it and undone; no event may
        be folded into it."""
        with self._alone:
            # If the question fails, the next one gets a new state.
            state, self._state = self._caught_up(), None
            yield state, max(self._live.now_ms(), state.at_ms)
            self._state = state

    def _caught_up(self) -> State:
        state, newest = self._state, self._live.wait(-1, 0)
        if state is None or newest - state.seq > FAR or state.seq + 1 < self._log.earliest():
            return self._live.copy()
        for row in self._log.each(state.seq, newest):
            fold(state, row)
        return state
