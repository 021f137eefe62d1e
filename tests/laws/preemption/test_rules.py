"""Laws of preemption by the rules of the policy document, on small clusters where everybody wants more than there is.

The oracle counts GPUs of jobs that have nothing but GPUs, on nodes of one kind, in queues below the root.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.preemption.legality import Legality
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Plan, PreemptionRule, Start, Stop
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import ALL, FAIR_SHARE, GUARANTEE, NONE, QUEUE, Preemption
from ganger.model.queue import Amount, Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.examples import examples
from tests.laws import draws
from tests.laws.policies import POLICIES
from tests.laws.world import World

GPUS = 4
MAX_ROUNDS = 60


@dataclass
class Contest:
    """A world with jobs of several queues, what was decided in it, and when each job that runs was started.

    owners: since when others were stopped for a job by the guarantee of its queue.
    """

    world: World
    began: dict[str, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    preempted: dict[str, list[int]] = field(default_factory=dict)
    evictions: list[Stop] = field(default_factory=list)

    def cycle(self) -> Plan:
        """Run a cycle, check what it preempts, and take in what it decides."""
        running = {name: ms for name, ms in self.began.items() if name in self.world.raw.starts}
        pending = [name for name in self.world.raw.jobs if name not in self.world.raw.starts]
        leaving = self._leaving()
        self._remembers_what_is_legal(pending)
        planned = self.world.run_cycle()
        stops = [d for d in planned.decisions if isinstance(d, Stop) and d.cause is Cause.PREEMPTED]
        for stop in stops:
            self._is_legal(stop, stops, running, leaving)
            assert stop.preemptor in pending, "the preemptor waits"
            start = self.world.state.reservations[stop.preemptor]
            assert start.start_ms is not None
            assert start.start_ms <= self.world.now_ms + 11 * MINUTE_MS, "what comes free is the preemptor's"
        if len({stop.preemptor for stop in stops}) == 1 and len(self.world.state.reservations) == 1:
            self._is_minimal(stops, {*leaving})
        self._are_few(stops)
        started = {d.gang: self.world.now_ms for d in planned.decisions if isinstance(d, Start)}
        self._come_closer(stops, running | started, leaving)
        self.evictions += stops
        for stop in stops:
            self.preempted.setdefault(stop.gang, []).append(self.world.now_ms)
            self.owners.pop(stop.gang, None)
            if stop.rule is PreemptionRule.GUARANTEE:
                self.owners.setdefault(stop.preemptor, self.world.now_ms)
        self.began |= started
        return planned

    def _remembers_what_is_legal(self, pending: list[str]) -> None:
        """Check what cycles remember of the queues, and the bound of what victims hold, against all victims anew."""
        state, rules = self.world.state, self.world.state.document.preemption
        for name in pending:
            remembered = Legality(state, self.world.now_ms, rules).victims(state.gangs[name])
            most_gpu_milli = Legality(state, self.world.now_ms, rules).most_gpu_milli(state.gangs[name])
            state.quota_charges.beyond.clear()
            state.quota_charges.reclaimable.clear()
            assert remembered == Legality(state, self.world.now_ms, rules).victims(state.gangs[name])
            assert most_gpu_milli >= sum(state.quota_charges[victim][0] for victim in remembered)

    def _leaving(self) -> dict[str, None]:
        newest = {name: self.world.raw.generations[name] for name in self.world.raw.starts}
        return {stop.gang: None for stop in self.evictions if stop.generation == newest.get(stop.gang)}

    def _is_legal(self, stop: Stop, stops: list[Stop], running: dict[str, int], leaving: Collection[str]) -> None:
        rules, jobs = self.world.state.document.preemption, self.world.raw.jobs
        victim, preemptor = jobs[stop.gang], jobs[stop.preemptor]
        staying = [name for name in running if name not in leaving]
        assert stop.gang in staying, "it runs, and does not leave already"
        kept_ms = max(rules.min_run_ms, rules.cooldown_ms if stop.gang in self.preempted else 0)
        assert self.world.now_ms - self.began[stop.gang] >= kept_ms
        assert victim.spec.preemptible
        same = victim.spec.queue == preemptor.spec.queue
        assert same or stop.gang not in self._within_guarantee(victim.spec.queue, staying)
        if stop.rule is PreemptionRule.GUARANTEE:
            # What others of the queue were promised in this cycle, and before it, is used too.
            owners = [stop.preemptor for stop in stops if stop.rule is PreemptionRule.GUARANTEE]
            counted = {stop.preemptor: None, **running, **dict.fromkeys(owners)}
            used = sum(self._gpus(name) for name in counted if jobs[name].spec.queue == preemptor.spec.queue)
            assert rules.reclaim in (GUARANTEE, FAIR_SHARE)
            assert not same
            assert used <= self._guarantee(preemptor.spec.queue)
        elif stop.rule is PreemptionRule.FAIR_SHARE:
            assert rules.reclaim == FAIR_SHARE
            assert not same
        else:
            assert rules.priority == ALL or (rules.priority == QUEUE and same)
            assert preemptor.spec.priority - victim.spec.priority >= rules.priority_gap

    def _are_few(self, stops: list[Stop]) -> None:
        """Check that no queue loses more jobs within an hour than it may; one that is preempted again counts again."""
        most, since_ms = self.world.state.document.preemption.max_per_hour, self.world.now_ms - HOUR_MS
        queue_of = {name: job.spec.queue for name, job in self.world.raw.jobs.items()}
        for queue in {queue_of[stop.gang] for stop in stops} if most is not None else ():
            own = [times_ms for name, times_ms in self.preempted.items() if queue_of.get(name) == queue]
            lately = sum(at_ms > since_ms for times_ms in own for at_ms in times_ms)
            assert lately + sum(queue_of[stop.gang] == queue for stop in stops) <= most

    def _come_closer(self, stops: list[Stop], running: dict[str, int], leaving: Collection[str]) -> None:
        """Check that no queue that is reclaimed from by its share has less than the other one afterwards.

        The queues are below the root, with equal weights, of jobs with nothing but GPUs.
        """
        jobs, gone, gaining = self.world.raw.jobs, {*leaving}, dict[str, None]()
        owners = {name: None for name, start in self.world.state.reservations.items() if start.owned}
        held: dict[str, int] = {}
        for preemptor in dict.fromkeys(stop.preemptor for stop in stops):
            own = [stop for stop in stops if stop.preemptor == preemptor]
            gone |= {stop.gang for stop in own}
            gaining |= dict.fromkeys((*owners, preemptor))
            counted = [name for name in {**running, **gaining} if name not in gone]
            for queue in "abc":
                held[queue] = sum(self._gpus(name) for name in counted if jobs[name].spec.queue == queue)
            for stop in own if own[0].rule is PreemptionRule.FAIR_SHARE else ():
                if stop.rule is PreemptionRule.FAIR_SHARE:
                    assert held[jobs[preemptor].spec.queue] <= held[jobs[stop.gang].spec.queue]

    def _is_minimal(self, stops: list[Stop], leaving: set[str]) -> None:
        gone = leaving | {stop.gang for stop in stops}
        for stop in stops:
            assert not self._fits(stop.preemptor, gone - {stop.gang}), f"{stop.gang} need not be stopped"
        assert self._fits(stops[0].preemptor, gone)

    def _fits(self, name: str, gone: Collection[str]) -> bool:
        """Return whether a pending job has room, without those that go but beside what started in the same cycle."""
        free = dict.fromkeys(self.world.raw.nodes, GPUS)
        for other, start in self.world.raw.starts.items():
            for share in start.shares:
                free[share.node] -= len(share.devices) * (other not in gone)
        spec = self.world.raw.jobs[name].spec
        assert spec.resources.gpu is not None
        return sum(amount >= spec.resources.gpu.count for amount in free.values()) >= spec.nodes

    def _within_guarantee(self, queue: str, staying: list[str]) -> dict[str, None]:
        left, within = self._guarantee(queue), dict[str, None]()
        numbers = {name: self.world.state.gangs[name].number for name in staying}
        for name in sorted(staying, key=lambda name: (self.owners.get(name, self.began[name]), numbers[name])):
            if self.world.raw.jobs[name].spec.queue == queue and self._gpus(name) <= left:
                left -= self._gpus(name)
                within[name] = None
        return within

    def _guarantee(self, queue: str) -> int:
        return self.world.state.document.queues[queue].nominal.gpus or 0

    def _gpus(self, name: str) -> int:
        spec = self.world.raw.jobs[name].spec
        return spec.nodes * spec.resources.gpu.count if spec.resources.gpu else 0


@st.composite
def contests(draw: st.DrawFn) -> Contest:
    """Draw a cluster, guarantees that it can keep, and rules."""
    count = draw(st.integers(2, 4), label="nodes")
    nodes = tuple(Node(name=f"n{index}", gpus=GPUS, cpu_milli=64_000, memory_bytes=1 << 40) for index in range(count))
    shares = draw(st.permutations((count, count * GPUS // 2, 0)))
    queues = tuple(Queue(name=name, nominal=Amount(gpus=share)) for name, share in zip("abc", shares, strict=True))
    world = World(POLICIES["dynamic"], nodes, queues)
    rules = Preemption(
        reclaim=(reclaim := draw(st.sampled_from((GUARANTEE, FAIR_SHARE, FAIR_SHARE, NONE)), label="reclaim")),
        priority=draw(st.sampled_from((NONE, QUEUE, QUEUE if reclaim == FAIR_SHARE else ALL)), label="priority"),
        priority_gap=draw(st.sampled_from((1, 20))),
        min_run_ms=draw(st.sampled_from((0, 5 * MINUTE_MS))),
        cooldown_ms=draw(st.sampled_from((0, 8 * MINUTE_MS))),
        max_per_hour=draw(st.sampled_from((None, None, 2))),
    )
    document = replace(world.state.document, preemption=rules)
    assert world.try_event(e.PolicySet(document=document, version=world.state.policy_version + 1))
    return Contest(world)


specs = st.builds(
    JobSpec,
    run=st.just("train"),
    queue=st.sampled_from("abc"),
    priority=st.sampled_from((0, 0, 10, 30)),
    preemptible=st.sampled_from((True, True, True, False)),
    nodes=st.sampled_from((1, 1, 2, 3)),
    resources=st.builds(Resources, gpu=st.builds(GpuRequest, count=st.integers(1, GPUS))),
    limits=st.builds(Limits, time_ms=st.sampled_from((None, HOUR_MS, 9 * HOUR_MS))),
    checkpoint=st.sampled_from((None, Checkpoint(dir="ckpt", grace_ms=MINUTE_MS))),
)


def submit(contest: Contest, data: st.DataObject) -> None:
    """Submit some jobs."""
    for _ in range(data.draw(st.integers(1, 4), label="jobs")):
        contest.world.steps += 1
        spec = data.draw(specs)
        contest.world.submit(draws.job(contest.world.steps, data.draw(st.sampled_from(draws.USERS)), spec))


def settle(contest: Contest) -> None:
    """Let all that leaves leave, until nothing changes; each preemptor starts before another cycle stops anybody."""
    world = contest.world
    for _ in range(MAX_ROUNDS):
        world.confirm_starts()
        before = len(contest.evictions)
        planned = contest.cycle()
        while world.is_due():
            planned = contest.cycle()
        preempted = contest.evictions[before:]
        world.clear_leaving()
        if preempted:
            started = [d.gang for d in contest.cycle().decisions if isinstance(d, Start)]
            assert {stop.preemptor for stop in preempted} <= {*started}, "the preemptors have what came free"
            continue
        if not any(isinstance(d, Start | Stop) for d in planned.decisions):
            return
    raise AssertionError("jobs are preempted for ever")


@examples(gate=20, otherwise=4 * settings().max_examples)
@given(contest=contests(), data=st.data())
def test_what_is_preempted_is_legal_and_needed_and_its_preemptor_starts(contest: Contest, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4), label="rounds")):
        submit(contest, data)
        before = len(contest.evictions)
        settle(contest)
        pairs = {(stop.preemptor, stop.gang) for stop in contest.evictions[before:]}
        assert not [pair for pair in pairs if pair[::-1] in pairs], "none that was stopped for another stops that one"
        contest.world.now_ms += data.draw(st.sampled_from((0, MINUTE_MS, 10 * MINUTE_MS)), label="pause")
        if contest.world.raw.starts and data.draw(st.booleans(), label="one ends"):
            contest.world.finish(data.draw(st.sampled_from(sorted(contest.world.raw.starts))))
