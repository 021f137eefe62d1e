"""Invariant 9 where not all jobs have time limits: predictions follow the user's past run times.

Only jobs that ran for longer than predicted postpone a reservation. The oracle keeps every run time and takes the
percentile by its definition.
"""

from collections import defaultdict
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.runtime_estimate import ESTIMATE_SAMPLES, MIN_SAMPLES
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Expect, ReservationCause, ReservedStart, Start
from ganger.model.job import GangState, GpuRequest, Job, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.queue import Amount, Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.examples import examples
from tests.laws import draws
from tests.laws.policies import POLICIES
from tests.laws.reservations.test_reservations import PunctualCluster
from tests.laws.safety import copy_of

CYCLES = 30
TIMES = (10 * MINUTE_MS, 10 * MINUTE_MS + 1, 30 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS)


class UnlimitedCluster(PunctualCluster):
    """A cluster on which some jobs have no time limit.

    Attributes:
        run_times: Every run time by user, and by queue and GPUs, in order.
        due_ms: When running gangs are predicted to end.
        is_late: Whether any gang ever ran for longer.
        times: Possible run times of gangs without a limit.
    """

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...], chance: Random) -> None:
        self.run_times: dict[str, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
        self.due_ms: dict[str, int] = {}
        self.began_ms: dict[str, int] = {}
        self.wake_ms: int | None = None
        self.is_late, self.times = False, TIMES[:3]
        super().__init__(policy, nodes, queues, chance)

    def predicted_ms(self, job: Job) -> int | None:
        """Return the predicted run time of a job by definition."""
        kinds = self.run_times[job.user]
        own = kinds[_history_key(job)][-ESTIMATE_SAMPLES:]
        times_ms = sorted(
            own if len(own) >= MIN_SAMPLES else [ms for times in kinds.values() for ms in times[-ESTIMATE_SAMPLES:]]
        )
        if len(times_ms) < MIN_SAMPLES:
            return None
        enough = next(ms for ms in times_ms if 100 * sum(other_ms <= ms for other_ms in times_ms) >= 90 * len(times_ms))
        return enough + -enough % MINUTE_MS

    def run_cycle(self) -> None:
        """Run as many cycles as are due at once."""
        self.wake_ms = self.now_ms
        while self.wake_ms == self.now_ms:
            planned = plan(self.state, self.now_ms, self.policy)
            if planned.decisions:
                self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
            for decision in planned.decisions:
                if isinstance(decision, Start):
                    self._record_start(decision)
                elif isinstance(decision, ReservedStart):
                    late = {ReservationCause.PREDICTED: ["a gang"] if self.is_late else []}
                    self._record_reservation(decision, late | self._precedence_excuses(decision, planned))
            self.state.validate()
            self.wake_ms = planned.next_wake_ms
        late = [
            reserved.gang for reserved in self.reserved.values() if (reserved.start_ms or self.now_ms) < self.now_ms
        ]
        assert not late, f"{late} had a reserved start by now, and are pending"
        for gang in self.state.gangs.values():
            if gang.state is GangState.PENDING and gang.job.spec.limits.time_ms is None:
                predicted_ms = None if gang.expected is None else gang.expected.run_ms
                assert gang.id in self.state.reservations or predicted_ms == self.predicted_ms(gang.job), (
                    f"{gang.id}: {predicted_ms}"
                )

    def apply(self, event: e.Event) -> None:
        if isinstance(event, e.Cleared):
            job = self.state.gangs[event.gang].job
            self.run_times[job.user][_history_key(job)].append(self.now_ms - self.began_ms[event.gang])
            self.due_ms.pop(event.gang, None)
        if isinstance(event, e.Decided):
            for decision in event.plan.decisions:
                if isinstance(decision, Expect):
                    self._record_prediction(decision)
        super().apply(event)

    def fill_history(self) -> None:
        """Let enough jobs of every user end, most of them soon, for predictions."""
        for _ in range(MIN_SAMPLES):
            for user in draws.USERS:
                self.number += 1
                spec = JobSpec(run="x", resources=Resources(gpu=GpuRequest(count=1)))
                self.apply(e.Submitted(job=draws.job(self.number, user, spec)))
        while self.state.gangs:
            self.run_cycle()
            self.advance()
        self.times = TIMES

    def advance(self) -> None:
        """Advance to the next end, or to the next time at which a cycle is due."""
        end_ms = min(self.ends.values(), default=self.now_ms + MINUTE_MS)
        if self.wake_ms is None or end_ms <= self.wake_ms:
            self.run_to_next_end()
        else:
            self.now_ms = self.wake_ms

    def pass_time(self) -> None:
        """Let a part of the time until then pass."""
        until_ms = min(self.ends.values(), default=self.now_ms + 2)
        until_ms = until_ms if self.wake_ms is None else min(until_ms, self.wake_ms)
        self.now_ms += self.chance.randrange(max(1, until_ms - self.now_ms))

    def _record_prediction(self, decision: Expect) -> None:
        assert self.due_ms[decision.gang] <= self.now_ms, f"{decision.gang} did not run for longer"
        assert decision.generation == self.state.gangs[decision.gang].attempt.generation
        self.due_ms[decision.gang] = self.began_ms[decision.gang] + decision.run_ms
        assert self.due_ms[decision.gang] > self.now_ms
        self.is_late = True

    def _record_start(self, start: Start) -> None:
        gang = self.state.gangs[start.gang]
        self.began_ms[gang.id] = self.now_ms
        if gang.job.spec.limits.time_ms is not None:
            super()._record_start(start)
            return
        reserved = self.reserved.pop(gang.id, None)
        assert reserved is None or reserved.start_ms is None or self.now_ms <= reserved.start_ms, (
            f"{gang.id} starts late"
        )
        if gang.expected is not None:
            self.due_ms[gang.id] = self.now_ms + gang.expected.run_ms
        self.ends[gang.id] = self.now_ms + self.chance.choice(self.times)


def _history_key(job: Job) -> tuple[str, int]:
    return job.spec.queue, job.spec.nodes * (job.spec.resources.gpu.count or 0)


@examples(gate=10)
@given(data=st.data())
def test_invariant_9_among_jobs_without_a_time_limit(data: st.DataObject) -> None:
    chance = data.draw(st.randoms(use_true_random=False))
    quota = data.draw(st.sampled_from(((), (Queue(name="q", nominal=Amount(gpus=6), borrowing=Amount(gpus=3)),))))
    nodes = tuple(Node(name=f"n{index}", gpus=4, cpu_milli=64_000, memory_bytes=1 << 36) for index in range(3))
    world = UnlimitedCluster(POLICIES["dynamic"], nodes, quota, chance)
    world.fill_history()
    for _ in range(CYCLES):
        choice = chance.random()
        if choice < 0.5:
            gpu, count = GpuRequest(count=chance.choice((1, 2, 4))), chance.choice((1, 1, 1, 3))
            spec = JobSpec(run="x", nodes=count, resources=Resources(gpu=gpu))
            spec = replace(spec, queue=chance.choice(("default", *(queue.name for queue in quota))))
            world.submit(replace(spec, limits=Limits(time_ms=chance.choice((None, None, *TIMES)))))
        elif choice < 0.85:
            world.advance()
        else:
            world.pass_time()
        world.run_cycle()
    copied = copy_of(world.state)
    assert copied.history.runs() == world.state.history.runs()
