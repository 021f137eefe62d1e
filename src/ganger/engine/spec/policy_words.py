"""Words that a policy document is written in: orders, names of queues, types of GPUs. Called by `engine.spec.forms`.

A reader takes what YAML or JSON gave and raises ValueError with a sentence that quotes it and says what is legal.
"""

import re
from typing import Any, Final

from ganger.engine import registry
from ganger.engine.spec.amounts import read_gpu_type
from ganger.engine.spec.document import shown
from ganger.engine.spec.words import did_you_mean, listed

QUEUE_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,62}"


def read_order(value: Any) -> str:
    """The name of a queue order that there is."""
    legal = registry.policies()
    if isinstance(value, str) and value in legal:
        return value
    meant = did_you_mean(value, legal) if isinstance(value, str) else ""
    raise ValueError(f"{shown(value)} is not a queue order: write {listed(sorted(legal))}{meant}")


def read_queue_name(value: Any) -> str:
    """The name of a queue; whether there is one is known when all are read."""
    if isinstance(value, str) and re.fullmatch(QUEUE_PATTERN, value):
        return value
    raise ValueError(
        f"{shown(value)} is not the name of a queue: write up to 63 of a-z, 0-9 and '-', a letter or digit first"
    )


def read_gpu_type_key(value: Any) -> str:
    """A type of GPU, as nodes have it."""
    return read_gpu_type(value).lower()
