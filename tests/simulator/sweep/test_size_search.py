"""The search for the fewest nodes, against a walk over all numbers of nodes."""

from collections.abc import Callable
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from ganger.simulation.sweep.size_search import Probe, SizeSearch, contradictions, fewest_nodes, least_that

TARGET_MS = 10


def search(waits_ms: list[int | None], least: int, guess: int) -> tuple[SizeSearch, list[int]]:
    """Return the outcome for the waits on `least` nodes, one more, and so on; and the numbers that were tried."""
    tried: list[int] = []

    def probe(nodes: int) -> Probe:
        tried.append(nodes)
        return Probe(nodes=nodes, wait_ms=waits_ms[nodes - least], target_ms=TARGET_MS)

    return fewest_nodes(probe, least, least + len(waits_ms) - 1, guess), tried


waits = st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=40)


def monotone(waits_ms: list[int | None]) -> list[int | None]:
    """Return waits that never become longer; None is longer than any."""
    longest = 1 << 40
    shortest = accumulate((longest if wait is None else wait for wait in waits_ms), min)
    return [None if wait == longest else wait for wait in shortest]


@given(waits.map(monotone), st.integers(1, 20), st.integers(0, 60))
def test_where_more_nodes_never_hurt_the_fewest_are_found_and_the_next_fewer_miss(
    waits_ms: list[int | None], least: int, guess: int
) -> None:
    found, tried = search(waits_ms, least, guess)
    keeping = [least + at for at, wait in enumerate(waits_ms) if wait is not None and wait <= TARGET_MS]
    assert found.nodes == min(keeping, default=None)
    assert found.contradictions == ()
    assert len(tried) == len(set(tried))
    if found.nodes is not None and found.nodes > least:
        assert found.nodes - 1 in tried
    assert len(tried) <= 2 * len(bin(len(waits_ms) + least)) + 2


@given(waits, st.integers(1, 20), st.integers(0, 60))
def test_a_number_that_is_found_keeps_the_target_and_the_next_fewer_miss_it_in_any_case(
    waits_ms: list[int | None], least: int, guess: int
) -> None:
    found, _ = search(waits_ms, least, guess)
    outcomes = {probe.nodes: probe.keeps_target for probe in found.probes}
    if found.nodes is None:
        assert not outcomes[least + len(waits_ms) - 1]
    else:
        assert outcomes[found.nodes]
        assert found.nodes == least or not outcomes[found.nodes - 1]
        assert found.nodes + 1 in outcomes or found.nodes == least + len(waits_ms) - 1
    as_numbers = [1 << 40 if probe.wait_ms is None else probe.wait_ms for probe in found.probes]
    assert len(contradictions(found.probes)) == sum(
        fewer < more for at, fewer in enumerate(as_numbers) for more in as_numbers[at + 1 :]
    )


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_least_number_of_a_monotone_condition_is_found(first: int, more: int) -> None:
    is_enough: Callable[[int], bool] = lambda number: number >= first  # noqa: E731 - a condition, as it is passed
    assert least_that(is_enough, first + more) == first
