"""The Pareto front, against its definition for each pair of points."""

from hypothesis import given
from hypothesis import strategies as st

from ganger.simulation.sweep.sweep import Values, pareto_front

values = st.none() | st.integers(0, 6) | st.floats(0, 3)
points = st.lists(st.tuples(values, values), max_size=14)
directions = st.tuples(st.sampled_from((min, max)), st.sampled_from((min, max)))


def dominates(one: Values, other: Values, best: tuple[object, object]) -> bool:
    pairs = [(b, a) if better is min else (a, b) for a, b, better in zip(one, other, best, strict=True)]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


@given(points, directions)
def test_the_front_is_the_points_that_no_other_dominates(points: list[Values], best: tuple[object, object]) -> None:
    known = [index for index, point in enumerate(points) if None not in point]
    front = pareto_front(points, best)
    assert sorted(front) == [
        index for index in known if not any(dominates(points[other], points[index], best) for other in known)
    ]
    firsts = [points[index][0] for index in front]
    assert firsts == sorted(firsts, reverse=best[0] is max)


@given(points, directions, st.randoms())
def test_the_order_of_points_does_not_matter(points: list[Values], best: tuple[object, object], random: object) -> None:
    shuffled = random.sample(points, len(points))
    assert sorted(points[index] for index in pareto_front(points, best)) == sorted(
        shuffled[index] for index in pareto_front(shuffled, best)
    )
