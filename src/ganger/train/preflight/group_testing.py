"""Adaptive group testing of nodes by pairs: which pairs to test next, and which nodes or domains that condemns.

A pair that fails has a bad node, or a bad path between the two; a pair that passes says little of a node that fails
only now and then. A round is a schedule of several tests for each node, with different partners, that is made at once;
between rounds the schedule adapts: a node with a failure is tested with partners that have none, so that another
failure is its own. A node is condemned for failures with several partners that nothing else explains.

Two fixed rounds, as in the node check of DLRover, find a node that fails one test in five in 4 % of runs
(../shared/reference/reliability.md section 1). Pure: no clock and no random numbers but those of the seed.
"""

from __future__ import annotations

import random

TYPE_CHECKING = False  # typing is not imported at run time, as in all of ganger.train
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Pair = tuple[str, str]

TESTS_OF_ROUND = 4
"""Tests of each node in a round, with as many partners: a round of 1 s each takes 4 s on any number of nodes."""
MAX_ROUNDS = 8
CONDEMNED_AFTER = 3
"""Failures of its own that condemn a node: with one random failure in a thousand tests, three in 32 happen to one
healthy node in 200,000."""
MIN_PARTNERS = 2
"""Different partners of these failures: with one the fault may be the path between them."""
SLOW_SHARE = 0.5
"""A pair that exchanges less than this share of the median of its round has failed."""
DOMAIN_SHARE = 0.5
"""Share of a domain's nodes that must fail towards the outside, and never among themselves, to condemn its uplink."""
MIN_DOMAIN_NODES = 3


class PairResult:
    """Outcome of one test of a pair.

    Attributes:
        pair: The two nodes.
        rate: What they exchanged a second, in any unit; 0 if the test failed or did not end.
    """

    __slots__ = ("pair", "rate")

    def __init__(self, pair: Pair, rate: float) -> None:
        self.pair, self.rate = pair, rate


class Findings:
    """The explanation of the failures of all tests.

    Attributes:
        nodes: Condemned nodes, with the failures that each explains.
        domains: Domains whose nodes fail only towards the outside, their uplink is bad, with the same.
        suspects: Nodes of failures that nothing explains, with their number: too few to condemn one.
    """

    __slots__ = ("domains", "nodes", "suspects")

    def __init__(self, nodes: dict[str, int], domains: dict[str, int], suspects: dict[str, int]) -> None:
        self.nodes, self.domains, self.suspects = nodes, domains, suspects


