"""What a spec says of where a job runs: types of GPUs, levels, taints, networks. Called by `spec.field_types`.

A reader takes what YAML or JSON gave and raises ValueError with a sentence that quotes it and says what is legal.
"""

import re
from typing import Any, Final

from ganger.model.terms import BALANCED, EXCLUSIVE, PACK, PREFERRED, REQUIRED, SHARED, SPREAD, WHOLE
from ganger.spec.amounts import GPU_TYPE_PATTERN, MAX_GPU_INDEX, read_gpu_type
from ganger.spec.spec_document import shown
from ganger.spec.text_fields import LABEL_KEY_PATTERN, LABEL_PATTERN, did_you_mean, listed

MODES: Final = (PREFERRED, REQUIRED)
STRATEGIES: Final = (PACK, SPREAD, BALANCED)
SHARING: Final = (SHARED, EXCLUSIVE, WHOLE)
NETWORKS: Final = ("ib", "roce", "tcp")
LEVEL_PATTERN: Final = r"[a-z][a-z0-9_]{0,31}"
NODE_NAME_PATTERN: Final = r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?"
TAINT_PATTERN: Final = rf"\*|{LABEL_KEY_PATTERN}(=({LABEL_PATTERN})?)?"
GPU_TYPES_PATTERN: Final = rf"{GPU_TYPE_PATTERN}(,{GPU_TYPE_PATTERN})*"


def read_level(value: Any) -> str:
    """The name of a level; whether there is such a level is known at submission."""
    if isinstance(value, str) and re.fullmatch(LEVEL_PATTERN, value):
        return value
    raise ValueError(
        f"{shown(value)} is not a level of the network: write one that is a heading of `ganger node`, for instance rack"
    )


def read_gpu_types(value: Any) -> tuple[str, tuple[str, ...]]:
    """The first type, and those after it."""
    if not isinstance(value, list):
        return read_gpu_type(value), ()
    types = [read_gpu_type(each) for each in value]
    if not types:
        raise ValueError("an empty list of GPU types: write H100, or [H100, A100]")
    lower = [each.lower() for each in types]
    if again := next((each for index, each in enumerate(lower) if each in lower[:index]), None):
        raise ValueError(f"{shown(again)} is given twice: remove one")
    return types[0], tuple(types[1:])


def write_gpu_types(value: tuple[str, tuple[str, ...]]) -> str | list[str]:
    """A type, or a list."""
    first, others = value
    return [first, *others] if others else first


def read_networks(value: Any) -> tuple[str, ...]:
    """One network, or several, the first that has room."""
    found = value if isinstance(value, list) else [value]
    for each in found:
        if not isinstance(each, str) or each not in NETWORKS:
            meant = did_you_mean(each, NETWORKS) if isinstance(each, str) else ""
            raise ValueError(f"{shown(each)} is not a network: write {listed(NETWORKS)}, or a list of them{meant}")
    if len(found) != len(dict.fromkeys(found)):
        raise ValueError(f"{shown(value)}: a network is given twice: remove one")
    return tuple(found)


def write_networks(value: tuple[str, ...]) -> str | list[str]:
    """A network, or a list."""
    return value[0] if len(value) == 1 else list(value)


def read_node_name(value: Any) -> str:
    """The name of a node; whether there is such a node is known at submission."""
    if isinstance(value, str) and re.fullmatch(NODE_NAME_PATTERN, value):
        return value
    raise ValueError(f"{shown(value)} is not a name of a node: write one that `ganger node` shows, for instance n1")


def read_devices(value: Any) -> tuple[int, ...]:
    """Indices of GPUs on a node, rising."""
    found = value if isinstance(value, list) else [value]
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= MAX_GPU_INDEX:
            what = f"is not a GPU of a node: write its index, from 0 to {MAX_GPU_INDEX}, or a list of them"
            raise ValueError(f"{shown(each)} {what}")
    if len(found) != len(dict.fromkeys(found)):
        raise ValueError(f"{shown(value)}: a GPU is given twice: remove one")
    return tuple(sorted(found))


def read_taint(value: Any) -> str:
    """What a job tolerates: a taint, all of a key, or all."""
    if isinstance(value, str) and re.fullmatch(TAINT_PATTERN, value):
        return value
    raise ValueError(f"{shown(value)} is not a taint: write KEY, KEY=VALUE, or '*' for every one")
