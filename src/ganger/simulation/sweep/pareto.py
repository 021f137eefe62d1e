"""The Pareto front of points with two measures.

A point dominates another if it is at least as good in both measures and better in one. The front is the points that no
other dominates, so that of equal points either all are on it or none. A point without one of the measures is not.
"""

from collections.abc import Sequence
from itertools import groupby

from ganger.model.views.simulation_figures import Best

Values = tuple[float | None, float | None]


def pareto_front(points: Sequence[Values], best: tuple[Best | None, Best | None]) -> list[int]:
    """Return the indices of the points on the front, the best in the first measure first.

    best: for each measure `min` or `max`, which tells the better of two values
    """
    first_sign, second_sign = (-1 if better is max else 1 for better in best)
    costs = sorted(
        (first * first_sign, second * second_sign, index)
        for index, (first, second) in enumerate(points)
        if first is not None and second is not None
    )
    front, lowest = list[int](), float("inf")
    for _, group in groupby(costs, key=lambda cost: cost[0]):
        same_first = list(group)
        second = same_first[0][1]
        if second < lowest:
            lowest = second
            front += [index for _, cost, index in same_first if cost == second]
    return front
