"""Invariant 9: a promised start is kept, as long as everybody ends by their limit; backfill never delays it.

Jobs of drawn sizes, all with limits, some of them content with less time, in drawn queues on drawn nodes; each ends at
its limit or earlier. After every event a round; a promise may move to an earlier moment, never back, and its gang
starts by then.
"""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core import profile
from ganger.core.plan import plan
from ganger.core.policy import Policy
from ganger.core.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Plan, Reserve, Start
from ganger.model.job import GpuRequest, JobSpec, Limits, Resources
from ganger.model.queue import Amount, Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws
from tests.laws.policies import POLICIES

ROUNDS = 24
RESERVING = [
    policy for policy in POLICIES.values() if policy.STARVES_AFTER_MS is not None and not policy.ORDERS_RUNNING
]


class Trustworthy:
    """A cluster on which nobody stays for longer than they said. ends: when each gang that runs really ends; promised:
    the moment that each waiting gang was promised last."""

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...], chance: Random) -> None:
        self.policy, self.chance, self.state = policy, chance, State()
        self.now_ms, self.number = 1_000_000_000, 0
        self.ends: dict[str, int] = {}
        self.promised: dict[str, int] = {}
        for event in (*(e.QueueSet(queue=queue) for queue in queues), e.NodesListed(nodes=nodes, levels=draws.LEVELS)):
            self.apply(event)

    def apply(self, event: e.Event) -> None:
        self.state.apply(e.Stamped(self.state.seq + 1, self.now_ms, event))

    def submit(self, spec: JobSpec) -> None:
        self.number += 1
        self.apply(e.Submitted(job=draws.job(self.number, self.chance.choice(draws.USERS), spec)))

    def ends_next(self) -> None:
        """Time goes on to the next end, and whoever is due ends."""
        self.now_ms = min(self.ends.values(), default=self.now_ms + MINUTE_MS)
        for name in [name for name, end_ms in self.ends.items() if end_ms <= self.now_ms]:
            del self.ends[name]
            gang = self.state.gangs[name]
            for kind in (e.Finished, e.Cleared):
                self.apply(kind(gang=name, generation=gang.generation, nodes=tuple(gang.left)))

    def passes(self) -> None:
        """A part of the time until then."""
        left_ms = min(self.ends.values(), default=self.now_ms + 2) - self.now_ms
        self.now_ms += self.chance.randrange(max(1, left_ms))

    def round(self) -> Plan:
        planned = plan(self.state, self.now_ms, self.policy)
        if planned.decisions:
            self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
        for decision in planned.decisions:
            if isinstance(decision, Start):
                self._starts(decision)
            elif isinstance(decision, Reserve):
                self._is_promised(decision)
        late = [name for name, by_ms in self.promised.items() if by_ms < self.now_ms]
        assert not late, f"{late} were promised a start by now, and wait"
        self.state.validate()
        return planned

    def _starts(self, start: Start) -> None:
        by_ms = self.promised.pop(start.gang, None) or self.promised.pop(start.gang.split("[")[0], None)
        assert by_ms is None or self.now_ms <= by_ms, f"{start.gang} starts late"
        limits = self.state.gangs[start.gang].job.spec.limits
        all_ms = limits.time_ms or 0
        limit_ms = all_ms if start.time_ms is None else start.time_ms
        assert start.time_ms is None or (limits.time_min_ms or all_ms) <= limit_ms < all_ms, "it asked for another time"
        self.ends[start.gang] = self.now_ms + self.chance.choice(
            (limit_ms, limit_ms, 1 + self.chance.randrange(limit_ms))
        )

    def _is_promised(self, promise: Reserve) -> None:
        assert promise.start_ms is not None, f"{promise.gang} was promised a start, and is promised none now"
        before_ms = self.promised.get(promise.gang)
        assert before_ms is None or promise.start_ms <= before_ms, f"{promise.gang} is to start later: {promise.cause}"
        self.promised[promise.gang] = promise.start_ms


def _limited(spec: JobSpec, limit_ms: int, least_ms: int | None) -> JobSpec:
    least_ms = None if least_ms is None else min(least_ms, limit_ms)
    return replace(spec, limits=Limits(time_ms=limit_ms, time_min_ms=least_ms), priority=0, array=None)


def a_life(policy: Policy, data: st.DataObject) -> None:
    queues = tuple(replace(q, user_limits=replace(q.user_limits, time_ms=None)) for q in data.draw(draws.queues()))
    chance = data.draw(st.randoms(use_true_random=False))
    world = Trustworthy(policy, data.draw(draws.nodes()), queues, chance)
    specs = draws.specs(tuple(world.state.queues))
    limits = st.sampled_from((MINUTE_MS, 7 * MINUTE_MS, HOUR_MS, HOUR_MS + 1, 5 * HOUR_MS))
    drawn = data.draw(st.lists(st.builds(_limited, specs, limits, st.none() | limits), min_size=2, max_size=8))
    for _ in range(ROUNDS):
        happens = chance.random()
        if happens < 0.5:
            world.submit(chance.choice(drawn))
        elif happens < 0.8:
            world.ends_next()
        else:
            world.passes()
        world.round()


@pytest.mark.parametrize("policy", RESERVING, ids=[policy.NAME for policy in RESERVING])
@given(data=st.data())
def test_invariant_9_a_promised_start_is_kept(policy: Policy, data: st.DataObject) -> None:
    a_life(policy, data)


LEASTS = (None, 5 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS)


@given(data=st.data())
def test_invariant_9_among_those_content_with_less_time(data: st.DataObject) -> None:
    """Small jobs that fill the holes before large ones: many of them start with less than all of their time."""
    chance = data.draw(st.randoms(use_true_random=False))
    quota = data.draw(st.sampled_from(((), (Queue(name="q", nominal=Amount(gpus=6), borrowing=Amount(gpus=3)),))))
    nodes = tuple(Node(name=f"n{at}", gpus=4, cpu_milli=64_000, memory_bytes=1 << 36) for at in range(3))
    world = Trustworthy(POLICIES["dynamic"], nodes, quota, chance)
    for _ in range(ROUNDS):
        if chance.random() < 0.6:
            gpu, count = GpuRequest(count=chance.choice((1, 2, 4))), chance.choice((1, 1, 2, 3))
            spec = JobSpec(run="x", nodes=count, resources=Resources(gpu=gpu))
            spec = replace(spec, queue=chance.choice(("default", *(queue.name for queue in quota))))
            limit_ms = chance.choice((HOUR_MS, 2 * HOUR_MS, 5 * HOUR_MS + 1))
            world.submit(_limited(spec, limit_ms, chance.choice(LEASTS)))
        elif chance.random() < 0.5:
            world.ends_next()
        else:
            world.passes()
        world.round()


@given(data=st.data())
def test_invariant_9_on_a_grid_too(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "MOST_CELLS", 0)
        a_life(POLICIES["dynamic"], data)
