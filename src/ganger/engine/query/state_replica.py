"""The state for those who only read: a second one, which follows the first by what happens.

Owned by `engine.loop`. To look costs what has happened since somebody looked last, and nobody waits for the round under
way to be planned. Nothing is followed before the first look, nor once nobody has looked for long.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.model.event import Stamped

FAR: Final = 20_000
"""Events behind from which on a copy is made anew."""


class Reading:
    """Safe from any thread. One reader at a time."""

    def __init__(self, copied: Callable[[], State]) -> None:
        """`copied`: a copy of the first, between two rounds. While it is made `follow` is not called."""
        self._copied = copied
        self._alone = threading.Lock()
        self._state: State | None = None
        self._new: deque[Stamped] = deque()
        self._is_followed = False

    def follow(self, rows: Iterable[Stamped]) -> None:
        """These have happened. Called by the one thread that writes; it waits for no reader."""
        if self._is_followed:
            self._new.extend(rows)
            self._is_followed = len(self._new) <= FAR

    @contextmanager
    def state(self) -> Iterator[State]:
        """The state after all that `follow` was told of. Inside it nothing changes and nobody else reads; what is kept
        beyond it is a copy."""
        with self._alone:
            yield self._caught_up()

    def begin(self) -> None:
        """From now on it is followed; what was told before is in the copy."""
        self._new.clear()
        self._is_followed = True

    def _caught_up(self) -> State:
        state, self._state = self._state, None  # whatever goes wrong meanwhile: the next reader has a new one
        while state is not None and self._new:
            fold(state, self._new.popleft())
        if state is None or not self._is_followed:
            state = self._copied()
        self._state = state
        return state
