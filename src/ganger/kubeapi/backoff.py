"""Exponential backoff with jitter: clients that fail together do not come back together."""

import random
from typing import Final

_MAX_DOUBLINGS: Final = 30
"""More doublings change nothing and would only overflow."""
_random: Final = random.Random()
"""Not the generator of the module `random`: the client also runs in programs whose seed is to give the same numbers."""


def backoff_s(failures: int, first_s: float, max_s: float) -> float:
    """Return the pause after `failures` in a row.

    It is `first_s`, doubled with each failure up to `max_s`, and reduced by up to half at random.
    """
    return jittered(min(max_s, first_s * 2 ** min(max(failures - 1, 0), _MAX_DOUBLINGS)))


def jittered(whole_s: float) -> float:
    """Return a duration between half of `whole_s` and all of it, at random."""
    return whole_s * _random.uniform(0.5, 1.0)
