"""Published bugs of other schedulers in planning, by issue number, and what happens here."""

import sys
from types import FrameType

import pytest

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=[*POLICIES])
FAIR = ("priority", "fair_share", "dynamic")


@pytest.mark.parametrize("policy", ["las", "las that starves"])
def test_kueue_6947_a_head_that_can_never_start_evicts_no_gang(policy: str) -> None:
    """Preempt nothing for a head that no node could hold.

    In Kueue such a head evicted others again and again, and never started.
    """
    film = Film(POLICIES[policy], "n1:AAAA n2:BBBB", "")
    film.play("""S:3x4,prio=high    -> AAAA BBBB | S no_node
                 +2h                -> AAAA BBBB | S no_node
                 T:1x5,user=bob; +9h -> AAAA BBBB | S no_node, T no_node""")
    assert [gang.attempt.generation for gang in film.state.gangs.values() if gang.attempt.start] == [1, 1], (
        "no job was preempted"
    )


@pytest.mark.parametrize("policy", FAIR)
def test_kueue_6947_nor_does_it_hold_what_others_could_have(policy: str) -> None:
    """Reserve no room for a gang that cannot start, however long it waits, under an order without preemption."""
    film = Film(POLICIES[policy], "n1:AAAA n2:....", "")
    film.play("""S:3x4,prio=high      -> AAAA .... | S no_node
                 +9h; C:1x4,user=bob  -> AAAA CCCC | S no_node""")


@every_policy
def test_kueue_14570_two_in_one_round_never_get_the_same_nodes(policy: Policy) -> None:
    """Never allocate the same nodes twice in one cycle.

    In Kueue the heads of several queues were each given nodes by themselves and then admitted one after the other: two
    got the same nodes, and the second waited for them until a time-out.
    """
    film = Film(policy, "r1/n1:.... r1/n2:.... r2/n3:....", "q= p=")
    film.do("C:2x4,q=p,in=rack,must D:2x4,q=q,user=bob,in=rack,must E:1x4,user=cat")
    film.run_cycles()  # the state raises ValueError for a device that is allocated twice
    passes = "CCCC CCCC EEEE | D no_capacity"
    assert film.summary() == ("CCCC CCCC .... | D no_capacity, E reserved" if policy.STRICT_ORDER else passes)


@every_policy
def test_volcano_5174_nothing_is_planned_before_the_first_listing_is_whole(policy: Policy) -> None:
    """Plan nothing before the first complete listing.

    Volcano scheduled after a restart before its cache was full: it did not see what ran and gave the nodes to others.
    """
    film = Film(policy, "n1:AAAA n2:....", "")
    film.play("""restart; C:1x4 D:1x4 -> AAAA .... | C not_listed, D not_listed
                 +1m                  -> AAAA .... | C not_listed, D not_listed
                 list n1:.... n2:.... -> AAAA CCCC | D no_capacity""")


@pytest.mark.parametrize("policy", FAIR)
def test_kai_315_a_small_job_costs_no_look_at_the_whole_cluster(policy: str) -> None:
    """Start a small job without work proportional to the cluster.

    KAI took 2.3 s to start one small job on 4,000 nodes with 140,000 pods, 2.2 s of it to copy the cluster. Here a
    cycle makes as many function calls with ten times the nodes and gangs.
    """
    small, large = (_calls_to_start_one(POLICIES[policy], nodes) for nodes in (400, 4_000))
    assert large < 2 * small, f"{small} calls on 400 nodes, {large} on 4,000"


def _calls_to_start_one(policy: Policy, nodes: int) -> int:
    """Count the function calls of the cycle that starts one job of one GPU where all nodes but one are full."""
    state = State()

    def happens(event: e.Event) -> None:
        fold(state, e.Stamped(state.seq + 1, 1_000_000_000, event))

    def submits(name: str, count: int, gpus: int) -> None:
        gpu = GpuRequest(count=gpus)
        spec = JobSpec(run="x", nodes=count, resources=Resources(gpu=gpu, cpu_milli=gpus * 1000))
        happens(e.Submitted(job=Job(id=name, user="ann", spec=spec, origin=Origin(directory="/"))))

    def run_cycles() -> list[str]:
        planned = plan(state, 1_000_000_000, policy)
        happens(e.Decided(plan=planned, policy=policy.NAME, version="0"))
        return [decision.gang for decision in planned.decisions if isinstance(decision, Start)]

    listed = [
        Node(name=f"n{number}", domains=(f"r{number // 16}",), gpus=8, cpu_milli=64_000) for number in range(nodes)
    ]
    happens(e.NodesListed(nodes=tuple(listed)))
    for number in range(nodes // 8 - 1):
        submits(f"j{number}", 8, 8)
    run_cycles()
    submits("first", 1, 1)  # fills the caches for this kind of job
    assert run_cycles() == ["first"]
    submits("small", 1, 1)
    return _calls(run_cycles)


def _calls(cycle: object) -> int:
    count = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        started = cycle()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    assert started == ["small"]
    return count
