"""Pair tests of nodes before a large gang: a node that fails one test in five, among 16, 128 and 1,024.

Simulated results, 100 runs of each, each with its own bad node: the share of runs in which it is condemned within 8
rounds, the healthy nodes that are, and the rounds that it took. The rule of two fixed rounds, a
node being bad that fails in both, would condemn it in 4 % of runs.
"""

import random
from collections.abc import Iterator
from typing import Final

from bench.measure import Figure
from ganger.train.preflight.group_testing import MAX_ROUNDS, GroupTesting, PairResult

NODES: Final = (16, 128, 1024)
RUNS: Final = 100
FAILS: Final = 0.2
RANDOM_FAILURES: Final = 0.001
"""Tests of healthy pairs that fail, too, in another series."""
RECALL_BAR: Final = 0.9


def find(nodes: int, seed: int, random_failures: float) -> tuple[str, dict[str, None], int | None]:
    """Return the bad node of a run, the condemned ones, and the round after which it was one of them."""
    generator, names = random.Random(seed), [f"n{number}" for number in range(nodes)]
    bad, testing, found = generator.choice(names), GroupTesting(names, seed), None
    while testing.rounds < MAX_ROUNDS:
        pairs = [pair for step in testing.next_round() for pair in step]
        fails = [generator.random() < (FAILS if bad in pair else random_failures) for pair in pairs]
        testing.record(PairResult(pair, float(not is_failed)) for pair, is_failed in zip(pairs, fails, strict=True))
        if found is None and bad in testing.findings().nodes:
            found = testing.rounds
    return bad, dict.fromkeys(testing.findings().nodes), found


def run() -> list[Figure]:
    return [figure for nodes in NODES for figure in figures_of(nodes)]


def figures_of(nodes: int) -> Iterator[Figure]:
    """Yield the figures of one number of nodes."""
    for name, random_failures in (("", 0.0), ("_with_random_failures", RANDOM_FAILURES)):
        runs = [find(nodes, seed, random_failures) for seed in range(RUNS)]
        recall = sum(bad in condemned for bad, condemned, _ in runs) / RUNS
        healthy = float(sum(node != bad for bad, condemned, _ in runs for node in condemned))
        rounds = tuple(float(found) for _, _, found in runs if found is not None)
        yield Figure(
            name=f"pair_tests_recall_{nodes}{name}",
            unit="share",
            samples=(recall,),
            value=recall,
            op=">=",
            bar=RECALL_BAR,
        )
        yield Figure(
            name=f"pair_tests_healthy_condemned_{nodes}{name}",
            unit="nodes",
            samples=(healthy,),
            value=healthy,
            op="==",
            bar=0.0,
        )
        yield Figure(
            name=f"pair_tests_rounds_{nodes}{name}",
            unit="rounds",
            samples=rounds,
            value=max(rounds),
            op="<=",
            bar=float(MAX_ROUNDS),
        )
