"""Which labels of nodes say where in the network they are, outermost level first. Pure; called by `nodes`.

A level may be under another label on another node, as in a cluster half of which a newer tool has labelled. Only levels
that some node is in are shown; a node that has none of a level's labels is in no domain of it.
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
"""Those of a cluster whose policy says none: topograph's labels of release 1.0 and of before, Kubernetes' own, and
NVIDIA's GPU feature discovery. A key that ends in `*` stands for as many levels as there are numbers in its place, the
highest outermost; `*` in the name is that number."""


def present(levels: Sequence[Level], keys: Iterable[str]) -> tuple[Level, ...]:
    """Of these levels those that nodes with labels under these keys are in, each with its number."""
    there = set(keys)
    return tuple(level for said in levels for level in _each(said, there) if not there.isdisjoint(level.labels))


def names(levels: Sequence[Level]) -> tuple[str, ...]:
    """What a cluster calls them."""
    return tuple(level.name for level in levels) or RACK


def domains(labels: Labels, levels: Sequence[Level]) -> tuple[str, ...]:
    """In which domain of each level a node with these labels is, parallel to `levels`; empty where it is in none."""
    return tuple(level.domain(labels) for level in levels)


def _each(level: Level, there: set[str]) -> list[Level]:
    patterns = [key for key in level.labels if key.endswith(ANY_NUMBER)]
    if not patterns:
        return [level]
    numbers = {int(key[len(stem) :]) for stem in _stems(patterns) for key in there if _is_numbered(key, stem)}
    return [
        Level(
            name=level.name.replace(ANY_NUMBER, str(number)),
            labels=tuple(key[:-1] + str(number) if key in patterns else key for key in level.labels),
        )
        for number in sorted(numbers, reverse=True)
    ]


def _stems(patterns: Iterable[str]) -> list[str]:
    return [pattern.removesuffix(ANY_NUMBER) for pattern in patterns]


def _is_numbered(key: str, stem: str) -> bool:
    return key.startswith(stem) and re.fullmatch("0|[1-9][0-9]{0,2}", key[len(stem) :]) is not None
