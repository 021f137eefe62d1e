"""What is expected of jobs without a limit is what their user's jobs took, and a promise moves back only for those that
took longer: invariant 9 where not everybody says how long they stay.

The oracle keeps every run time there ever was and takes the percentile by its definition.
"""

from collections import defaultdict
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.plan import plan
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.runtime_estimate import KEPT, LEAST
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Expect, Moved, ReservedStart, Start
from ganger.model.job import GangState, GpuRequest, Job, JobSpec, Limits, Resources
from ganger.model.queue import Amount, Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws
from tests.laws.policies import POLICIES
from tests.laws.safety import copy_of
from tests.laws.test_promises import Trustworthy

ROUNDS = 30
TIMES = (10 * MINUTE_MS, 10 * MINUTE_MS + 1, 30 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS)


class Unforeseen(Trustworthy):
    """A cluster on which some do not say how long they stay. took: every run time by user, and by queue and GPUs, in
    order; due_ms: when those that run are expected to end; late: whether anybody ever ran for longer; times:
    how long those run that do not say."""

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...], chance: Random) -> None:
        self.took: dict[str, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
        self.due_ms: dict[str, int] = {}
        self.began_ms: dict[str, int] = {}
        self.wake_ms: int | None = None
        self.late, self.times = False, TIMES[:3]
        super().__init__(policy, nodes, queues, chance)

    def says(self, job: Job) -> int | None:
        """How long a job is expected to run, by definition."""
        kinds = self.took[job.user]
        own = kinds[_alike(job)][-KEPT:]
        every = sorted(own if len(own) >= LEAST else [ms for times in kinds.values() for ms in times[-KEPT:]])
        if len(every) < LEAST:
            return None
        enough = next(ms for ms in every if 100 * sum(other <= ms for other in every) >= 90 * len(every))
        return enough + -enough % MINUTE_MS

    def round(self) -> None:
        """As many as are due at once."""
        self.wake_ms = self.now_ms
        while self.wake_ms == self.now_ms:
            planned = plan(self.state, self.now_ms, self.policy)
            if planned.decisions:
                self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
            for decision in planned.decisions:
                if isinstance(decision, Start):
                    self._starts(decision)
                elif isinstance(decision, ReservedStart):
                    self._is_promised(decision, {Moved.PREDICTED: ["somebody"] if self.late else []})
            self.state.validate()
            self.wake_ms = planned.next_wake_ms
        late = [told.gang for told in self.promised.values() if (told.start_ms or self.now_ms) < self.now_ms]
        assert not late, f"{late} were promised a start by now, and wait"
        for gang in self.state.gangs.values():
            if gang.state is GangState.PENDING and gang.job.spec.limits.time_ms is None:
                found = None if gang.expected is None else gang.expected.run_ms
                assert gang.id in self.state.promises or found == self.says(gang.job), f"{gang.id}: {found}"

    def apply(self, event: e.Event) -> None:
        if isinstance(event, e.Cleared):
            job = self.state.gangs[event.gang].job
            self.took[job.user][_alike(job)].append(self.now_ms - self.began_ms[event.gang])
            self.due_ms.pop(event.gang, None)
        if isinstance(event, e.Decided):
            for decision in event.plan.decisions:
                if isinstance(decision, Expect):
                    self._outlives(decision)
        super().apply(event)

    def has_past(self) -> None:
        """As many jobs as tell something of every user have ended, most of them soon."""
        for _ in range(LEAST):
            for user in draws.USERS:
                self.number += 1
                spec = JobSpec(run="x", resources=Resources(gpu=GpuRequest(count=1)))
                self.apply(e.Submitted(job=draws.job(self.number, user, spec)))
        while self.state.gangs:
            self.round()
            self.goes_on()
        self.times = TIMES

    def goes_on(self) -> None:
        """To the next end, or to the next moment at which a round is due."""
        end_ms = min(self.ends.values(), default=self.now_ms + MINUTE_MS)
        if self.wake_ms is None or end_ms <= self.wake_ms:
            self.ends_next()
        else:
            self.now_ms = self.wake_ms

    def passes(self) -> None:
        """A part of the time until then."""
        until_ms = min(self.ends.values(), default=self.now_ms + 2)
        until_ms = until_ms if self.wake_ms is None else min(until_ms, self.wake_ms)
        self.now_ms += self.chance.randrange(max(1, until_ms - self.now_ms))

    def _outlives(self, decision: Expect) -> None:
        assert self.due_ms[decision.gang] <= self.now_ms, f"{decision.gang} did not run for longer"
        assert decision.generation == self.state.gangs[decision.gang].generation
        self.due_ms[decision.gang] = self.began_ms[decision.gang] + decision.run_ms
        assert self.due_ms[decision.gang] > self.now_ms
        self.late = True

    def _starts(self, start: Start) -> None:
        gang = self.state.gangs[start.gang]
        self.began_ms[gang.id] = self.now_ms
        if gang.job.spec.limits.time_ms is not None:
            super()._starts(start)
            return
        told = self.promised.pop(gang.id, None)
        assert told is None or told.start_ms is None or self.now_ms <= told.start_ms, f"{gang.id} starts late"
        if gang.expected is not None:
            self.due_ms[gang.id] = self.now_ms + gang.expected.run_ms
        self.ends[gang.id] = self.now_ms + self.chance.choice(self.times)


def _alike(job: Job) -> tuple[str, int]:
    return job.spec.queue, job.spec.nodes * (job.spec.resources.gpu.count or 0)


@given(data=st.data())
def test_invariant_9_among_those_that_do_not_say_how_long_they_stay(data: st.DataObject) -> None:
    chance = data.draw(st.randoms(use_true_random=False))
    quota = data.draw(st.sampled_from(((), (Queue(name="q", nominal=Amount(gpus=6), borrowing=Amount(gpus=3)),))))
    nodes = tuple(Node(name=f"n{at}", gpus=4, cpu_milli=64_000, memory_bytes=1 << 36) for at in range(3))
    world = Unforeseen(POLICIES["dynamic"], nodes, quota, chance)
    world.has_past()
    for _ in range(ROUNDS):
        happens = chance.random()
        if happens < 0.5:
            gpu, count = GpuRequest(count=chance.choice((1, 2, 4))), chance.choice((1, 1, 1, 3))
            spec = JobSpec(run="x", nodes=count, resources=Resources(gpu=gpu))
            spec = replace(spec, queue=chance.choice(("default", *(queue.name for queue in quota))))
            world.submit(replace(spec, limits=Limits(time_ms=chance.choice((None, None, *TIMES)))))
        elif happens < 0.85:
            world.goes_on()
        else:
            world.passes()
        world.round()
    again = copy_of(world.state)
    assert again.history.runs() == world.state.history.runs()
