"""Levels and domains: which part of the network a node is in, and sums over the nodes of every domain.

Built by `core.nodes.node_table` when nodes are listed; read by `core.placement.topology_packing`,
`core.nodes.capacity_index` and `core.explain.explain`. Nodes are sorted by the path of their domains, so that a domain
of any level is a slice of every array over nodes, and the domains below it are a slice of the next level's.

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
    """levels: L names; paths: for each depth the paths of its D domains; domain: (L, N) int32, the domain of each node
    at each level; first_node: for each depth (D + 1,) int64, domain d has nodes first_node[d] : first_node[d + 1];
    first_child: for each depth (D + 1,) int64, the same of the domains one depth below, and of nodes at depth L;
    inside: for each depth (D,) int64, the domain one depth above that each is in (the cluster is in none)."""

    def __init__(self, nodes: Sequence[Node], levels: Sequence[str]) -> None:
        """`nodes` in topology order."""
        self.levels = tuple(levels)
        depths = range(len(self.levels) + 1)
        paths = [path(node, levels) for node in nodes]
        self.paths = [list(dict.fromkeys(each[:depth] for each in paths)) or [()] * (depth == 0) for depth in depths]
        at = [{each: index for index, each in enumerate(self.paths[depth])} for depth in depths]
        of_nodes = [np.array([at[d][each[:d]] for each in paths], dtype=np.int32) for d in depths]
        self.domain = np.array(of_nodes[1:], dtype=np.int32).reshape(len(self.levels), len(nodes))
        self.inside = [
            np.array([at[max(0, d - 1)][each[: max(0, d - 1)]] for each in self.paths[d]], dtype=np.int64)
            for d in depths
        ]
        self.first_node = [_offsets(of_nodes[d], len(self.paths[d])) for d in depths]
        below: list[Ints] = [*(self.inside[d] for d in depths[1:]), of_nodes[-1]]
        self.first_child = [_offsets(each, len(self.paths[d])) for d, each in zip(depths, below, strict=True)]
        self._named: dict[int, NDArray[np.bool_] | None] = {}

    def depth(self, level: str) -> int:
        """Where a level stands. ValueError if there is none of that name."""
        return self.levels.index(level) + 1

    def sums(self, times: Ints) -> list[Ints]:
        """For each depth the (D,) sums of an (N,) array over the nodes of each domain."""
        found = [times]
        for first in reversed(self.first_child):
            found.append(up(found[-1], first))
        return found[:0:-1]

    def domain_of(self, nodes: Ints) -> Ints:
        """The innermost domain of each of these nodes, given by index."""
        return self.domain[-1][nodes] if self.levels else np.zeros_like(nodes)

    def named(self, depth: int) -> NDArray[np.bool_] | None:
        """(N,) nodes that are in a domain with a name at that depth; None for all of them."""
        if depth not in self._named:
            names = np.array([not each or bool(each[-1]) for each in self.paths[depth]], dtype=bool)
            self._named[depth] = None if names.all() else np.repeat(names, np.diff(self.first_node[depth]))
        return self._named[depth]

    def name(self, depth: int, domain: int) -> str:
        """What people call a domain: `s1/r2`; `cluster` for the whole and for what has no name."""
        return "/".join(filter(None, self.paths[depth][domain])) or "cluster"


def up(values: Ints, first: Ints) -> Ints:
    """(D,) sums of values over slices first[d] : first[d + 1], none of which is empty but that of an empty cluster."""
    if not values.size:
        return np.zeros(len(first) - 1, dtype=np.int64)
    total: Ints = np.add.reduceat(values, first[:-1])
    return total


def by_labels(nodes: Iterable[Node], levels: Sequence[Level]) -> list[Node]:
    """The same nodes, in the domains of these levels that their labels say."""
    return [replace(node, domains=tuple(level.domain(node.labels) for level in levels)) for node in nodes]


def in_order(nodes: Iterable[Node], levels: Sequence[str]) -> list[Node]:
    """Nodes in topology order: by the path of their domains, then by name; n2 before n10."""
    return sorted(nodes, key=lambda node: ([natural(name) for name in path(node, levels)], natural(node.name)))


def path(node: Node, levels: Sequence[str]) -> Path:
    """The names of the node's domains, one a level; what it does not say is no name."""
    return (*node.domains, *("",) * len(levels))[: len(levels)]


def natural(name: str) -> tuple[str, int, str]:
    """n2 before n10: a trailing number is compared as a number."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name


def _offsets(domains: Ints, count: int) -> NDArray[np.int64]:
    """(count + 1,) where each domain begins in a rising array of domains."""
    return np.searchsorted(domains, np.arange(count + 1)).astype(np.int64)
