"""Oracle of the best-connected devices, by trying every set and every ring through it."""

from functools import cache
from itertools import combinations, pairwise, permutations

Matrix = tuple[tuple[int, ...], ...]


def best_devices(links: Matrix, free: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the first best of all sets of that many free devices."""
    return max(combinations(free, size), key=lambda chosen: _worth(links, free, chosen))


def _worth(links: Matrix, free: tuple[int, ...], chosen: tuple[int, ...]) -> tuple[float, int, int]:
    rest = tuple(device for device in free if device not in chosen)
    return weakest_link(links, chosen), sum_of_links(links, chosen), sum_of_links(links, rest)


@cache
def weakest_link(links: Matrix, chosen: tuple[int, ...]) -> float:
    """Return the weakest link of the best ring through these devices."""
    first, *others = chosen
    rings = ((first, *order, first) for order in permutations(others) if not others or order[0] <= order[-1])
    return max(min(links[a][b] for a, b in pairwise(ring)) for ring in rings) if others else 1e9


@cache
def sum_of_links(links: Matrix, chosen: tuple[int, ...]) -> int:
    """Return the sum of the links between these devices."""
    return sum(links[a][b] for a, b in combinations(chosen, 2))
