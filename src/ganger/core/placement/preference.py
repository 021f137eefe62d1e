"""The place that a gang would rather have: the one whose worst node is best by what it prefers.

Called by `core.placement.place`, where somebody prefers anything. A gang is as fast as its slowest node, so what counts
is the node with the fewest points, and that as many points as can be. It goes before packing, which nobody asked for by
name; the level of the network that the gang names, types in their order, and pools go before it."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ganger.core.nodes.node_pools import Usable
from ganger.core.nodes.topology import Ints
from ganger.model.terms import Layout

Place = TypeVar("Place")


def most_preferred(attempt: Callable[[Layout, Usable], Place | None], layout: Layout, points: Ints) -> Place | None:
    """What `attempt` finds on the nodes with the most points, found by halving; None when it finds nothing on all.
    points: (N,). What fits on some nodes fits where there are more of them."""
    found = attempt(layout, None)
    if found is None:
        return None
    if layout.level and not layout.required:
        inside = replace(layout, required=True)
        near = attempt(inside, None)
        found, layout = (found, layout) if near is None else (near, inside)
    grades = np.unique(points)
    low, high = 0, len(grades) - 1
    while low < high:
        middle = (low + high + 1) // 2
        better = attempt(layout, points >= grades[middle])
        if better is None:
            high = middle - 1
        else:
            found, low = better, middle
    return found
