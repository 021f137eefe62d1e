"""Invariant 9: a promised start is kept, as long as everybody ends by their limit; backfill never delays it.

Jobs of drawn sizes, all with limits, some of them content with less time, in drawn queues on drawn nodes; each ends at
its limit or earlier. After every event a round; a promise may move to an earlier moment, never back, and its gang
starts by then. Only maintenance may move one back: one whose nodes it takes, or that stands behind somebody who had to
leave his nodes and starts again.
"""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.plan import held, plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.placement.start_check import ask
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.reservations import availability_profile
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.engine.loop import copy_of
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Moved, ReservedStart, Start, Stop
from ganger.model.job import GpuRequest, JobSpec, Limits, Resources
from ganger.model.queue import Amount, Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws
from tests.laws.policies import POLICIES

ROUNDS = 24
TRIED_EVERY = 20
"""In which rounds is looked at what tries leave behind: it takes as long as two more."""
RESERVING = [
    policy for policy in POLICIES.values() if policy.STARVES_AFTER_MS is not None and not policy.ORDERS_RUNNING
]


class Trustworthy:
    """A cluster on which nobody stays for longer than they said. ends: when each gang that runs really ends; promised:
    what each waiting gang was promised last; windows: maintenance, from the moment on at which it is told; news: that
    which was told since the round before."""

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...], chance: Random) -> None:
        self.policy, self.chance, self.state = policy, chance, State()
        self.now_ms, self.number = 1_000_000_000, 0
        self.ends: dict[str, int] = {}
        self.promised: dict[str, ReservedStart] = {}
        self.windows: dict[str, e.MaintenanceSet] = {}
        self.news: list[e.MaintenanceSet] = []
        for event in (*(e.QueueSet(queue=queue) for queue in queues), e.NodesListed(nodes=nodes, levels=draws.LEVELS)):
            self.apply(event)

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def submit(self, spec: JobSpec) -> None:
        self.number += 1
        self.apply(e.Submitted(job=draws.job(self.number, self.chance.choice(draws.USERS), spec)))

    def maintains(self) -> None:
        """It becomes known that some nodes are to be maintained, from now on or later."""
        self.number += 1
        names = self.state.nodes.names
        nodes = tuple(sorted(self.chance.sample(names, self.chance.randint(1, max(1, len(names) // 2)))))
        from_ms = self.now_ms + self.chance.choice((0, 1, 7 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS))
        until_ms = from_ms + self.chance.choice((1, 7 * MINUTE_MS, 2 * HOUR_MS))
        told = e.MaintenanceSet(id=f"m{self.number}", nodes=nodes, from_ms=from_ms, until_ms=until_ms)
        if refusal(self.state, told) is None:
            self.windows[told.id] = told
            self.news.append(told)
            self.apply(told)

    def _next_ms(self) -> int | None:
        """When somebody ends, or a maintenance begins or does."""
        moments = [ms for window in self.windows.values() for ms in (window.from_ms, window.until_ms)]
        return min((ms for ms in (*self.ends.values(), *moments) if ms > self.now_ms), default=None)

    def ends_next(self) -> None:
        """Time goes on to the next end, and whoever is due ends."""
        self.now_ms = self._next_ms() or self.now_ms + MINUTE_MS
        for name in [name for name, end_ms in self.ends.items() if end_ms <= self.now_ms]:
            del self.ends[name]
            gang = self.state.gangs[name]
            for kind in (e.Finished, e.Cleared):
                self.apply(kind(gang=name, generation=gang.generation, nodes=tuple(gang.left)))

    def passes(self) -> None:
        """A part of the time until then."""
        left_ms = (self._next_ms() or self.now_ms + 2) - self.now_ms
        self.now_ms += self.chance.randrange(max(1, left_ms))

    def round(self) -> None:
        """What is due now is decided; who has to leave his nodes is gone at once."""
        while True:
            anew = plan(copy_of(self.state), self.now_ms, self.policy)
            planned = plan(self.state, self.now_ms, self.policy)
            assert planned == anew, "what earlier rounds found makes no difference"
            before = [name for name, gang in self.state.gangs.items() if gang.generation]
            if planned.decisions:
                self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
            again = [each.gang for each in planned.decisions if isinstance(each, Start) and each.gang in before]
            leaving = [each.gang for each in planned.decisions if isinstance(each, Stop)]
            for decision in planned.decisions:
                if isinstance(decision, Start):
                    self._starts(decision)
                elif isinstance(decision, ReservedStart):
                    self._is_promised(decision, {Moved.RESTARTED: again, Moved.OVERRUN: leaving})
            self.state.validate()
            self.news.clear()
            if not leaving:
                break
            for name in leaving:
                self._leaves(name)
        if self.state.promises and self.state.seq % TRIED_EVERY == 0:
            assert self._leaves_to_others(after_tries=True) == self._leaves_to_others(after_tries=False)
        late = [name for name, told in self.promised.items() if _by_ms(told) < self.now_ms]
        assert not late, f"{late} were promised a start by now, and wait"

    def _leaves_to_others(self, *, after_tries: bool) -> list[object]:
        """What promises leave for gangs such as these are of: the same after those had a turn that did not start."""
        with held(self.state, self.now_ms, self.policy) as (now, _):
            laid = now.promises.laid
            gangs = [each.gang for each in laid.in_order()]

            def left() -> list[object]:
                shapes = [gang.shape.parts for gang in gangs]
                kept = [laid.kept_until(self.now_ms + HOUR_MS, parts) for parts in shapes]
                return [*map(laid.longest_ms, shapes), *([column.tolist() for column in each] for each in kept)]

            for gang in gangs if after_tries else ():
                left()
                now.promises.start(gang, ask(gang))
            return left()

    def _leaves(self, name: str) -> None:
        gang = self.state.gangs[name]
        away = [node for each in self.windows.values() if each.from_ms <= self.now_ms for node in each.nodes]
        assert not {*gang.left}.isdisjoint(away), f"{name} is stopped, and need not leave"
        del self.ends[name]
        self.apply(e.Cleared(gang=name, generation=gang.generation, nodes=tuple(gang.left)))

    def _starts(self, start: Start) -> None:
        told = self.promised.pop(start.gang, None)
        assert told is None or self.now_ms <= _by_ms(told), f"{start.gang} starts late"
        gang = self.state.gangs[start.gang]
        limits = gang.job.spec.limits
        all_ms = limits.time_ms or 0
        limit_ms = all_ms if start.time_ms is None else start.time_ms
        assert start.time_ms is None or (limits.time_min_ms or all_ms) <= limit_ms < all_ms, "it asked for another time"
        left_ms = max(1, limit_ms - gang.ran_ms)
        self.ends[start.gang] = self.now_ms + self.chance.choice((left_ms, left_ms, 1 + self.chance.randrange(left_ms)))

    def _is_promised(self, told: ReservedStart, excuses: dict[Moved, list[str]]) -> None:
        """A promise is moved back, or is late, only where its nodes are to be maintained, or somebody has to leave his
        for that, or starts again."""
        assert told.start_ms is not None, f"{told.gang} was promised a start, and is promised none now"
        before = self.promised.get(told.gang)
        if before is not None and (told.start_ms > _by_ms(before) or told.start_ms <= self.now_ms):
            excused = self._covered(before) if told.cause is Moved.MAINTENANCE else excuses.get(told.cause)
            assert excused, f"{told.gang} is to start later: {told.cause}"
        self.promised[told.gang] = replace(told, start_ms=None) if told.start_ms <= self.now_ms else told

    def _covered(self, promise: ReservedStart) -> list[str]:
        """Maintenance that has just become known, of its nodes and in its time."""
        gang = self.state.gangs[promise.gang]
        begin_ms = _by_ms(promise)
        end_ms = begin_ms + max(1, (gang.time_ms or 0) - gang.ran_ms)
        met = [each for each in self.news if each.from_ms < end_ms and begin_ms < each.until_ms]
        return [node for each in met for node in each.nodes if node in promise.nodes]


def _by_ms(told: ReservedStart) -> int:
    """By when it was promised; one that is late, for a cause that was told, has no such moment."""
    return NEVER_MS if told.start_ms is None else told.start_ms


def _limited(spec: JobSpec, limit_ms: int, least_ms: int | None) -> JobSpec:
    least_ms = None if least_ms is None else min(least_ms, limit_ms)
    return replace(spec, limits=Limits(time_ms=limit_ms, time_min_ms=least_ms), priority=0, array=None)


def a_life(policy: Policy, data: st.DataObject, *, maintained: bool) -> None:
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
        elif happens < 0.6 and maintained:
            world.maintains()
        elif happens < 0.8:
            world.ends_next()
        else:
            world.passes()
        world.round()


@pytest.mark.parametrize("policy", RESERVING, ids=[policy.NAME for policy in RESERVING])
@given(data=st.data())
def test_invariant_9_a_promised_start_is_kept(policy: Policy, data: st.DataObject) -> None:
    a_life(policy, data, maintained=False)


@pytest.mark.parametrize("policy", RESERVING, ids=[policy.NAME for policy in RESERVING])
@given(data=st.data())
def test_invariant_9_where_nodes_are_maintained(policy: Policy, data: st.DataObject) -> None:
    a_life(policy, data, maintained=True)


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
        patch.setattr(availability_profile, "MOST_CELLS", 0)
        a_life(POLICIES["dynamic"], data, maintained=data.draw(st.booleans()))
