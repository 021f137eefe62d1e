"""An event loop that skips waiting: an hour of retries and bookmarks passes in a second.

For tests and benches whose server and client both run on it. Production code asks the loop for the time, and so follows
it.
"""

import asyncio
import selectors
import time
from typing import Any

RESOLUTION_S = 1e-9
"""Tolerance of a loop's timers.

Where no time passes by itself, code that then reads the clock and waits for the rest would do so for ever.
"""


class _Skipping(selectors.DefaultSelector):
    """A selector that advances the time instead of waiting, but for the time that a thread takes.

    Attributes:
        in_threads: calls in executors that have not returned. While there are any, time passes as it does for them:
            a skipped wait would end every time limit on the loop before the thread has done its first line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0
        self.in_threads = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.in_threads and timeout:
            began_s = time.monotonic()
            ready = super().select(timeout)
            self.skipped_s += time.monotonic() - began_s + RESOLUTION_S
            return ready
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

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":
        self._skipping.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        # On the loop, not in the thread: until the result is here nothing on the loop can have acted on it.
        future.add_done_callback(self._leave_thread)
        return future

    def _leave_thread(self, _: "asyncio.Future[Any]") -> None:
        self._skipping.in_threads -= 1

    def stall(self, for_s: float) -> None:
        """Let time pass while nothing on the loop runs."""
        self._skipping.skipped_s += for_s
