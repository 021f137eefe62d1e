"""Group testing of nodes by pairs: what each round tests, and what it makes of the results."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.train.preflight.group_testing import MAX_ROUNDS, TESTS_OF_ROUND, Findings, GroupTesting, PairResult

Pair = tuple[str, str]


def findings_of(
    nodes: list[str], fails: Callable[[Pair], bool], seed: int = 0, domains: dict[str, str] | None = None
) -> Findings:
    """Return the findings after all rounds, in which a pair fails as it is said."""
    testing = GroupTesting(nodes, seed, domains)
    for _ in range(MAX_ROUNDS):
        testing.record([PairResult(pair, float(not fails(pair))) for step in testing.next_round() for pair in step])
    return testing.findings()


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@given(st.integers(2, 40), st.integers(0, 2**32), st.sets(st.integers(0, 39), max_size=6), st.integers(1, 40))
def test_a_step_has_each_node_at_most_once_and_leaves_at_most_one_out(
    count: int, seed: int, bad: set[int], domain_size: int
) -> None:
    nodes, generator = names(count), random.Random(seed)
    failing = {f"n{number}" for number in bad}
    testing = GroupTesting(nodes, seed, {node: str(place // domain_size) for place, node in enumerate(nodes)})
    for _ in range(MAX_ROUNDS):
        steps = testing.next_round()
        assert len(steps) == TESTS_OF_ROUND
        for step in steps:
            seen = Counter(node for pair in step for node in pair)
            assert set(seen.values()) == {1}
            assert len(seen) == count - count % 2
        rates = [(pair, generator.random() > 0.2 or failing.isdisjoint(pair)) for step in steps for pair in step]
        testing.record([PairResult(pair, float(passes)) for pair, passes in rates])
    findings = testing.findings()
    assert {*findings.nodes, *findings.suspects} <= {*nodes}
    assert not {*findings.nodes} & {*findings.suspects}


@pytest.mark.parametrize("count", [16, 128])
def test_a_node_that_fails_one_test_in_five_is_found_and_no_other_is_condemned(count: int) -> None:
    found = 0
    for seed in range(40):
        generator = random.Random(seed)
        bad = f"n{generator.randrange(count)}"
        findings = findings_of(names(count), lambda pair, bad=bad, r=generator: bad in pair and r.random() < 0.2, seed)  # type: ignore[misc]
        assert {*findings.nodes} <= {bad}
        found += bad in findings.nodes
    assert found >= 36


def test_a_bad_uplink_is_not_a_rack_of_bad_nodes() -> None:
    domains = {name: f"leaf{place // 8}" for place, name in enumerate(names(32))}
    findings = findings_of(
        names(32), lambda pair: (domains[pair[0]] == "leaf2") != (domains[pair[1]] == "leaf2"), 1, domains
    )
    assert (findings.nodes, [*findings.domains], findings.suspects) == ({}, ["leaf2"], {})


def test_two_bad_nodes_explain_the_failures_of_all_others() -> None:
    findings = findings_of(names(12), lambda pair: "n3" in pair or "n7" in pair)
    assert ({*findings.nodes}, findings.suspects) == ({"n3", "n7"}, {})


def test_a_single_failure_condemns_neither() -> None:
    failures = iter([True])
    findings = findings_of(names(8), lambda _: next(failures, False))
    assert findings.nodes == {}
    assert [*findings.suspects.values()] == [1, 1]


def test_of_two_nodes_neither_is_condemned() -> None:
    findings = findings_of(names(2), lambda _: True)
    assert (findings.nodes, [*findings.suspects]) == ({}, ["n0", "n1"])


def test_a_slow_node_fails_and_its_performance_says_how_slow() -> None:
    testing = GroupTesting(names(8), 0)
    for _ in range(MAX_ROUNDS):
        pairs = [pair for step in testing.next_round() for pair in step]
        testing.record([PairResult(pair, 30.0 if "n5" in pair else 100.0) for pair in pairs])
    assert [*testing.findings().nodes] == ["n5"]
    assert testing.performance_milli() == {**dict.fromkeys(names(8), 1000), "n5": 300}
