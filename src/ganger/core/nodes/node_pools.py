"""Pools of nodes, in the order in which they are filled: reserved, spot, on-demand, CPU-only, as the policy lists them.

Owned by `core.nodes.node_table`, asked by `core.placement.place`. A gang is in one pool, the first that holds all of
it; only where none does it is in as few of the first ones as hold it together. What asks for no GPU is in a pool of
nodes without any before it is elsewhere. A node is in the first pool whose labels it has; those in none are filled
last. Given back are nodes in the reverse order."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ganger.model.cluster import Node
from ganger.model.policy import CPU, Pool
from ganger.model.shape import Shape

Usable = NDArray[np.bool_] | None
"""(N,) nodes that may be used; None: all of them."""


class NodePools:
    """of: (N,) int64, the pool of each node; one more than there are pools for nodes that are in none."""

    def __init__(self, nodes: Sequence[Node], pools: Sequence[Pool]) -> None:
        """`nodes` in topology order."""
        self.pools = tuple(pools)
        self.of = np.array([self._of(node) for node in nodes], dtype=np.int64)
        self._turns: dict[bool, list[Usable]] = {}

    def name(self, node: int) -> str:
        """The pool of a node, by index; empty for none."""
        at = int(self.of[node])
        return self.pools[at].name if at < len(self.pools) else ""

    def in_turn(self, shape: Shape) -> Sequence[Usable]:
        """Nodes to try one after the other: those of each pool, then of more and more pools, then all."""
        if not self.pools:
            return (None,)
        has_gpus = any(part.has_gpus for part in shape.parts)
        if has_gpus not in self._turns:
            self._turns[has_gpus] = list(self._in_turn(has_gpus=has_gpus))
        return self._turns[has_gpus]

    def _in_turn(self, *, has_gpus: bool) -> Iterator[Usable]:
        order = list(range(len(self.pools) + 1))
        if not has_gpus:
            order.sort(key=lambda at: at == len(self.pools) or self.pools[at].kind != CPU)
        order = [at for at in order if (self.of == at).any()]
        yield from (self.of == at for at in order)
        yield from (np.isin(self.of, order[:many]) for many in range(2, len(order)))
        yield None

    def _of(self, node: Node) -> int:
        fits = (at for at, pool in enumerate(self.pools) if pool.nodes.items() <= node.labels.items())
        return next(fits, len(self.pools))
