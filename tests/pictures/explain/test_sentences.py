"""Explanations as users read them: the reason, what is in the way, until when, remedies, changes."""

import pytest

from ganger.core.explain.explain import explain
from ganger.model.views.service_views import Explanation
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

SENTENCES = {
    "GPUs": ("n1:AA.. n2:BB..", "", "C:2x4", "waiting for 2 nodes with 4 free GPUs: 0 nodes free now; held by A, B"),
    "GPUs held by other jobs": (
        "n1:AA@. n2:@@.. n3:..",
        "",
        "C:1x4",
        "waiting for 1 node with 4 free GPUs: 0 nodes free now; held by A; 3 GPUs are used outside ganger",
    ),
    "one GPU held by another job": (
        "n1:@",
        "",
        "C:1x1",
        "waiting for 1 node with 1 free GPU: 0 nodes free now; 1 GPU is used outside ganger",
    ),
    "a type": (
        "n1:AA..,h100 n2:....,a100",
        "",
        "C:1x4h100",
        "waiting for 1 node with 4 free h100 GPUs: 0 nodes free now; held by A",
    ),
    "CPUs": ("n1:A...,cpu=1", "", "C:1x1", "waiting for 1 node with 1 free CPU: 0 nodes free now; held by A"),
    "memory": (
        "n1:A...,mem=8 A,mem=6",
        "",
        "C:1x1,mem=4",
        "waiting for 1 node with 4Gi free memory: 0 nodes free now; held by A",
    ),
    "an extended resource that others hold": (
        "n1:A...,hca=1 n2:B...,hca=2 n3:....,hca=2 A,hca=1 B",
        "",
        "D:1x1,hca=2 C:2x1,hca=2",
        "waiting for 2 nodes with 2 free rdma/hca: 1 node free now; held by D",
    ),
    "an extended resource of too few nodes": (
        "n1:....,hca=1 n2:....",
        "",
        "C:2x1,hca=1",
        "needs 2 nodes with 1 free rdma/hca: only 1 node in the cluster could hold it, even if idle",
    ),
    "CPUs and memory": (
        "n1:A...,cpu=1,mem=8 A,mem=6",
        "",
        "C:1x1,mem=4",
        "waiting for 1 node with 1 free CPU, 4Gi free memory: 0 nodes free now; held by A",
    ),
    "only jobs that hold the missing resource": (
        "n1:gA... n2:hBBBB n3:d....,cpu=4 n4:EEEE D,cpu=3 E,time=1h G,time=10m H,time=20m",
        "",
        "C:2x4",
        "waiting for 2 nodes with 4 free GPUs: 0 nodes free now; held by E, A, B and 1 more",
    ),
    "each resource somewhere, never together": (
        "n1:A.,cpu=1 n2:BB,cpu=4",
        "",
        "C:1x1",
        "waiting for 1 node with 1 free GPU, 1 free CPU: 0 nodes free now; held by A, B",
    ),
    "some nodes are free": (
        "n1:AA.. n2:....",
        "",
        "C:2x4",
        "waiting for 2 nodes with 4 free GPUs: 1 node free now; held by A",
    ),
    "jobs in order of their end": (
        "n1:A. n2:B. n3:D. A,time=3h D,time=1h",
        "",
        "C:3x2",
        "waiting for 3 nodes with 2 free GPUs: 0 nodes free now; held by D, A, B",
    ),
    "at most three jobs are named": (
        "n1:A. n2:B. n3:D. n4:E.",
        "",
        "C:4x2",
        "waiting for 4 nodes with 2 free GPUs: 0 nodes free now; held by A, B, D and 1 more",
    ),
    "too large": (
        "n1:....",
        "",
        "C:1x8",
        "needs 1 node with 8 free GPUs: no node in the cluster could hold it, even if idle",
    ),
    "too much memory": (
        "n1:....,mem=8",
        "",
        "C:1x1,mem=9",
        "needs 1 node with 9Gi free memory: no node in the cluster could hold it, even if idle",
    ),
    "too many nodes": (
        "n1:....",
        "",
        "C:2x1",
        "needs 2 nodes with 1 free GPU: only 1 node in the cluster could hold it, even if idle",
    ),
    "quota": (
        "n1:AA.. A,q=q",
        "q=3,borrow=0",
        "C:1x2,q=q",
        "queue q may use 1 GPU more, 2 GPUs needed (limit 3 GPUs); held by A",
    ),
    "quota borrowed by other queues": (
        "n1:AA.. A,q=q",
        "root=4 q=1 p=2",
        "C:1x3,q=p",
        "queue p may use 2 GPUs more, 3 GPUs needed (limit 4 GPUs); held by A",
    ),
    "a full cluster comes before quotas": (
        "n1:AA.. A,q=q",
        "q=1 p=2",
        "C:1x3,q=p",
        "waiting for 1 node with 3 free GPUs: 0 nodes free now; held by A",
    ),
    "quota of CPUs": (
        "n1:a...",
        "root=,cpu=2",
        "C:1x0,cpu=2",
        "queue default may use 1 CPU more, 2 CPUs needed (limit 2 CPUs); held by A",
    ),
    "a user's GPUs": (
        "n1:AA...... n2:BB.. B,user=bob",
        "root=,user_gpus=4",
        "C:1x4",
        "you may hold 4 GPUs in queue root: 2 GPUs left, 4 GPUs needed; held by A",
    ),
    "only jobs that count against the limit": (
        "n1:AB...... B,q=q",
        "q=,user_gpus=1",
        "C:1x1,q=q",
        "you may hold 1 GPU in queue q: 0 GPUs left, 1 GPU needed; held by B",
    ),
    "the time limit of a job": (
        "n1:....",
        "q=,user_time=1h",
        "C:1x4,q=q,time=2h",
        "one job may hold its nodes for 1h 00m in queue q, 2h 00m requested",
    ),
    "node-hours": (
        "n1:A... A,time=1h",
        "root=,user_nodes=2",
        "C:1x1,time=90m",
        "your live jobs may add up to 2 node-hours in queue root: 1 node-hours left, 1.5 node-hours needed; held by A",
    ),
    "reserved for another job": (
        "n1:AA.. n2:....",
        "",
        "S:2x4; +31m; C:1x1",
        "nodes are reserved for S, which comes first in the queue order",
    ),
    "only conflicting jobs": (
        "n1:A.,h100 n2:A.,h100 n3:B.,a100 n4:B.,a100",
        "",
        "S:2x2h100 T:2x2a100; +31m; C:1x1a100",
        "nodes are reserved for T, which comes first in the queue order",
    ),
    "its own reservation is free capacity": (
        "n1:AA.. n2:....",
        "",
        "C:2x4; +31m; D:1x1",
        "waiting for 2 nodes with 4 free GPUs: 1 node free now; held by A",
    ),
    "a pause": (
        "n1:....",
        "",
        "C:1x1; fails C signal; gone C",
        "restarts after a pause: 1 attempt failed without a new checkpoint",
    ),
    "free nodes before maintenance": (
        "n1:AA n2:.. n3:.. n4:..",
        "",
        "maintain n2+n3 1h 2h; C:4x2,time=2h",
        (
            "waiting for 4 nodes with 2 free GPUs: 3 nodes free now, 2 of them in maintenance before it would end "
            "(m4); held by A"
        ),
    ),
    "a job that ends before maintenance starts": (
        "n1:AA n2:.. n3:.. n4:..",
        "",
        "maintain n2+n3 1h 2h; C:4x2,time=1h",
        "waiting for 4 nodes with 2 free GPUs: 3 nodes free now; held by A",
    ),
    "in the best rack": (
        "r1/n1:.. r1/n2:.. r1/n3:.. r1/n4:AA r2/n5:.. r2/n6:.. r2/n7:AA r2/n8:AA",
        "",
        "maintain n2 1h 2h; C:4x2,in=rack,must,time=2h",
        (
            "waiting for 4 nodes with 2 free GPUs, 2 free CPUs in one rack: the best has 3 free now, 1 of them in "
            "maintenance before it would end (m4); held by A"
        ),
    ),
    "a server without a node listing yet": (
        "n1:A...",
        "",
        "restart; C:1x4",
        "the server has not yet listed what runs on every node",
    ),
}


