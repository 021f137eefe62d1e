"""Static attributes of nodes, and which nodes a gang may have or prefers because of them.

Nodes have few distinct values of a label and few distinct sets of taints, so each distinct value is tested once and the
result expanded to all nodes that have it.

Pools of nodes are filled in an order: reserved, spot, on-demand, CPU-only, as the policy lists them. A gang goes into
one pool, the first that holds all of it; only where none does, into as few of the first pools as hold it together. A
gang without GPUs prefers pools of nodes without any. A node belongs to the first pool whose labels it has; nodes in no
pool are filled last.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.model.affinity import Expression, Operator, Preference, Term
from ganger.model.cluster import Node
from ganger.model.policy import CPU, Pool
from ganger.model.shape import Shape
from ganger.model.terms import SHARED, Selector

Mask = NDArray[np.bool_]
Trait = Callable[[Node], Hashable]

Usable = Mask | None
"""(N,) nodes that may be used; None: all of them."""

MOST_SELECTORS: Final = 4_096
"""The number of cached selectors beyond which all are dropped, so that unused ones do not accumulate."""
SUSPICION_PENALTY: Final = 1_000_000
"""Penalty of a unit of suspicion, more than any lack of performance."""


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


class NodeAttributes:
    """Masks and sums over N nodes in topology order, computed when first needed.

    names, gpu_types: lists, the types in lower case.
    pools: the pool of each node by the policy's rules.
    penalty: (N,) int64, what speaks against a node if all else is equal.
    suspects_first: (N,) int64, the same for gangs that are to take suspect nodes before others.
    has_penalties: whether any node has a penalty.
    """

    def __init__(self, nodes: Sequence[Node], pools: Sequence[Pool]) -> None:
        """Start without cached masks."""
        self._nodes = nodes
        self.names = [node.name for node in nodes]
        self.gpu_types = [node.gpu_type.lower() for node in nodes]
        self.pools = NodePools(nodes, pools)
        self.penalty = _penalties(nodes)
        self.suspects_first = self.penalty.copy()
        self.has_penalties = bool(self.penalty.any())
        self._penalties: dict[int, tuple[int, int]] = {}
        whole_gpus = np.array([not node.partial_gpus for node in nodes], dtype=bool)
        self._whole_gpus = None if whole_gpus.all() else whole_gpus
        self._without_image: dict[str, Ints | None] = {"": None}
        self._of_type: dict[tuple[str | None, ...], Mask] = {}
        self._of_resources: dict[tuple[str, ...], Mask] = {}
        self._label_traits: dict[str, Trait] = {}
        self._distinct: dict[Trait, tuple[list[Node], Ints]] = {}
        self._eligible: dict[Selector, Mask] = {}
        self._points: dict[tuple[Preference, ...], Ints] = {}

    def of_type(self, *gpu_types: str | None) -> Mask:
        """Return (N,) nodes with one of these GPU types; all nodes if one of them is None."""
        if gpu_types not in self._of_type:
            self._of_type[gpu_types] = np.array(
                [None in gpu_types or node_type in gpu_types for node_type in self.gpu_types], dtype=bool
            )
        return self._of_type[gpu_types]

    def accepts(self, part: Shape) -> Mask:
        """Return (N,) nodes with GPUs that a part accepts: by type and resource; without a type, whole devices."""
        mask = self.of_type(*part.gpu_types)
        if part.gpu_resources:
            mask = mask & self._of_resource(part.gpu_resources)
        return mask & self._whole_gpus if self._whole_gpus is not None and _is_any_gpu(part) else mask

    def _of_resource(self, gpu_resources: tuple[str, ...]) -> Mask:
        """Return (N,) nodes with GPUs of one of these resources."""
        if gpu_resources not in self._of_resources:
            self._of_resources[gpu_resources] = self._by_trait(
                _gpu_resource, lambda node: node.gpu_resource in gpu_resources
            )
        return self._of_resources[gpu_resources]

    def without_image(self, image: str) -> Ints | None:
        """Return (N,) 1 for nodes without a container image, else 0; None where all or none have it."""
        if image not in self._without_image:
            missing = np.array([image not in node.images for node in self._nodes], dtype=np.int64)
            self._without_image[image] = missing if 0 < int(missing.sum()) < len(missing) else None
        return self._without_image[image]

    def forget_images(self) -> None:
        """Drop what is known of images: a node has others now."""
        self._without_image = {"": None}

    def penalize(self, node: int, suspicion: int, slowness_milli: int) -> None:
        """Set what speaks against the node at an index besides what it was listed with."""
        suspicion_before, slowness_before_milli = self._penalties.pop(node, (0, 0))
        suspect = SUSPICION_PENALTY * (suspicion - suspicion_before)
        slow = slowness_milli - slowness_before_milli
        self.penalty[node] += slow + suspect
        self.suspects_first[node] += slow - suspect
        if suspicion or slowness_milli:
            self._penalties[node] = suspicion, slowness_milli
        self.has_penalties = bool(self.penalty.any())

    def eligible(self, selector: Selector) -> Mask:
        """Return (N,) nodes that a gang may have by name, labels, taints and networks."""
        mask = self._eligible.get(selector)
        if mask is None:
            if len(self._eligible) >= MOST_SELECTORS:
                self._eligible.clear()
            static = replace(selector, sharing=SHARED, devices=(), preferred=())
            if static not in self._eligible:
                self._eligible[static] = self._compute(static)
            mask = self._eligible[selector] = self._eligible[static]
        return mask

    def points(self, selector: Selector) -> Ints | None:
        """Return (N,) int32 the summed weights of the matching preferences, or None without preferences."""
        preferred = selector.preferred
        if not preferred:
            return None
        if preferred not in self._points:
            if len(self._points) >= MOST_SELECTORS:
                self._points.clear()
            weights = [preference.weight * self.matches(preference.match) for preference in preferred]
            self._points[preferred] = np.add.reduce(weights).astype(np.int32)
        return self._points[preferred]

    def matches(self, term: Term) -> Mask:
        """Return (N,) nodes whose labels match the term."""
        mask: Mask = np.logical_and.reduce([self._has(expression) for expression in term.expressions])
        return mask

    def untolerated(self, selector: Selector) -> list[tuple[str, ...]]:
        """Return the sets of taints that alone keep the selector from nodes, the smallest first."""
        examples, expand = self._examples(_taints)
        if not any(node.taints for node in examples):
            return []
        otherwise_eligible = self.eligible(replace(selector, tolerations=("*",)))
        taints = (examples[index].taints for index in np.unique(expand[otherwise_eligible]).tolist())
        sets = {tuple(sorted(taint for taint in some if not selector.tolerates(taint))) for some in taints} - {()}
        return sorted(sets, key=lambda some: (len(some), some))

    def _compute(self, selector: Selector) -> Mask:
        masks = [self._has(Expression(key, Operator.IN, (value,))) for key, value in selector.labels]
        masks.append(self._by_trait(_taints, lambda node: all(map(selector.tolerates, node.taints))))
        if selector.required:
            masks.append(np.logical_or.reduce([self.matches(term) for term in selector.required]))
        if selector.networks:
            masks.append(
                self._by_trait(_networks, lambda node: any(network in node.networks for network in selector.networks))
            )
        if selector.nodes:
            masks.append(np.array([node.name in selector.nodes for node in self._nodes], dtype=bool))
        mask: Mask = np.logical_and.reduce(masks)
        return mask

    def _has(self, expression: Expression) -> Mask:
        key = expression.key
        if key not in self._label_traits:
            self._label_traits[key] = lambda node: node.labels.get(key)
        return self._by_trait(self._label_traits[key], lambda node: expression.holds(node.labels))

    def _by_trait(self, trait: Trait, test: Callable[[Node], bool]) -> Mask:
        """Return (N,) the result of a test that depends on one trait alone, evaluated once for each distinct value."""
        examples, expand = self._examples(trait)
        mask: Mask = np.array([test(node) for node in examples], dtype=bool)[expand]
        return mask

    def _examples(self, trait: Trait) -> tuple[list[Node], Ints]:
        """Return a node for each distinct value of a trait, and (N,) the index of the value of each node."""
        if trait not in self._distinct:
            values = [trait(node) for node in self._nodes]
            examples = dict(zip(values, self._nodes, strict=True))
            positions = {value: index for index, value in enumerate(examples)}
            self._distinct[trait] = (
                list(examples.values()),
                np.array([positions[value] for value in values], dtype=np.int32),
            )
        return self._distinct[trait]


def _taints(node: Node) -> Hashable:
    return node.taints


def _networks(node: Node) -> Hashable:
    return node.networks


def _gpu_resource(node: Node) -> Hashable:
    return node.gpu_resource


def _penalties(nodes: Sequence[Node]) -> NDArray[np.int64]:
    """Return (N,) penalties: higher for nodes under more suspicion, then for slower nodes."""
    suspicion = np.array([node.suspicion for node in nodes], dtype=np.int64)
    performance = np.array([node.performance_milli for node in nodes], dtype=np.int64)
    has_penalties: NDArray[np.int64] = suspicion * SUSPICION_PENALTY + (performance.max(initial=0) - performance)
    return has_penalties


def _is_any_gpu(part: Shape) -> bool:
    """Return whether a part needs GPUs and names no type."""
    return part.has_gpus and None in part.gpu_types
