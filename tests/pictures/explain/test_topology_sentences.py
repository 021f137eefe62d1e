"""Explanations of waiting for a level, a slice or certain nodes: numbers, domains, changes."""

import pytest

from ganger.core.explain.explain import current_reason
from tests.laws.policies import POLICIES
from tests.pictures.explain.test_sentences import explained
from tests.pictures.film import Film

SENTENCES = {
    "one rack": (
        "r1/n1:AA r1/n2:.. r2/n3:.. r2/n4:.. r2/n5:.. r1/n6:.. r1/n7:.. A,time=1h",
        "C:4x2,in=rack,must",
        "waiting for 4 nodes with 2 free GPUs, 2 free CPUs in one rack: the best has 3 free now; held by A",
    ),
    "too few nodes is reported before the level": (
        "r1/n1:AA r1/n2:.. r2/n3:BB",
        "C:2x2,in=rack,must",
        "waiting for 2 nodes with 2 free GPUs: 1 node free now; held by A, B",
    ),
    "no rack is large enough": (
        "r1/n1:.. r1/n2:.. r2/n3:..",
        "C:3x2,in=rack,must",
        (
            "needs 3 nodes with 2 free GPUs, 2 free CPUs in one rack: only 2 in the best rack could hold it, "
            "even if idle"
        ),
    ),
    "no such level": (
        "r1/n1:.. r2/n2:..",
        "C:2x2,in=spine,must",
        "needs 2 nodes with 2 free GPUs, 2 free CPUs in one spine: no spine could hold it, even if idle",
    ),
    "slices": (
        "r1/n1:.. r1/n2:AA r2/n3:.. r2/n4:..",
        "C:4x2,slice=rack:2",
        "waiting for 4 nodes with 2 free GPUs: 3 nodes free now; held by A",
    ),
    "slices partly in use": (
        "r1/n1:.. r1/n2:AA r2/n3:.. r2/n4:.. r2/n5:..",
        "C:4x2,slice=rack:2",
        "waiting for 2 slices of 2 nodes, each in one rack, with 2 free GPUs, 2 free CPUs: 1 free now; held by A",
    ),
    "slices in one spine": (
        "s1/r1/n1:.. s1/r1/n2:AA s1/r2/n3:.. s1/r2/n4:.. s2/r3/n5:.. s2/r3/n6:..",
        "C:4x2,slice=rack:2,in=spine,must",
        (
            "waiting for 2 slices of 2 nodes, each in one rack, with 2 free GPUs, 2 free CPUs in one spine: "
            "the best has 1 free now; held by A"
        ),
    ),
    "slices of slices": (
        "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v2/n4:AA s2/r2/v3/n5:.. s2/r2/v3/n6:..",
        "C:4x2,slice=rack:4+nvlink:2",
        (
            "waiting for 1 slice of 4 nodes, each in one rack, every 2 of them in one nvlink, with 2 free GPUs, "
            "2 free CPUs: 0 free now; held by A"
        ),
    ),
    "the smaller slices come first": (
        "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v2/n4:AA s1/r1/v3/n5:..",
        "C:4x2,slice=rack:4+nvlink:2",
        "waiting for 2 slices of 2 nodes, each in one nvlink, with 2 free GPUs, 2 free CPUs: 1 free now; held by A",
    ),
    "slices that no domain can hold": (
        "r1/n1:.. r1/n2:.. r2/n3:.. r3/n4:..",
        "C:4x2,slice=rack:2",
        (
            "needs 2 slices of 2 nodes, each in one rack, with 2 free GPUs, 2 free CPUs: only 1 in the cluster "
            "could hold it, even if idle"
        ),
    ),
    "too few nodes with the label": (
        "n1:..,label=zone:a n2:..",
        "C:2x2,on=zone:a",
        "needs 2 nodes with label zone=a (excludes 1 node: n2): only 1 node in the cluster could hold it, even if idle",
    ),
    "labels beyond equality": (
        "n1:..,label=zone:b n2:..",
        "C:1x2,need=zone_in_(a&c)&!old|cores>8",
        (
            "needs 1 node with label zone in (a, c), !old or cores>8 (excludes 2 nodes: n1, n2): no node in the "
            "cluster could hold it, even if idle"
        ),
    ),
    "a network": (
        "n1:..,net=ib n2:..,net=tcp",
        "C:2x2,net=ib",
        "needs 2 nodes with network ib (excludes 1 node: n2): only 1 node in the cluster could hold it, even if idle",
    ),
    "one of two networks": (
        "n1:..,net=ib n2:..,net=roce",
        "C:2x2,net=ib+roce",
        (
            "needs 2 nodes with 2 free GPUs, 2 free CPUs, network ib or roce: only 1 node in the cluster "
            "could hold it, even if idle"
        ),
    ),
    "one of two types": (
        "n1:AA,h100 n2:B.,a100",
        "C:1x2h100,else=a100",
        "waiting for 1 node with 2 free h100 or a100 GPUs: 0 nodes free now; held by A",
    ),
    "exclusive nodes": (
        "n1:A... n2:B...",
        "C:1x2,exclusive",
        "waiting for 1 node with no other job: 0 nodes free now; held by A, B",
    ),
}


