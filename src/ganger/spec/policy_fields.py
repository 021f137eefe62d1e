"""Parsers of policy fields: queue orders, names of queues and levels, types of GPUs.

A parser takes a value of YAML or JSON and raises ValueError with a sentence that quotes it and names valid values.
"""

import re
from collections.abc import Collection
from typing import Any, Final

from ganger import registry
from ganger.spec.amounts import read_gpu_type
from ganger.spec.placement_fields import LEVEL_PATTERN
from ganger.spec.spec_document import quote
from ganger.spec.text_fields import did_you_mean, join_words, names, read_label_key

QUEUE_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,62}"
NAME_GLOB_PATTERN: Final = r"[A-Za-z0-9*_]([-A-Za-z0-9._/:*]{0,251}[A-Za-z0-9*_])?"
_NO_LEVELS: Final = ("node", "cluster")


def read_order(value: Any) -> str:
    """Parse the name of an existing queue order."""
    return _installed(value, "a queue order", registry.policies())


def read_score(value: Any) -> str:
    """Parse the name of an existing placement score."""
    return _installed(value, "a placement score", registry.scores())


def _installed(value: Any, what: str, legal: Collection[str]) -> str:
    if isinstance(value, str) and value in legal:
        return value
    meant = did_you_mean(value, legal) if isinstance(value, str) else ""
    raise ValueError(f"{quote(value)} is not {what}: write {join_words(sorted(legal))}{meant}")


def read_queue_name(value: Any) -> str:
    """Parse the name of a queue; whether the queue exists is checked when all are parsed."""
    if isinstance(value, str) and re.fullmatch(QUEUE_PATTERN, value):
        return value
    raise ValueError(
        f"{quote(value)} is not the name of a queue: write up to 63 of a-z, 0-9 and '-', a letter or digit first"
    )


def read_level_name(value: Any) -> str:
    """Parse the name of a new topology level."""
    if isinstance(value, str) and re.fullmatch(LEVEL_PATTERN, value) and value not in _NO_LEVELS:
        return value
    raise ValueError(
        f"{quote(value)} cannot be the name of a level: write up to 32 of a-z, 0-9 and '_', a letter first, "
        f"and neither {' nor '.join(_NO_LEVELS)}, which mean something else"
    )


def read_label_keys(value: Any) -> tuple[str, ...]:
    """Parse label keys, at least one."""
    keys = names(read_label_key, "keys of labels")(value)
    if not keys:
        raise ValueError("an empty list of label keys: write the key of a node label, for instance example.com/switch")
    return keys


def read_name_glob(value: str) -> str:
    """Parse a pattern of names."""
    if re.fullmatch(NAME_GLOB_PATTERN, value):
        return value
    raise ValueError(f"{quote(value)} is not a pattern of names: write a name, with * for any text in it")


def read_gpu_type_key(value: Any) -> str:
    """Parse a GPU type into the form that nodes have."""
    return read_gpu_type(value).lower()