def explained(
    cluster: str, queues: str, happens: str, gang: str = "C", policy: str = "priority", *, is_administrator: bool = True
) -> Explanation:
    film = Film(POLICIES[policy], cluster, queues)
    for action in map(str.strip, happens.split(";")):
        film.do(action)
        film.run_cycles()
    return explain(film.state, gang, film.now_ms, film.policy, is_administrator=is_administrator)


@pytest.mark.parametrize(("cluster", "queues", "happens", "says"), SENTENCES.values(), ids=SENTENCES)
def test_sentence(cluster: str, queues: str, happens: str, says: str) -> None:
    assert explained(cluster, queues, happens).sentence == says


def test_others_give_way() -> None:
    explanation = explained("n1:AAAA n2:BBBB", "", "+15m; C:2x4", policy="las")
    assert explanation.sentence == "waiting for A, B to stop"
    assert explanation.earliest_ms == 1_000_000_000 + 15 * 60_000


def test_others_give_way_for_the_quota_of_a_type() -> None:
    cluster, queues = "n1:AB..,h100 n2:.,h100", "root=,h100=2,a100=5"
    explanation = explained(cluster, queues, "+2h; C:1x1h100,else=a100", policy="las")
    assert explanation.sentence == "waiting for B to stop"


@pytest.mark.parametrize(
    ("cluster", "happens", "in_ms", "holders"),
    [
        ("n1:AA.. A,time=1h", "C:1x4", 3_600_000, ("A",)),
        ("n1:AA.. A,time=1h", "+20m; C:1x4", 2_400_000, ("A",)),
        ("n1:AA.. n2:BB.. A,time=1h B,time=30m", "C:1x4", 1_800_000, ("B",)),
        ("n1:AA.. n2:BB.. A,time=1h B,time=30m", "C:2x4", 3_600_000, ("B", "A")),
        ("n1:AA.. A,time=1h", "+20m; saves A; fails A; gone A; C:1x4", 2_400_000, ("A",)),
        ("n1:AA..", "C:1x4", None, ("A",)),
        ("n1:AA.. n2:BB.. B,time=30m", "C:2x4", None, ("B", "A")),
        ("n1:AA.. A,time=1h", "stop A; C:1x4", 0, ("A",)),
        ("n1:....", "C:1x8", None, ()),
        ("n1:AA.. n2:.... A,time=1h", "S:2x4; +31m; C:1x1", None, ("S",)),
        ("n1:A... A,time=1h", "restart; C:1x4", None, ()),
    ],
)
def test_until_when_and_who(cluster: str, happens: str, in_ms: int | None, holders: tuple[str, ...]) -> None:
    explanation = explained(cluster, "", happens)
    assert explanation.waited_ms is not None
    assert explanation.reason
    until = None if in_ms is None else 1_000_000_000 + in_ms + (20 * 60_000 if "+20m" in happens else 0)
    assert (explanation.earliest_ms, explanation.reason.until_ms, explanation.reason.holders) == (until, until, holders)


