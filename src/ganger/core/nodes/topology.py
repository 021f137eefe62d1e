"""Levels and domains: the part of the network that a node is in, and sums over the nodes of every domain.

Idea: nodes are sorted by the path of their domains, so that a domain of any level is a slice of every array over nodes,
    and its child domains are a slice of the next level's arrays. Sums over all domains of all levels are then one
    `reduceat` per level.

Depth 0 is the cluster, a single domain; depths 1 to L are the levels, outermost first; depth L + 1 are the nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ganger.model.cluster import Node
from ganger.model.policy import Level

Ints = NDArray[np.integer[Any]]
Path = tuple[str, ...]


class Topology:
    """The domains of N nodes at L levels.

    levels: their names.
    paths: for each depth, the paths of its D domains.
    domain: (L, N) int32, the domain of each node at each level.
    first_node: for each depth (D + 1,) int64; domain d has the nodes first_node[d] : first_node[d + 1].
    first_child: for each depth (D + 1,) int64, the same for the domains one depth below, and for nodes at depth L.
    parent: for each depth (D,) int64, the domain one depth above (the cluster has none).
    """

    def __init__(self, nodes: Sequence[Node], levels: Sequence[str]) -> None:
        """Derive the domains of `nodes`, which are in topology order."""
        self.levels = tuple(levels)
        depths = range(len(self.levels) + 1)
        paths = [path(node, levels) for node in nodes]
        self.paths = [
            list(dict.fromkeys(node_path[:depth] for node_path in paths)) or [()] * (depth == 0) for depth in depths
        ]
        index_of = [{node_path: index for index, node_path in enumerate(self.paths[depth])} for depth in depths]
        domain_of_node = [np.array([index_of[d][node_path[:d]] for node_path in paths], dtype=np.int32) for d in depths]
        self.domain = np.array(domain_of_node[1:], dtype=np.int32).reshape(len(self.levels), len(nodes))
        self.parent = [
            np.array(
                [index_of[max(0, d - 1)][node_path[: max(0, d - 1)]] for node_path in self.paths[d]], dtype=np.int64
            )
            for d in depths
        ]
        self.first_node = [_offsets(domain_of_node[d], len(self.paths[d])) for d in depths]
        children: list[Ints] = [*(self.parent[d] for d in depths[1:]), domain_of_node[-1]]
        self.first_child = [
            _offsets(node_path, len(self.paths[d])) for d, node_path in zip(depths, children, strict=True)
        ]
        self._named_masks: dict[int, NDArray[np.bool_] | None] = {}

    def depth(self, level: str) -> int:
        """Return the depth of a level; raise ValueError for an unknown name."""
        return self.levels.index(level) + 1

    def sums(self, values: Ints) -> list[Ints]:
        """Return for each depth the (D,) sums of an (N,) array over the nodes of each domain."""
        sums = [values]
        for first in reversed(self.first_child):
            sums.append(slice_sums(sums[-1], first))
        return sums[:0:-1]

    def domain_of(self, nodes: Ints) -> Ints:
        """Return the innermost domain of the node at each index."""
        return self.domain[-1][nodes] if self.levels else np.zeros_like(nodes)

    def named(self, depth: int) -> NDArray[np.bool_] | None:
        """Return (N,) nodes that are in a domain with a name at that depth, or None for all of them."""
        if depth not in self._named_masks:
            has_name = np.array([not path or bool(path[-1]) for path in self.paths[depth]], dtype=bool)
            self._named_masks[depth] = None if has_name.all() else np.repeat(has_name, np.diff(self.first_node[depth]))
        return self._named_masks[depth]

    def name(self, depth: int, domain: int) -> str:
        """Return the display name of a domain: `s1/r2`, or `cluster` for the whole and for what has no name."""
        return "/".join(filter(None, self.paths[depth][domain])) or "cluster"


def slice_sums(values: Ints, first: Ints) -> Ints:
    """Return (D,) sums over the slices first[d] : first[d + 1], none of which is empty but that of an empty cluster."""
    if not values.size:
        return np.zeros(len(first) - 1, dtype=np.int64)
    total: Ints = np.add.reduceat(values, first[:-1])
    return total


def assign_domains(nodes: Iterable[Node], levels: Sequence[Level]) -> list[Node]:
    """Return the nodes with the domains of these levels that their labels name."""
    return [replace(node, domains=tuple(level.domain(node.labels) for level in levels)) for node in nodes]


def sort_by_topology(nodes: Iterable[Node], levels: Sequence[str]) -> list[Node]:
    """Return the nodes in topology order: by the path of their domains, then by name; n2 before n10."""
    return sorted(nodes, key=lambda node: ([natural_key(name) for name in path(node, levels)], natural_key(node.name)))


def path(node: Node, levels: Sequence[str]) -> Path:
    """Return the names of the node's domains, one for each level, empty where it has none."""
    return (*node.domains, *("",) * len(levels))[: len(levels)]


def natural_key(name: str) -> tuple[str, int, str]:
    """Return a sort key that compares a trailing number as a number: n2 before n10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name


def _offsets(domains: Ints, count: int) -> NDArray[np.int64]:
    """Return (count + 1,) where each domain begins in a rising array of domains."""
    return np.searchsorted(domains, np.arange(count + 1)).astype(np.int64)
