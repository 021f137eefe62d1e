"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable

DEADLINE_S = 180.0
PAUSE_S = 0.05


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds. Raises TimeoutError, which names `what` was waited for."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {what}")
        time.sleep(PAUSE_S)
