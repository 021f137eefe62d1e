"""An event loop on which waiting takes no time: an hour of retries and bookmarks passes in a second.

For tests and benches whose server and client are both on it. Production code asks the loop for the time, and so is on
it too.
"""

import asyncio
import selectors
from typing import Any

RESOLUTION_S = 1e-9
"""By how much a loop's timers may be early. Where no time passes by itself, who then looks at the clock, and waits for
the rest, would do so for ever."""


class _Skipping(selectors.DefaultSelector):
    """Instead of waiting, it passes the time."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            self.skipped_s += timeout + RESOLUTION_S
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """Both ends of a connection must be on it: whatever is slow elsewhere seems never to come."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s