def test_what_there_would_be_is_counted_as_what_is_missing() -> None:
    """Count in the same unit what is missing and what would be there: two nodes, or one slice."""
    film = Film(POLICIES["fifo"], "r1/n1:AA r1/n2:..", "")
    film.do("C:2x2,slice=rack:2")
    film.run_cycles()
    reason = current_reason(film.state, film.state.gangs["C"], film.now_ms, film.policy)
    assert (reason.need, reason.have, reason.limit) == (2, 1, 2)


@pytest.mark.parametrize(("cluster", "job", "want"), SENTENCES.values(), ids=SENTENCES)
def test_sentences(cluster: str, job: str, want: str) -> None:
    assert explained(cluster, "", job).sentence == want


@pytest.mark.parametrize(
    ("cluster", "job", "flags"),
    [
        ("r1/n1:.. r1/n2:AA r2/n3:..", "C:2x2,in=rack,must", ["--mode preferred", "--nodes 1"]),
        ("r1/n1:.. r1/n2:AA r2/n3:BB", "C:2x2,in=rack,must", ["--nodes 1"]),
        ("r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:AA", "C:4x2,slice=rack:2", ["--nodes 2"]),
        (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r2/v2/n3:AA s1/r2/v2/n4:.. s1/r3/v3/n5:.. s1/r3/v3/n6:..",
            "C:6x2,slice=rack:2+nvlink:2",
            ["--nodes 4"],
        ),
        ("n1:AA,h100 n2:BB,a100 n3:..,v100", "C:1x2h100,else=a100", ["--gpu 2"]),
    ],
)
def test_what_would_start_now(cluster: str, job: str, flags: list[str]) -> None:
    assert [change.flags for change in explained(cluster, "", job).changes] == flags


def test_domains_of_the_lowest_level() -> None:
    explanation = explained("s1/r1/n1:AA s1/r2/n2:.. s2/r1/n3:BB", "", "C:2x2")
    assert explanation.domains == (
        "s1/r1: 0 of 1 nodes have 2 free GPUs, 2 free CPUs; A (no time limit)",
        "s1/r2: 1 of 1 nodes have 2 free GPUs, 2 free CPUs",
        "s2/r1: 0 of 1 nodes have 2 free GPUs, 2 free CPUs; B (no time limit)",
    )


def test_domains_of_the_level_that_it_must_stay_in() -> None:
    explanation = explained("s1/r1/n1:AA s1/r2/n2:.. s2/r1/n3:BB s2/r1/n4:BB", "", "C:2x2,in=spine,must")
    assert explanation.domains == (
        "s1: 1 of 2 nodes have 2 free GPUs, 2 free CPUs; A (no time limit)",
        "s2: 0 of 2 nodes have 2 free GPUs, 2 free CPUs; B (no time limit)",
    )


def test_of_many_domains_those_with_the_most_room() -> None:
    cluster = " ".join(f"r{number}/n{number}:{'..' if number == 14 else 'A.'}" for number in range(1, 16))
    explanation = explained(cluster, "", "C:2x2")
    assert len(explanation.domains) == 13
    assert explanation.domains[-2:] == (
        "r14: 1 of 1 nodes have 2 free GPUs, 2 free CPUs",
        "and 3 more with at most 0 such nodes each",
    )
