"""How a quota is divided among domains: all of it, nobody more than it holds, and no division is better by its rule."""

from itertools import combinations, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.placement.topology_packing import evenly, evenly_on_few, into_few


@st.composite
def quotas(draw: st.DrawFn) -> tuple[list[int], int]:
    """What domains hold, and how much of it is wanted."""
    rooms = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any))
    return rooms, draw(st.integers(1, sum(rooms)))


def divisions(rooms: list[int], quota: int) -> list[tuple[int, ...]]:
    """Every way to divide it."""
    return [given for given in product(*(range(room + 1) for room in rooms)) if sum(given) == quota]


def used(given: tuple[int, ...] | list[int]) -> int:
    """How many domains get any of it."""
    return sum(amount > 0 for amount in given)


@given(drawn=quotas())
def test_into_few(drawn: tuple[list[int], int]) -> None:
    rooms, quota = drawn
    found = into_few(np.array(rooms), quota).tolist()
    assert tuple(found) in divisions(rooms, quota)
    assert used(found) == min(map(used, divisions(rooms, quota)))
    broken = [room for room, amount in zip(rooms, found, strict=True) if 0 < amount < room]
    assert len(broken) <= 1, "all but one are filled"
    if broken:
        rest = next(amount for room, amount in zip(rooms, found, strict=True) if 0 < amount < room)
        others = [room for room, amount in zip(rooms, found, strict=True) if not amount and room >= rest]
        assert all(room >= broken[0] for room in others), "the last as tight as can be"


@given(drawn=quotas())
def test_evenly(drawn: tuple[list[int], int]) -> None:
    rooms, quota = drawn
    for keep_order in (False, True):
        found = evenly(np.array(rooms), quota, keep_order=keep_order).tolist()
        assert tuple(found) in divisions(rooms, quota)
        assert sorted(found) == max(map(sorted, divisions(rooms, quota))), "the least has as much as it can, and so on"


@given(drawn=quotas())
def test_evenly_on_few(drawn: tuple[list[int], int]) -> None:
    rooms, quota = drawn
    found = evenly_on_few(np.array(rooms), quota).tolist()
    every = divisions(rooms, quota)
    assert tuple(found) in every
    fewest = min(map(used, every))
    assert used(found) == fewest
    least = max(min(amount for amount in given if amount) for given in every if used(given) == fewest)
    assert min(amount for amount in found if amount) == least
    each = -(-quota // fewest)
    if sum(room >= each for room in rooms) >= fewest:
        chosen = sorted(room for room, amount in zip(rooms, found, strict=True) if amount)
        able = combinations(sorted(room for room in rooms if room >= each), fewest)
        assert chosen == min(map(list, able)), "of those that can be alike the tightest"
