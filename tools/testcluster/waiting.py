"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable

DEADLINE_S = 180.0
PAUSE_S = 0.05


def until(condition: Callable[[], bool], description: str, state: Callable[[], str] = str) -> None:
    """Wait until a condition holds. Raises TimeoutError, which contains the description and the state at the end."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {description}{state()}")
        time.sleep(PAUSE_S)