def test_a_pause_ends_when_it_says() -> None:
    explanation = explained("n1:....", "", "C:1x1,pause=10s; fails C signal; gone C")
    assert explanation.earliest_ms == 1_000_000_000 + 10_000
    assert explanation.changes == ()


@pytest.mark.parametrize(
    ("cluster", "queues", "happens", "flags"),
    [
        ("n1:AA.. n2:BB..", "", "C:2x4", ["--gpu 2"]),
        ("n1:AAAA n2:....", "", "C:2x4", ["--nodes 1"]),
        ("n1:AA.. n2:....", "", "C:2x4", ["--nodes 1", "--gpu 2"]),
        ("n1:AA,h100 n2:..,a100", "", "C:1x2h100", ["--gpu 2"]),
        ("n1:aa,cpu=4 A,cpu=3", "", "C:1x0,cpu=2", ["--cpu 1"]),
        ("n1:AA.. A,q=q", "q=3,borrow=0", "C:1x2,q=q", ["--gpu 1", "--queue default"]),
        ("n1:AA.. A,q=q", "q=2,borrow=0 p=2", "A1:1x1,q=p; C:1x1,q=q", ["--queue p"]),
        ("n1:....", "q=,user_time=1h", "C:1x4,q=q,time=2h", ["--time 60m", "--queue default"]),
        ("n1:A...,mem=8 A,mem=6", "", "C:1x1,mem=4", ["--memory 2Gi"]),
        ("n1:A.......,cpu=8 A,cpu=6", "", "C:1x2,cpu=4", ["--cpu 2"]),
        ("n1:A...,h100 n2:..,a100", "", "C:1x4h100", ["--gpu h100:3"]),
        ("n1:AAA. n2:BBB.", "", "C:2x2,cpu=40", ["--gpu 1"]),
        ("n1:AAA. n2:BBBB", "", "C:2x2", ["--nodes 1 --gpu 1 --cpu 1"]),
        ("n1:AAAA", "", "C:1x4", []),
        ("n1:AA.. n2:....", "", "S:2x4; +31m; C:1x4", ["--priority 100"]),
        ("n1:AA.. n2:.... n3:..", "", "S:2x4; +31m; C:1x3", ["--gpu 2", "--priority 100"]),
        ("n1:A...", "", "restart; C:1x4", []),
    ],
)
def test_what_would_start_now(cluster: str, queues: str, happens: str, flags: list[str]) -> None:
    assert [change.flags for change in explained(cluster, queues, happens).changes] == flags


