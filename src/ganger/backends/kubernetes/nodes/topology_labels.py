"""Topology labels of nodes, outermost level first.

A level may have different labels on different nodes, as in a cluster half of which a newer tool has labelled. Only
levels in which some node is are included; a node without a level's labels is in no domain of it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ganger.model.cluster import RACK
from ganger.model.policy import Level

ANY_NUMBER: Final = "*"

Labels = Mapping[str, str]


LEVELS: Final = (
    Level(name="region", labels=("topology.kubernetes.io/region",)),
    Level(name="zone", labels=("topology.kubernetes.io/zone",)),
    Level(name="tier*", labels=("fabric.topograph.run/tier-*",)),
    Level(name="core", labels=("network.topology.nvidia.com/core", "network.topology.nvidia.com/datacenter")),
    Level(name="spine", labels=("network.topology.nvidia.com/spine",)),
    Level(name="leaf", labels=("network.topology.nvidia.com/leaf", "network.topology.nvidia.com/block")),
    Level(name="rack", labels=("rack", "topology.kubernetes.io/rack")),
    Level(name="nvlink", labels=("accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator")),
    Level(name="clique", labels=("accelerator.topograph.run/sub-domain", "nvidia.com/gpu.clique")),
)
"""Default levels: labels of topograph 1.0 and before, of Kubernetes, and of NVIDIA's GPU feature discovery.

A key that ends in `*` stands for as many levels as there are numbers in its place, the highest outermost; `*` in the
name is that number.
"""


def present(levels: Sequence[Level], keys: Iterable[str]) -> tuple[Level, ...]:
    """Return the levels that nodes with these label keys are in, numbered levels expanded."""
    key_set = set(keys)
    expanded = (numbered for level in levels for numbered in _expand(level, key_set))
    return tuple(level for level in expanded if not key_set.isdisjoint(level.labels))


def names(levels: Sequence[Level]) -> tuple[str, ...]:
    """Return the names of the levels."""
    return tuple(level.name for level in levels) or RACK


def domains(labels: Labels, levels: Sequence[Level]) -> tuple[str, ...]:
    """Return a node's domain in each of `levels`; empty where it is in none."""
    return tuple(level.domain(labels) for level in levels)


def _expand(level: Level, keys: set[str]) -> list[Level]:
    patterns = [key for key in level.labels if key.endswith(ANY_NUMBER)]
    if not patterns:
        return [level]
    stems = [pattern.removesuffix(ANY_NUMBER) for pattern in patterns]
    numbers = {int(key[len(stem) :]) for stem in stems for key in keys if _is_numbered(key, stem)}
    return [
        Level(
            name=level.name.replace(ANY_NUMBER, str(number)),
            labels=tuple(key[:-1] + str(number) if key in patterns else key for key in level.labels),
        )
        for number in sorted(numbers, reverse=True)
    ]


def _is_numbered(key: str, stem: str) -> bool:
    return key.startswith(stem) and re.fullmatch("0|[1-9][0-9]{0,2}", key[len(stem) :]) is not None
