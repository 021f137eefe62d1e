"""On a large cluster a cycle makes a reservation for the first gang of one queue.

Every queue gets its own soon, in an order that the state decides.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import Policy, reservation_limits
from ganger.core.reservations import queue_rotation
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Decision, Plan, ReservedStart, Wait
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import Reservations
from ganger.model.queue import Queue
from ganger.model.units import HOUR_MS
from tests.laws import draws
from tests.laws.policies import FEWER_EXAMPLES, POLICIES

NODES = 4
QUEUES = ("a", "b", "c", "d", "e")
BY_DOCUMENT = [
    policy
    for policy in POLICIES.values()
    if policy.FIXED_RESERVATIONS is None
    and reservation_limits(policy, State().document) is not None
    and not policy.STRICT_ORDER
]
"""Policies for which the policy document limits the number of reservations."""


class FullCluster:
    """Nodes that one gang holds for an hour, while gangs of drawn sizes wait in drawn queues."""

    def __init__(self, policy: Policy, total: int | None) -> None:
        self.policy, self.state, self.now_ms, self.jobs = policy, State(), 1_000_000_000, 0
        for name in reversed(QUEUES):
            self.apply(e.QueueSet(queue=Queue(name=name)))
        nodes = (Node(name=f"n{index}", gpus=1, cpu_milli=64_000, memory_bytes=1 << 36) for index in range(NODES))
        self.apply(e.NodesListed(nodes=tuple(nodes)))
        document = replace(self.state.document, reservations=Reservations(total=total))
        self.apply(e.PolicySet(document=document, version=self.state.policy_version + 1))
        self.submit(QUEUES[0], NODES)
        self.decide(self.plan())

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def submit(self, queue: str, nodes: int) -> None:
        resources = Resources(gpu=GpuRequest(count=1), cpu_milli=1)
        spec = JobSpec(run="x", queue=queue, nodes=nodes, resources=resources, limits=Limits(time_ms=HOUR_MS))
        self.jobs += 1
        self.apply(e.Submitted(job=draws.job(self.jobs, "ann", spec)))

    def plan(self) -> Plan:
        return plan(self.state, self.now_ms, self.policy)

    def decide(self, planned: Plan) -> None:
        self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))

    def runs_on(self) -> None:
        """Report a step of the gang that holds the nodes, which does not affect pending gangs."""
        self.apply(e.Progressed(gang="j1", generation=1, step=self.state.seq))

    def reserved_queues(self) -> set[str]:
        return {self.state.gangs[name].queue for name in self.state.reservations}


def waiting_jobs() -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(1, NODES)), min_size=1, max_size=12)


@pytest.mark.parametrize("policy", BY_DOCUMENT, ids=[policy.NAME for policy in BY_DOCUMENT])
@FEWER_EXAMPLES
@given(data=st.data())
def test_every_queue_gets_a_reservation_though_nothing_happens(policy: Policy, data: st.DataObject) -> None:
    cluster = FullCluster(policy, total := data.draw(st.sampled_from((None, 20, 1, 2)), label="total"))
    jobs = data.draw(waiting_jobs(), label="jobs")
    for queue, nodes in jobs:
        cluster.submit(queue, nodes)
    queues = [*dict.fromkeys(queue for queue, _ in jobs)]
    planned, cycles = cluster.plan(), 1
    cluster.decide(planned)
    while planned.next_wake_ms == cluster.now_ms:
        planned, cycles = cluster.plan(), cycles + 1
        cluster.decide(planned)
    assert cycles <= len(queues), "each cycle that makes the next one due makes a reservation"
    # On a small cluster the policy's order decides who comes first, on a large one the age.
    assert len(cluster.reserved_queues()) == len(queues[:total])
    if queue_rotation.is_large_cluster(cluster.state):
        assert cluster.reserved_queues() == {*queues[:total]}


@pytest.mark.parametrize("policy", BY_DOCUMENT, ids=[policy.NAME for policy in BY_DOCUMENT])
@FEWER_EXAMPLES
@given(data=st.data())
def test_events_without_bearing_on_it_change_nothing_in_a_plan(policy: Policy, data: st.DataObject) -> None:
    cluster = FullCluster(policy, None)
    for queue, nodes in data.draw(waiting_jobs(), label="jobs"):
        cluster.submit(queue, nodes)
    before = cluster.plan()
    for _ in range(data.draw(st.integers(1, 17), label="events")):
        cluster.runs_on()
    after = cluster.plan()
    assert _acts(after.decisions) == _acts(before.decisions)
    assert any(isinstance(decision, ReservedStart) for decision in before.decisions)
    assert after.next_wake_ms == before.next_wake_ms


def _acts(decisions: tuple[Decision, ...]) -> list[Decision]:
    return [decision for decision in decisions if not isinstance(decision, Wait)]
