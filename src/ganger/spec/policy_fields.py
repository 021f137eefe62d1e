"""Words that a policy document is written in: orders, names of queues and levels, types of GPUs.

Called by `spec.field_types`. A reader takes what YAML or JSON gave and raises ValueError with a sentence that quotes
it and says what is legal.
"""

import re
from typing import Any, Final

from ganger import registry
from ganger.spec.amounts import read_gpu_type
from ganger.spec.placement_fields import LEVEL_PATTERN
from ganger.spec.spec_document import shown
from ganger.spec.text_fields import did_you_mean, listed, names, read_label_key

QUEUE_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,62}"
_NO_LEVELS: Final = ("node", "cluster")


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


def read_level_name(value: Any) -> str:
    """What a level of the network is to be called."""
    if isinstance(value, str) and re.fullmatch(LEVEL_PATTERN, value) and value not in _NO_LEVELS:
        return value
    raise ValueError(
        f"{shown(value)} cannot be the name of a level: write up to 32 of a-z, 0-9 and '_', a letter first, "
        f"and neither {' nor '.join(_NO_LEVELS)}, which mean something else"
    )


def read_label_keys(value: Any) -> tuple[str, ...]:
    """Keys of labels, at least one."""
    found = names(read_label_key, "keys of labels")(value)
    if not found:
        raise ValueError("an empty list says no node's place: write the key of a label of nodes, as example.com/switch")
    return found


def read_gpu_type_key(value: Any) -> str:
    """A type of GPU, as nodes have it."""
    return read_gpu_type(value).lower()
