"""Pools of nodes in the order in which they are filled: reserved, spot, on-demand, CPU-only, as the policy lists them.

A gang goes into one pool, the first that holds all of it; only where none does, into as few of the first pools as hold
it together. A gang without GPUs prefers pools of nodes without any. A node belongs to the first pool whose labels it
has; nodes in no pool are filled last.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ganger.model.cluster import Node
from ganger.model.policy import CPU, Pool
from ganger.model.shape import Shape

Usable = NDArray[np.bool_] | None
"""(N,) nodes that may be used; None: all of them."""


class NodePools:
    """The pool of each node. pool_of: (N,) int64, its index; the number of pools for nodes in none."""

    def __init__(self, nodes: Sequence[Node], pools: Sequence[Pool]) -> None:
        """Assign `nodes`, in topology order, to pools."""
        self.pools = tuple(pools)
        self.pool_of = np.array([self._pool_index(node) for node in nodes], dtype=np.int64)
        self._cache: dict[bool, list[Usable]] = {}

    def name(self, node: int) -> str:
        """Return the name of the pool of the node at an index, or an empty string."""
        pool = int(self.pool_of[node])
        return self.pools[pool].name if pool < len(self.pools) else ""

    def candidates(self, shape: Shape) -> Sequence[Usable]:
        """Return the node sets to try one after the other: each pool, then growing unions of pools, then all."""
        if not self.pools:
            return (None,)
        has_gpus = any(part.has_gpus for part in shape.parts)
        if has_gpus not in self._cache:
            self._cache[has_gpus] = list(self._candidates(has_gpus=has_gpus))
        return self._cache[has_gpus]

    def _candidates(self, *, has_gpus: bool) -> Iterator[Usable]:
        order = list(range(len(self.pools) + 1))
        if not has_gpus:
            order.sort(key=lambda pool: pool == len(self.pools) or self.pools[pool].kind != CPU)
        order = [pool for pool in order if (self.pool_of == pool).any()]
        yield from (self.pool_of == pool for pool in order)
        yield from (np.isin(self.pool_of, order[:count]) for count in range(2, len(order)))
        yield None

    def _pool_index(self, node: Node) -> int:
        matching = (index for index, pool in enumerate(self.pools) if pool.nodes.items() <= node.labels.items())
        return next(matching, len(self.pools))
