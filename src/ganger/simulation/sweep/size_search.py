"""The search for the fewest nodes that keep a target, by bisection.

It assumes that more nodes never make the figure worse. That holds for most traces, but not for all: with more nodes a
policy may start other jobs first. So the answer is one that was probed, and so is the next smaller number, which misses
the target unless the largest job needs more nodes than that; and probes that contradict the assumption are reported.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A run on a number of nodes. `wait_ms`: None if a job that has room did not end, which is worse than any wait."""

    nodes: int
    wait_ms: float | None
    target_ms: int

    @property
    def keeps_target(self) -> bool:
        """The wait is not above the target."""
        return self.wait_ms is not None and self.wait_ms <= self.target_ms

    def is_better_than(self, other: "Probe") -> bool:
        """Return whether jobs waited less than in the other run."""
        return self.wait_ms is not None and (other.wait_ms is None or self.wait_ms < other.wait_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSearch:
    """The outcome of a search. `nodes`: None if no number of nodes up to the largest keeps the target."""

    nodes: int | None
    probes: tuple[Probe, ...]

    @property
    def contradictions(self) -> tuple[tuple[Probe, Probe], ...]:
        """Pairs of probes (fewer nodes, more nodes) of which that with fewer nodes is better."""
        return contradictions(self.probes)


def fewest_nodes(probe: Callable[[int], Probe], least: int, most: int, guess: int) -> SizeSearch:
    """Return the fewest nodes from `least` to `most` that keep the target, if more nodes never make it worse.

    probe: runs a number of nodes; each is asked for once
    guess: where the search begins; it doubles until the target is kept
    """
    probes: dict[int, Probe] = {}

    def keeps_target(nodes: int) -> bool:
        if nodes not in probes:
            probes[nodes] = probe(nodes)
        return probes[nodes].keeps_target

    too_few, enough = least - 1, min(max(guess, least), most)
    while not keeps_target(enough):
        if enough == most:
            return SizeSearch(nodes=None, probes=_in_order(probes.values()))
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if keeps_target(middle):
            enough = middle
        else:
            too_few = middle
    # Bisection alone would never see a larger number that misses the target.
    if enough < most:
        keeps_target(enough + 1)
    return SizeSearch(nodes=enough, probes=_in_order(probes.values()))


def least_that(is_enough: Callable[[int], bool], most: int) -> int:
    """Return the least number from 1 on for which a monotone condition holds; it holds for `most`."""
    too_few, enough = 0, 1
    while enough < most and not is_enough(enough):
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def contradictions(probes: Sequence[Probe]) -> tuple[tuple[Probe, Probe], ...]:
    """Return the pairs of probes, given in order of nodes, of which that with fewer nodes is better."""
    return tuple((fewer, more) for fewer, more in combinations(probes, 2) if fewer.is_better_than(more))


def _in_order(probes: Iterable[Probe]) -> tuple[Probe, ...]:
    return tuple(sorted(probes, key=lambda probe: probe.nodes))
