"""Invariant 17: under an endless stream of small jobs every feasible job starts, if the policy guarantees it.

An array starts element by element.
"""

from dataclasses import replace
from random import Random

from hypothesis import assume
from hypothesis import strategies as st

from ganger import registry
from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import Array, GangState, GpuRequest, Job, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.queue import Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.policies import dynamic
from tests.laws import draws
from tests.laws.oracles.raw_facts import RawFacts
from tests.laws.policies import guaranteeing

TICK_MS = 10 * MINUTE_MS
LONGEST_TICKS = 5
SMALL_ONES_WAITING = 4
BOUND_TICKS = 300
"""A day, some hours until no newcomer precedes a job that is passed over, and the lengths of many jobs on top."""


class Stream:
    """A cluster on which every job runs for a while, and small ones are always pending."""

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...], chance: Random) -> None:
        self.policy, self.chance, self.state = policy, chance, State(find_score=registry.score)
        self.now_ms, self.number = 1_000_000_000, 0
        self.ends: dict[str, int] = {}
        self.oldest_started = 0
        """Number of the oldest job that the last tick started, or an element of; of the next job if it started none."""
        self.empty = RawFacts()
        for event in (*(e.QueueSet(queue=queue) for queue in queues), e.NodesListed(nodes=nodes, levels=draws.LEVELS)):
            self.apply(event)
            self.empty.apply(event)

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def submit(self, spec: JobSpec) -> str:
        """Submit a job of one of two users; return its id."""
        self.number += 1
        job = draws.job(self.number, self.chance.choice(draws.USERS), spec)
        self.apply(e.Submitted(job=job))
        return job.id

    def feasible(self, spec: JobSpec) -> bool:
        """Return whether a job could start on an empty cluster."""
        job = Job(id="j", user="ann", spec=spec, origin=draws.job(0, "ann", spec).origin)
        self.empty.rest["j"] = list(spec.array.indices) if spec.array else []
        return self.empty.fits(self.empty.wanted(job))

    def has_guarantee_before(self, spec: JobSpec, other: JobSpec) -> bool:
        """Return whether the queue of one job has a guarantee where its path parts from that of another job's queue."""
        branches = self.state.tree.branches(spec.queue, other.queue)
        return branches is not None and any(self.state.tree.guaranteed[branches[0]])

    def tick(self, small: list[JobSpec]) -> None:
        """Let ten minutes pass: some jobs end, some arrive, those that can start."""
        self.now_ms += TICK_MS
        for gang in [gang for gang, end_ms in self.ends.items() if end_ms <= self.now_ms]:
            del self.ends[gang]
            index = self.state.gangs[gang]
            self.apply(e.Finished(gang=gang, generation=index.attempt.generation, nodes=tuple(index.attempt.left)))
            self.apply(e.Cleared(gang=gang, generation=index.attempt.generation, nodes=tuple(index.attempt.left)))
        waiting = sum(gang.state is GangState.PENDING for gang in self.state.gangs.values())
        for _ in range(max(0, SMALL_ONES_WAITING - waiting)):
            self.submit(self.chance.choice(small))
        planned = plan(self.state, self.now_ms, self.policy)
        if planned.decisions:
            self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
        self.oldest_started = self.number + 1
        for decision in planned.decisions:
            if isinstance(decision, Start):
                self.oldest_started = min(self.oldest_started, _number(decision.gang))
                self.ends[decision.gang] = self.now_ms + TICK_MS * self.chance.randint(1, LONGEST_TICKS)


def _patient(spec: JobSpec) -> JobSpec:
    """Return the job without a limit to its wait, and with a run that is long enough."""
    return replace(spec, limits=Limits(time_ms=None if spec.limits.time_ms is None else HOUR_MS))


def _number(gang: str) -> int:
    """Return the number of a job, or of the job that a gang is an element of."""
    return int(gang.removeprefix("j").partition("[")[0])


def _plain(queue: str) -> JobSpec:
    """Return a job that requests next to nothing."""
    return JobSpec(run="train", queue=queue, resources=Resources(cpu_milli=500))


@guaranteeing("no_starvation", each=7, data=st.data())
def test_invariant_17_every_feasible_job_starts(policy: Policy, data: st.DataObject) -> None:
    stream = Stream(
        policy, data.draw(draws.nodes()), data.draw(draws.queues()), data.draw(st.randoms(use_true_random=False))
    )
    specs = draws.specs(tuple(stream.state.document.queues)).map(_patient)
    plain = [spec for spec in map(_plain, stream.state.document.queues) if stream.feasible(spec)]
    assume(plain)
    small = [spec for spec in data.draw(st.lists(specs, min_size=3, max_size=5)) if stream.feasible(spec)] or plain
    targets = [spec for spec in data.draw(st.lists(specs, min_size=1, max_size=2)) if stream.feasible(spec)] or plain
    # What another queue demands within its guarantee goes before a job for as long as there is any.
    targets = [spec for spec in targets if not any(stream.has_guarantee_before(other, spec) for other in small)]
    assume(targets)
    for _ in range(LONGEST_TICKS):
        stream.tick(small)
    _wait_for_starts(stream, small, [stream.submit(spec) for spec in targets])


def test_each_element_of_an_array_starts_behind_an_endless_stream_of_higher_priority() -> None:
    """Check an example that the law once found: elements start a day after each other, and each does start."""
    node = Node(name="n1", gpus=2, cpu_milli=64_000, memory_bytes=64)
    stream = Stream(dynamic, (node,), (), Random(0))
    hour = Limits(time_ms=HOUR_MS)
    small = [JobSpec(run="train", priority=100, resources=Resources(gpu=GpuRequest(count=1)), limits=hour)]
    part = Resources(gpu=GpuRequest(milli=300), cpu_milli=2_000)
    array = JobSpec(run="train", resources=part, array=Array(indices=(0, 3, 4, 7), limit=2), limits=hour)
    for _ in range(LONGEST_TICKS):
        stream.tick(small)
    _wait_for_starts(stream, small, [stream.submit(array)])


def _wait_for_starts(stream: Stream, small: list[JobSpec], waiting: list[str]) -> None:
    """Let time pass until jobs, with all elements, have started.

    A start of an older job, or of an element of the array itself, begins a new time of being passed over: otherwise a
    long array, or many jobs of one user, would have the cluster to itself after a day.
    """
    passed_over_ticks = 0
    while passed_over_ticks < BOUND_TICKS:
        waiting = [
            gang for gang in waiting if gang in stream.state.gangs and not stream.state.gangs[gang].attempt.generation
        ]
        if not waiting:
            return
        stream.tick(small)
        is_passed_over = stream.oldest_started > min(map(_number, waiting))
        passed_over_ticks = passed_over_ticks + 1 if is_passed_over else 0
    raise AssertionError(f"{waiting} did not start: passed over for {BOUND_TICKS} ticks")
