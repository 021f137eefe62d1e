"""Invariant 9: a reserved start is kept as long as all gangs end by their limit; backfill never delays it.

Jobs of drawn sizes in drawn queues on drawn nodes, all with limits, some content with less time; each ends at its limit
or earlier. A cycle follows every event. A reservation may move to an earlier start, never back, and its gang starts by
then. Only maintenance may postpone one: one whose nodes it takes, or that is behind a gang that had to leave its nodes
and starts again. A job of a higher priority, or of a queue within its guarantee, may move or end one for its own start
or reservation.
"""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan, simulated_cycle
from ganger.core.fold.fold import fold, refusal
from ganger.core.placement.start_check import start_request
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.reservations import availability_profile
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.engine.query.state_replica import copy_of
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Plan, ReservationCause, ReservedStart, Start, Stop
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import NONE, Preemption
from ganger.model.queue import Amount, Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.examples import examples
from tests.laws import draws
from tests.laws.oracles.precedence_oracle import Guarantees
from tests.laws.policies import POLICIES

CYCLES = 24
CHECK_EVERY = 20
"""Cycles after which the effects of tries are checked, which takes as long as two more cycles."""
RESERVING = [
    policy for policy in POLICIES.values() if policy.STARVATION_AGE_MS is not None and not policy.ORDERS_RUNNING
]


