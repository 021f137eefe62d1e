"""Division of a quota among domains: all of it, within what each holds, and no division is better by its rule."""

from itertools import combinations, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.placement.topology_packing import balance_on_few, pack_into_few, spread_evenly


@st.composite
def quotas(draw: st.DrawFn) -> tuple[list[int], int]:
    """Draw what domains hold, and how much of it is requested."""
    rooms = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any))
    return rooms, draw(st.integers(1, sum(rooms)))


def divisions(rooms: list[int], quota: int) -> list[tuple[int, ...]]:
    """Yield every division."""
    return [division for division in product(*(range(room + 1) for room in rooms)) if sum(division) == quota]


def used(division: tuple[int, ...] | list[int]) -> int:
    """Return how many domains get any of it."""
    return sum(amount > 0 for amount in division)


@given(drawn=quotas())
def test_into_few(drawn: tuple[list[int], int]) -> None:
    rooms, quota = drawn
    division = pack_into_few(np.array(rooms), quota).tolist()
    assert tuple(division) in divisions(rooms, quota)
    assert used(division) == min(map(used, divisions(rooms, quota)))
    broken = [room for room, amount in zip(rooms, division, strict=True) if 0 < amount < room]
    assert len(broken) <= 1, "all but one are filled"
    if broken:
        rest = next(amount for room, amount in zip(rooms, division, strict=True) if 0 < amount < room)
        other_divisions = [room for room, amount in zip(rooms, division, strict=True) if not amount and room >= rest]
        assert all(room >= broken[0] for room in other_divisions), "the last as tight as can be"


@given(drawn=quotas())
def test_evenly(drawn: tuple[list[int], int]) -> None:
    rooms, quota = drawn
    for keep_order in (False, True):
        division = spread_evenly(np.array(rooms), quota, keep_order=keep_order).tolist()
        assert tuple(division) in divisions(rooms, quota)
        assert sorted(division) == max(map(sorted, divisions(rooms, quota))), (
            "the least has as much as it can, and so on"
        )


@given(drawn=quotas())
def test_evenly_on_few(drawn: tuple[list[int], int]) -> None:
    rooms, quota = drawn
    division = balance_on_few(np.array(rooms), quota).tolist()
    all_divisions = divisions(rooms, quota)
    assert tuple(division) in all_divisions
    fewest = min(map(used, all_divisions))
    assert used(division) == fewest
    least = max(min(amount for amount in other if amount) for other in all_divisions if used(other) == fewest)
    assert min(amount for amount in division if amount) == least
    part = -(-quota // fewest)
    if sum(room >= part for room in rooms) >= fewest:
        choice = sorted(room for room, amount in zip(rooms, division, strict=True) if amount)
        able = combinations(sorted(room for room in rooms if room >= part), fewest)
        assert choice == min(map(list, able)), "of those that can be alike the tightest"
