"""Waiting for a condition, with a deadline: the only way in which anything waits here."""

import time
from collections.abc import Callable

DEADLINE_S = 180.0
PAUSE_S = 0.05


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until it holds. TimeoutError: it does not; `what` is what was waited for."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {what}")
        time.sleep(PAUSE_S)