class GroupTesting:
    """The tests of some nodes so far.

    Attributes:
        rounds: Rounds that have been recorded.
    """

    def __init__(self, nodes: Sequence[str], seed: int, domains: Mapping[str, str] | None = None) -> None:
        """Begin with nodes of which nothing is known; domains: of each node, such as its leaf switch."""
        self.rounds = 0
        self._random = random.Random(seed)
        self._domains = dict(domains or {})
        self._nodes = list(nodes)
        self._partners: dict[str, dict[str, int]] = {node: {} for node in nodes}
        self._failures: list[Pair] = []
        self._suspects: dict[str, None] = {}
        self._rates: dict[str, list[float]] = {node: [] for node in nodes}

    # -- schedule ------------------------------------------------------------------------------------------------------

    def next_round(self) -> list[list[Pair]]:
        """Return the pairs of each step of the next round; in a step no node is in two pairs."""
        return [self._step(number) for number in range(TESTS_OF_ROUND)]

    def _step(self, number: int) -> list[Pair]:
        """Return the pairs of one step: suspects with partners that tell most, all others at random."""
        order = self._nodes[:]
        self._random.shuffle(order)
        free = dict.fromkeys(order)
        pairs: list[Pair] = []
        # Every second time within its domain: whether it fails there tells a node from its uplink.
        is_inside = number % 2 == 1
        for node in [node for node in order if node in self._suspects]:
            if node in free and (partner := self._partner(node, free, is_inside=is_inside)):
                pairs.append((node, partner))
                del free[node], free[partner]
        # Two suspects that find no other partner are tested with one another in the end.
        rest = sorted(free, key=self._suspects.__contains__)
        pairs += zip(rest[::2], rest[1::2])
        for first, second in pairs:
            self._partners[first][second] = self._partners[first].get(second, 0) + 1
            self._partners[second][first] = self._partners[second].get(first, 0) + 1
        return pairs

    def _partner(self, node: str, free: Mapping[str, None], *, is_inside: bool) -> str | None:
        """Return the best partner of a suspect: beyond suspicion, or within its domain; as new to it as possible."""
        domain, met = self._domains.get(node), self._partners[node]
        best: tuple[tuple[bool, bool, int], str] | None = None
        for other in free:
            if other == node:
                continue
            is_same = domain is not None and self._domains.get(other) == domain
            is_suspect = other in self._suspects
            if is_suspect and not (is_inside and is_same):
                continue
            rank = (domain is not None and is_same is not is_inside, is_suspect, met.get(other, 0))
            if best is None or rank < best[0]:
                best = (rank, other)
            if rank == (False, False, 0):
                break
        return best and best[1]

    # -- results -------------------------------------------------------------------------------------------------------

    def record(self, results: Iterable[PairResult]) -> None:
        """Take in the results of a round. A pair without a result was not tested."""
        results = list(results)
        rates = sorted(result.rate for result in results if result.rate > 0)
        least = SLOW_SHARE * rates[len(rates) // 2] if rates else 0.0
        for result in results:
            for node in result.pair:
                self._rates[node].append(result.rate)
            if result.rate <= 0 or result.rate < least:
                self._failures.append(result.pair)
                self._suspects.update(dict.fromkeys(result.pair))
        self.rounds += 1

    def findings(self) -> Findings:
        """Return what explains the failures so far.

        A greedy cover: of all nodes and domains that qualify, the one that explains most failures is condemned, and
        what it explains counts against no other.
        """
        pairs = [*self._failures]
        nodes: dict[str, int] = {}
        domains: dict[str, int] = {}
        while best := max(self._causes(pairs), key=lambda cause: (cause[0], cause[1]), default=None):
            count, is_node, name = best
            (nodes if is_node else domains)[name] = count
            pairs = [pair for pair in pairs if not (name in pair if is_node else self._crosses(pair, name))]
        left: dict[str, int] = {}
        for node in (node for pair in pairs for node in pair):
            left[node] = left.get(node, 0) + 1
        return Findings(nodes, domains, left)

    def _causes(self, pairs: list[Pair]) -> Iterator[tuple[int, bool, str]]:
        """Yield (failures that it explains, is a node, name) of all nodes and domains that qualify."""
        partners: dict[str, list[str]] = {}
        for first, second in pairs:
            partners.setdefault(first, []).append(second)
            partners.setdefault(second, []).append(first)
        members: dict[str, list[str]] = {}
        for node, others in partners.items():
            if len(others) >= CONDEMNED_AFTER and len(set(others)) >= MIN_PARTNERS:
                yield len(others), True, node
            members.setdefault(self._domains.get(node, ""), []).append(node)
        members.pop("", None)
        for domain, failing in members.items():
            size = sum(self._domains.get(node) == domain for node in self._nodes)
            is_outside = all(self._domains.get(other) != domain for node in failing for other in partners[node])
            if is_outside and len(failing) >= max(MIN_DOMAIN_NODES, DOMAIN_SHARE * size):
                yield sum(len(partners[node]) for node in failing), False, domain

    def _crosses(self, pair: Pair, domain: str) -> bool:
        """Return whether a pair is of one node inside a domain and one outside."""
        return (self._domains.get(pair[0]) == domain) != (self._domains.get(pair[1]) == domain)

    def performance_milli(self) -> dict[str, int]:
        """Return the performance of each tested node: the median of its rates to that of all, in thousandths.

        A rate is that of the slower of two nodes, and half of a node's partners are faster than most.
        """
        medians = {node: sorted(rates)[len(rates) // 2] for node, rates in self._rates.items() if rates}
        if not medians:
            return {}
        middle = sorted(medians.values())[len(medians) // 2]
        return {node: min(1000, round(1000 * rate / middle)) if middle else 0 for node, rate in medians.items()}


def run_rounds(testing: GroupTesting, max_rounds: int = MAX_ROUNDS) -> Iterator[list[list[Pair]]]:
    """Yield the schedule of one round after the other; its results must be recorded before the next."""
    while testing.rounds < max_rounds:
        yield testing.next_round()
