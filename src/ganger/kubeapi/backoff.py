"""How long to leave something alone that has failed: longer each time, and never all of us at once.

Used wherever the Kubernetes world tries again: `transport`, `follow`, `work`.
"""

import random
from typing import Final

_DOUBLINGS: Final = 30
"""More of them change nothing, and would only make large numbers."""


def pause_s(failures: int, first_s: float, most_s: float) -> float:
    """After so many failures in a row: `first_s`, doubled with each, at most `most_s`; of that, by chance, half or
    more."""
    whole_s: float = min(most_s, first_s * 2 ** min(max(failures - 1, 0), _DOUBLINGS))
    return whole_s * random.uniform(0.5, 1.0)