@pytest.mark.parametrize(
    ("cluster", "queues", "happens", "of_user", "of_administrator"),
    [
        ("n1:AA.. n2:....", "root=,user_prio=50", "S:2x4; +31m; C:1x4", ["--priority 50"], ["--priority 100"]),
        ("n1:AA.. n2:....", "root=,user_prio=500", "S:2x4; +31m; C:1x4", ["--priority 100"], ["--priority 100"]),
        ("n1:AA.. n2:....", "root=,user_prio=0", "S:2x4; +31m; C:1x4", [], ["--priority 100"]),
        ("n1:AA.. n2:....", "root=,user_prio=50", "S:2x4,prio=60; +31m; C:1x4", [], ["--priority 100"]),
        ("n1:A.", "q=0,borrow=0 p=,user_prio=5", "C:1x1,q=q,prio=7", ["--queue default"], ["--queue default"]),
        ("n1:A.", "q=0,borrow=0 default=0,borrow=0 p=,user_prio=5", "C:1x1,q=q,prio=7", [], ["--queue p"]),
        ("n1:A.", "q=0,borrow=0 default=0,borrow=0 p=,user_prio=5", "C:1x1,q=q,prio=5", ["--queue p"], ["--queue p"]),
    ],
)
def test_what_would_start_now_is_what_the_reader_may_ask_for(
    cluster: str, queues: str, happens: str, of_user: list[str], of_administrator: list[str]
) -> None:
    for is_administrator, flags in ((False, of_user), (True, of_administrator)):
        explanation = explained(cluster, queues, happens, is_administrator=is_administrator)
        assert [change.flags for change in explanation.changes] == flags, is_administrator


@pytest.mark.parametrize(
    ("cluster", "queues", "happens"),
    [
        ("n1:A.", "q=0,borrow=0", "C:1x1,q=q"),
        ("n1:A.", "", "C:2x1"),
        ("n1:. n2:.", "", "C:1x1,rules=ecc:exclude_node; fails C signal ecc; gone C; cordon n2; +10m"),
    ],
)
def test_remedies_are_what_the_reader_may_do(cluster: str, queues: str, happens: str) -> None:
    for_user, for_administrator = (
        explained(cluster, queues, happens, is_administrator=is_administrator).reason
        for is_administrator in (False, True)
    )
    assert for_user
    assert for_administrator
    assert for_user.code == for_administrator.code
    assert "ask an administrator" in for_user.remedy
    assert "ganger queue set" not in for_user.remedy
    assert "ask an administrator" not in for_administrator.remedy


