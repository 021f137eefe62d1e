"""An event loop that skips waiting: an hour of retries and bookmarks passes in a second.

For tests and benches whose server and client both run on it. Production code asks the loop for the time, and so follows
it.
"""

import asyncio
import selectors
from typing import Any

RESOLUTION_S = 1e-9
"""Tolerance of a loop's timers.

Where no time passes by itself, code that then reads the clock and waits for the rest would do so for ever.
"""


class _Skipping(selectors.DefaultSelector):
    """A selector that advances the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            self.skipped_s += timeout + RESOLUTION_S
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time.

    Both ends of a connection must run on it: a slow peer elsewhere never seems to answer.
    """

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s

    def stall(self, for_s: float) -> None:
        """Let time pass while nothing on the loop runs."""
        self._skipping.skipped_s += for_s
