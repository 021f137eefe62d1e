"""Waiting for what other threads, processes or tasks do. Deadlines are upper bounds: no test asserts a time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 60.0
"""Less than the time-out of a test, so that the test says what did not happen."""
SELDOM_S = 0.5
"""The longest pause between two looks on a loop, so that what holds for a second only is seen."""
LOOP_DEADLINE_S = 3_600.0
"""For a loop that skips waits: retries and back-offs of an hour pass in a second."""


def wait_until(condition: Callable[[], Any], description: str, within_s: float = DEADLINE_S) -> Any:
    """Return the first true result of a condition; fail with its description if there is none in time."""
    give_up_at_s = time.monotonic() + within_s
    while not (result := condition()):
        assert time.monotonic() < give_up_at_s, f"never: {description}"
        time.sleep(0.01)
    return result


async def until(
    condition: Callable[[], Any],
    within_s: float = LOOP_DEADLINE_S,
    *,
    pause_s: float = 0.02,
    seldom_s: float = SELDOM_S,
    state: Callable[[], Any] = lambda: "it never came to be",
) -> None:
    """Wait on an event loop, in its time; fail with what `state` returns if a condition does not hold in time.

    The longer it has waited, the more rarely it looks, but every `seldom_s`: on a loop that skips waits an hour would
    be 180,000 looks otherwise.
    """
    loop = asyncio.get_running_loop()
    began_s, give_up_really_at_s = loop.time(), time.monotonic() + DEADLINE_S
    while not condition():
        waited_s = loop.time() - began_s
        assert waited_s < within_s, state()
        assert time.monotonic() < give_up_really_at_s, state()
        await asyncio.sleep(max(pause_s, min(waited_s / 50, seldom_s)))