def test_where_nothing_helps_the_smallest_form_is_the_proof() -> None:
    explanation = explained("n1:AAAA n2:BBBB", "", "C:2x4")
    assert explanation.changes == ()
    assert explanation.smallest_tried == (
        "no smaller form of it would start now, not even 1 node with 1 GPU: "
        "waiting for 1 node with 1 free GPU: 0 nodes free now; held by A, B"
    )
    assert explained("n1:AA.. n2:BB..", "", "C:2x4").smallest_tried == ""
    assert explained("n1:AAAA", "", "C:1x1").smallest_tried == ""


def test_position_is_among_the_queue() -> None:
    explanation = explained("n1:AAAA", "q=", "E:1x4,q=q D:1x4; C:1x4,prio=-1; B:1x4,prio=high")
    assert (explanation.position, explanation.pending) == (3, 3)


def test_a_gang_that_does_not_wait() -> None:
    explanation = explained("n1:AA n2:AA n3:AA n4:AA n5:AA", "", "C:1x1", gang="A")
    assert explanation.sentence == "A is not waiting: it is running (attempt 1) on n1, n2, n3, n4 and 1 more"


def test_where() -> None:
    explanation = explained("r1/n1:AA.. r1/n2:.... r2/n3:BBBB r3/n4:. A,time=1h", "", "cordon n3; C:2x3")
    assert explanation.domains == (
        "r1: 1 of 2 nodes have 3 free GPUs, 3 free CPUs; A (ends in at most 1h 00m)",
        "r2: 0 of 1 nodes have 3 free GPUs, 3 free CPUs; B (no time limit); n3 is cordoned",
    )


def test_where_names_those_that_hold_what_is_short() -> None:
    explanation = explained("r1/n1:gA... r1/n2:BBBB r2/n3:DDDD G,time=1h", "", "C:1x4")
    assert (
        explanation.domains[0] == "r1: 0 of 2 nodes have 4 free GPUs, 4 free CPUs; A (no time limit); B (no time limit)"
    )


def test_where_tells_of_maintenance() -> None:
    explanation = explained("r1/n1:.. r1/n2:.. r2/n3:..", "", "maintain n1+n3 1h 2h; maintain n2 0s 30m; C:3x2,time=2h")
    first, second = explanation.domains
    assert first == (
        "r1: 2 of 2 nodes have 2 free GPUs, 2 free CPUs; 1 of them goes into maintenance m1 in 1h 00m; "
        "1 of them is in maintenance m2 for 30m 00s more"
    )
    assert second == "r2: 1 of 1 nodes have 2 free GPUs, 2 free CPUs; 1 of them goes into maintenance m1 in 1h 00m"


def test_quota_line() -> None:
    explanation = explained("n1:AA.. A,q=q", "q=3,borrow=0", "C:1x2,q=q")
    assert explanation.quota == "queue q: 2 of 3 guaranteed GPUs used, limit 3"
    explanation = explained("n1:AAA.", "", "C:1x2")
    assert explanation.quota == "queue default: 3 GPUs used, no quota; not what it waits for"


def test_nodes_that_rules_exclude() -> None:
    happens = "C:2x2,rules=ecc:exclude_node; fails C signal ecc n2; gone C; +1s"
    alone = explained("n1:.. n2:..", "", happens)
    assert alone.sentence == (
        "needs 2 nodes with 2 free GPUs, 2 free CPUs: only 1 node in the cluster could hold it; "
        "its retry.rules exclude n2"
    )
    assert alone.reason
    assert "ganger clone C" in alone.reason.remedy
    assert alone.domains == ("cluster: 1 of 2 nodes have 2 free GPUs, 2 free CPUs; n2 is excluded by retry.rules[0]",)
    held = explained("n1:.. n2:.. n3:BB", "", happens)
    assert held.sentence == (
        "waiting for 2 nodes with 2 free GPUs: 1 node free now; held by B; its retry.rules exclude n2"
    )
    again = explained("n1:.. n2:.. n3:..", "", happens)
    assert again.sentence == (
        "C is not waiting: it is starting (attempt 2) on n1, n3; n2 is excluded by retry.rules[0]"
    )
