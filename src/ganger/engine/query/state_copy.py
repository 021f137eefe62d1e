"""A state of one's own to try things on: why a job waits, what would start it, what a submission would come to.

Owned by `engine.service`. It follows the log, so that a question costs what has happened since the one before, and not
what waits: to copy a state with 100,000 jobs takes seconds. One question at a time; the loop waits for none.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop

FAR: Final = 20_000
"""Events behind the log from which on a copy is made anew."""


class Study:
    """Safe from any thread."""

    def __init__(self, loop: Loop, log: EventLog) -> None:
        """Nothing is copied before the first question."""
        self._loop, self._log = loop, log
        self._alone = threading.Lock()
        self._state: State | None = None

    @contextmanager
    def state(self) -> Iterator[tuple[State, int]]:
        """The state after the newest whole round, and the time. Things may be tried in it and undone; nothing may be
        applied to it."""
        with self._alone:
            # Whatever goes wrong meanwhile: the next question has a new one.
            state, self._state = self._caught_up(), None
            yield state, max(self._loop.now_ms(), state.at_ms)
            self._state = state

    def _caught_up(self) -> State:
        state, newest = self._state, self._loop.wait(-1, 0)
        if state is None or newest - state.seq > FAR or state.seq + 1 < self._log.earliest():
            return self._loop.copy()
        for row in self._log.each(state.seq, newest):
            fold(state, row)
        return state