class PunctualCluster:
    """A cluster on which no gang stays beyond its limit, or is preempted.

    Attributes:
        ends: When each running gang really ends.
        reserved: The last reserved start of each pending gang.
        windows: Maintenance, once it is announced.
        news: Maintenance announced since the last cycle.
    """

    def __init__(self, policy: Policy, nodes: tuple[Node, ...], queues: tuple[Queue, ...], chance: Random) -> None:
        self.policy, self.chance, self.state = policy, chance, State()
        self.now_ms, self.number = 1_000_000_000, 0
        self.ends: dict[str, int] = {}
        self.reserved: dict[str, ReservedStart] = {}
        self.windows: dict[str, e.MaintenanceSet] = {}
        self.news: list[e.MaintenanceSet] = []
        document = replace(self.state.document, preemption=Preemption(reclaim=NONE, priority=NONE))
        self.apply(e.PolicySet(document=document, version=self.state.policy_version + 1))
        for event in (*(e.QueueSet(queue=queue) for queue in queues), e.NodesListed(nodes=nodes, levels=draws.LEVELS)):
            self.apply(event)

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def submit(self, spec: JobSpec) -> None:
        self.number += 1
        self.apply(e.Submitted(job=draws.job(self.number, self.chance.choice(draws.USERS), spec)))

    def plan_maintenance(self) -> None:
        """Announce maintenance of some nodes, from now on or later."""
        self.number += 1
        names = self.state.nodes.attributes.names
        nodes = tuple(sorted(self.chance.sample(names, self.chance.randint(1, max(1, len(names) // 2)))))
        from_ms = self.now_ms + self.chance.choice((0, 1, 7 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS))
        until_ms = from_ms + self.chance.choice((1, 7 * MINUTE_MS, 2 * HOUR_MS))
        window = e.MaintenanceSet(id=f"m{self.number}", nodes=nodes, from_ms=from_ms, until_ms=until_ms)
        if refusal(self.state, window) is None:
            self.windows[window.id] = window
            self.news.append(window)
            self.apply(window)

    def _next_ms(self) -> int | None:
        """Return when the next gang ends, or maintenance begins or ends."""
        times_ms = [ms for window in self.windows.values() for ms in (window.from_ms, window.until_ms)]
        return min((ms for ms in (*self.ends.values(), *times_ms) if ms > self.now_ms), default=None)

    def run_to_next_end(self) -> None:
        """Advance to the next end, and end the gangs that are due."""
        self.now_ms = self._next_ms() or self.now_ms + MINUTE_MS
        for name in [name for name, end_ms in self.ends.items() if end_ms <= self.now_ms]:
            del self.ends[name]
            gang = self.state.gangs[name]
            for kind in (e.Finished, e.Cleared):
                self.apply(kind(gang=name, generation=gang.attempt.generation, nodes=tuple(gang.attempt.left)))

    def pass_time(self) -> None:
        """Let a part of the time until then pass."""
        left_ms = (self._next_ms() or self.now_ms + 2) - self.now_ms
        self.now_ms += self.chance.randrange(max(1, left_ms))

    def run_cycle(self) -> None:
        """Run the cycles that are due; gangs that have to leave their nodes are gone at once."""
        while True:
            planned_by_copy = plan(copy_of(self.state), self.now_ms, self.policy)
            planned = plan(self.state, self.now_ms, self.policy)
            assert planned == planned_by_copy, "what earlier cycles found makes no difference"
            before = [name for name, gang in self.state.gangs.items() if gang.attempt.generation]
            if planned.decisions:
                self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
            restarted = [
                decision.gang
                for decision in planned.decisions
                if isinstance(decision, Start) and decision.gang in before
            ]
            leaving = [decision.gang for decision in planned.decisions if isinstance(decision, Stop)]
            for decision in planned.decisions:
                if isinstance(decision, Start):
                    self._record_start(decision)
                elif isinstance(decision, ReservedStart):
                    causes = {ReservationCause.RESTARTED: restarted, ReservationCause.OVERRUN: leaving}
                    self._record_reservation(decision, causes | self._precedence_excuses(decision, planned))
            self.state.validate()
            self.news.clear()
            if not leaving:
                break
            for name in leaving:
                self._clear(name)
        if self.state.reservations and self.state.seq % CHECK_EVERY == 0:
            assert self._capacity_left(after_tries=True) == self._capacity_left(after_tries=False)
        late = [name for name, reserved in self.reserved.items() if _deadline_ms(reserved) < self.now_ms]
        assert not late, f"{late} had a reserved start by now, and are pending"

    def _capacity_left(self, *, after_tries: bool) -> list[object]:
        """Return what reservations leave for gangs such as these, which tries without a start must not change."""
        with simulated_cycle(self.state, self.now_ms, self.policy) as (cycle, _):
            table = cycle.reservations.table
            gangs = [reservation.gang for reservation in table.in_start_order()]

            def left() -> list[object]:
                shapes = [gang.shape.parts for gang in gangs]
                kept_capacity = [table.capacity_kept_until(self.now_ms + HOUR_MS, parts) for parts in shapes]
                columns = [(*kept[:-1], *kept.extended.values()) for kept in kept_capacity]
                return [
                    *map(table.max_stay_ms, shapes),
                    *([column.tolist() for column in reservation] for reservation in columns),
                ]

            for gang in gangs if after_tries else ():
                left()
                cycle.reservations.find_start(gang, start_request(gang))
            return left()

    def _clear(self, name: str) -> None:
        gang = self.state.gangs[name]
        away = [node for window in self.windows.values() if window.from_ms <= self.now_ms for node in window.nodes]
        assert not {*gang.attempt.left}.isdisjoint(away), f"{name} is stopped, but need not leave"
        del self.ends[name]
        self.apply(e.Cleared(gang=name, generation=gang.attempt.generation, nodes=tuple(gang.attempt.left)))

    def _record_start(self, start: Start) -> None:
        reserved = self.reserved.pop(start.gang, None)
        assert reserved is None or self.now_ms <= _deadline_ms(reserved), f"{start.gang} starts late"
        gang = self.state.gangs[start.gang]
        limits = gang.job.spec.limits
        all_ms = limits.time_ms or 0
        limit_ms = all_ms if start.time_ms is None else start.time_ms
        assert start.time_ms is None or (limits.time_min_ms or all_ms) <= limit_ms < all_ms, "it requested another time"
        left_ms = max(1, limit_ms - gang.ran_ms)
        self.ends[start.gang] = self.now_ms + self.chance.choice((left_ms, left_ms, 1 + self.chance.randrange(left_ms)))

    def _record_reservation(self, reserved: ReservedStart, excuses: dict[ReservationCause, list[str]]) -> None:
        """Record a reservation, postponed only for maintenance of its nodes, or for a gang that restarts after it."""
        before = self.reserved.get(reserved.gang)
        if reserved.start_ms is None and excuses.get(reserved.cause):
            self.reserved.pop(reserved.gang)
            return
        assert reserved.start_ms is not None, f"{reserved.gang} lost its reservation"
        if before is not None and (reserved.start_ms > _deadline_ms(before) or reserved.start_ms <= self.now_ms):
            excused = (
                self._new_maintenance_of(before)
                if reserved.cause is ReservationCause.MAINTENANCE
                else excuses.get(reserved.cause)
            )
            assert excused, f"{reserved.gang} is postponed: {reserved.cause}"
        self.reserved[reserved.gang] = (
            replace(reserved, start_ms=None) if reserved.start_ms <= self.now_ms else reserved
        )

    def _precedence_excuses(self, reserved: ReservedStart, planned: Plan) -> dict[ReservationCause, list[str]]:
        """Return the gangs that start or reserve in a plan and may have moved a reservation, by cause."""
        job, jobs = self.state.gangs[reserved.gang].job, {name: gang.job for name, gang in self.state.gangs.items()}
        starting = {decision.gang: None for decision in planned.decisions if isinstance(decision, Start)}
        chosen = [d.gang for d in planned.decisions if isinstance(d, Start | ReservedStart) and d.gang != job.id]
        before = [jobs[name] for name in self.ends if name not in starting]
        after = [*before, *(jobs[name] for name in starting)]
        guarantees = Guarantees(self.state.document.queues)
        return {
            ReservationCause.HIGHER_PRIORITY: [g for g in chosen if jobs[g].spec.priority > job.spec.priority],
            ReservationCause.GUARANTEE: [
                name
                for name in chosen
                if guarantees.within(jobs[name], job, before) and guarantees.exceeds(job, jobs[name], after)
            ],
        }

    def _new_maintenance_of(self, reserved: ReservedStart) -> list[str]:
        """Return nodes with maintenance announced just now, in the time of a reservation."""
        gang = self.state.gangs[reserved.gang]
        begin_ms = _deadline_ms(reserved)
        end_ms = begin_ms + max(1, (gang.time_ms or 0) - gang.ran_ms)
        met = [window for window in self.news if window.from_ms < end_ms and begin_ms < window.until_ms]
        return [node for window in met for node in window.nodes if node in reserved.nodes]


def _deadline_ms(reserved: ReservedStart) -> int:
    """Return the latest reserved start, which a reservation that is overdue for a published cause has not."""
    return NEVER_MS if reserved.start_ms is None else reserved.start_ms


def _limited(spec: JobSpec, limit_ms: int, least_ms: int | None) -> JobSpec:
    least_ms = None if least_ms is None else min(least_ms, limit_ms)
    return replace(spec, limits=Limits(time_ms=limit_ms, time_min_ms=least_ms), priority=0, array=None)


def run_life(policy: Policy, data: st.DataObject, *, maintained: bool, priorities: tuple[int, ...] = (0,)) -> None:
    queues = tuple(replace(q, user_limits=replace(q.user_limits, time_ms=None)) for q in data.draw(draws.queues()))
    chance = data.draw(st.randoms(use_true_random=False))
    world = PunctualCluster(policy, data.draw(draws.nodes()), queues, chance)
    specs = draws.specs(tuple(world.state.document.queues))
    limits = st.sampled_from((MINUTE_MS, 7 * MINUTE_MS, HOUR_MS, HOUR_MS + 1, 5 * HOUR_MS))
    drawn = data.draw(st.lists(st.builds(_limited, specs, limits, st.none() | limits), min_size=2, max_size=8))
    for _ in range(CYCLES):
        choice = chance.random()
        if choice < 0.5:
            world.submit(replace(chance.choice(drawn), priority=chance.choice(priorities)))
        elif choice < 0.6 and maintained:
            world.plan_maintenance()
        elif choice < 0.8:
            world.run_to_next_end()
        else:
            world.pass_time()
        world.run_cycle()


@pytest.mark.parametrize("policy", RESERVING, ids=[policy.NAME for policy in RESERVING])
@examples(gate=2, otherwise=settings().max_examples // 2)
@given(data=st.data())
def test_invariant_9_a_reserved_start_is_kept(policy: Policy, data: st.DataObject) -> None:
    """Check it with nodes that are maintained or not, and jobs of one priority or of several."""
    priorities = data.draw(st.sampled_from(((0,), (0, 0, 100, 1000))), label="priorities")
    run_life(policy, data, maintained=data.draw(st.booleans(), label="maintained"), priorities=priorities)


LEASTS = (None, 5 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS)


@examples(gate=5, otherwise=settings().max_examples // 2)
@given(data=st.data())
def test_invariant_9_among_those_content_with_less_time(data: st.DataObject) -> None:
    """Check small jobs that fill the holes before large ones: many start with less than all of their time."""
    chance = data.draw(st.randoms(use_true_random=False))
    quota = data.draw(st.sampled_from(((), (Queue(name="q", nominal=Amount(gpus=6), borrowing=Amount(gpus=3)),))))
    nodes = tuple(Node(name=f"n{index}", gpus=4, cpu_milli=64_000, memory_bytes=1 << 36) for index in range(3))
    world = PunctualCluster(POLICIES["dynamic"], nodes, quota, chance)
    for _ in range(CYCLES):
        if chance.random() < 0.6:
            gpu, count = GpuRequest(count=chance.choice((1, 2, 4))), chance.choice((1, 1, 2, 3))
            spec = JobSpec(run="x", nodes=count, resources=Resources(gpu=gpu))
            spec = replace(spec, queue=chance.choice(("default", *(queue.name for queue in quota))))
            limit_ms = chance.choice((HOUR_MS, 2 * HOUR_MS, 5 * HOUR_MS + 1))
            world.submit(_limited(spec, limit_ms, chance.choice(LEASTS)))
        elif chance.random() < 0.5:
            world.run_to_next_end()
        else:
            world.pass_time()
        world.run_cycle()


@examples(gate=3, otherwise=settings().max_examples // 4)
@given(data=st.data())
def test_invariant_9_on_a_grid_too(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability_profile, "MAX_EXACT_CELLS", 0)
        run_life(POLICIES["dynamic"], data, maintained=data.draw(st.booleans()))
