"""What nodes are, and no round changes: labels, taints, networks; so which of them a gang may have, and would rather.

Owned by `core.nodes.node_table`. Nodes have few different values of a label, and few sets of taints: each is looked at
once, and all nodes that are alike in it at a time."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.topology import Ints
from ganger.model.affinity import Expression, Operator, Preference, Term
from ganger.model.cluster import Node
from ganger.model.terms import SHARED, Selector

Mask = NDArray[np.bool_]
Trait = Callable[[Node], Hashable]

MOST_SELECTORS: Final = 4_096
"""Beyond that many those that nobody asks about any more are let go."""


class NodeAttributes:
    """Masks and sums over N nodes, in topology order, each made when it is first asked for."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Nothing has been asked yet."""
        self._nodes = nodes
        self._label: dict[str, Trait] = {}
        self._alike: dict[Trait, tuple[list[Node], Ints]] = {}
        self._meant: dict[Selector, Mask] = {}
        self._points: dict[tuple[Preference, ...], Ints] = {}

    def meant(self, selector: Selector) -> Mask:
        """(N,) nodes that a gang may have by name, labels, taints and networks."""
        known = self._meant.get(selector)
        if known is None:
            if len(self._meant) >= MOST_SELECTORS:
                self._meant.clear()
            static = replace(selector, sharing=SHARED, devices=(), preferred=())
            if static not in self._meant:
                self._meant[static] = self._means(static)
            known = self._meant[selector] = self._meant[static]
        return known

    def points(self, selector: Selector) -> Ints | None:
        """(N,) int32, the weights of what a gang prefers that each node is; None for one that prefers nothing."""
        preferred = selector.preferred
        if not preferred:
            return None
        if preferred not in self._points:
            if len(self._points) >= MOST_SELECTORS:
                self._points.clear()
            every = [each.weight * self.holds(each.match) for each in preferred]
            self._points[preferred] = np.add.reduce(every).astype(np.int32)
        return self._points[preferred]

    def holds(self, term: Term) -> Mask:
        """(N,) nodes whose labels are as the term says."""
        mask: Mask = np.logical_and.reduce([self._has(expression) for expression in term.expressions])
        return mask

    def _means(self, selector: Selector) -> Mask:
        masks = [self._has(Expression(key, Operator.IN, (value,))) for key, value in selector.labels]
        masks.append(self._each(_taints, lambda node: all(map(selector.tolerates, node.taints))))
        if selector.required:
            masks.append(np.logical_or.reduce([self.holds(term) for term in selector.required]))
        if selector.networks:
            masks.append(self._each(_networks, lambda node: any(on in node.networks for on in selector.networks)))
        if selector.nodes:
            masks.append(np.array([node.name in selector.nodes for node in self._nodes], dtype=bool))
        mask: Mask = np.logical_and.reduce(masks)
        return mask

    def _has(self, expression: Expression) -> Mask:
        key = expression.key
        if key not in self._label:
            self._label[key] = lambda node: node.labels.get(key)
        return self._each(self._label[key], lambda node: expression.holds(node.labels))

    def _each(self, trait: Trait, test: Callable[[Node], bool]) -> Mask:
        """(N,) the test of each node, which depends on that trait alone."""
        if trait not in self._alike:
            values = [trait(node) for node in self._nodes]
            any_of = dict(zip(values, self._nodes, strict=True))
            at = {value: index for index, value in enumerate(any_of)}
            self._alike[trait] = list(any_of.values()), np.array([at[value] for value in values], dtype=np.int32)
        nodes, which = self._alike[trait]
        mask: Mask = np.array([test(node) for node in nodes], dtype=bool)[which]
        return mask


def _taints(node: Node) -> Hashable:
    return node.taints


def _networks(node: Node) -> Hashable:
    return node.networks
