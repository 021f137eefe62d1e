"""Under a backlog the default order gives each queue its weighted share, and each user in it an equal one.

For any weights, numbers of users, sizes and run times of jobs, and time limits, with the default reservations. The
oracle adds up what ran, from starts and ends alone.
"""

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.reservations import queue_rotation
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.queue import Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.policies import dynamic
from tests.examples import examples
from tests.laws import draws

NODES, GPUS_PER_NODE = 2, 8
GPUS = NODES * GPUS_PER_NODE
PENDING = 18
"""Jobs of each queue that wait at any time, more than can run."""
WINDOW, WINDOWS = 20, (0, 5)
"""Mean run times over which a queue gets its share, and after how many of them a window begins."""
TOLERANCE = 0.03
"""Of the cluster."""
TOLERANCE_OF_USERS = 0.08
"""Of the cluster: a queue's part is divided among its users by what they hold now, and less exactly."""
Account = tuple[str, str]


@dataclass(frozen=True)
class Jobs:
    """The jobs of a queue: sizes in GPUs, run times in ms, and how many times the run time they request, 0 for any."""

    sizes: tuple[int, ...] = (1,)
    run_ms: tuple[int, int] = (30 * MINUTE_MS, 3 * HOUR_MS)
    limits: tuple[int, ...] = (0,)

    @property
    def mean_run_ms(self) -> float:
        """The mean of the run times."""
        return sum(self.run_ms) / 2


class Backlog:
    """A full cluster, and users who always have jobs waiting."""

    def __init__(self, users: dict[str, tuple[str, ...]], queues: dict[str, tuple[int, Jobs]], chance: Random) -> None:
        self.state, self.begin_ms, self.number, self.chance = State(), 1_000_000_000, 0, chance
        self.now_ms = self.begin_ms
        self.jobs = {queue: jobs for queue, (_, jobs) in queues.items()}
        self.ends: list[tuple[int, str]] = []
        self.account: dict[str, Account] = {}
        self.run_ms: dict[str, int] = {}
        self.held: list[tuple[Account, int, int, int]] = []
        """(account, GPUs, begin, end) of each start."""
        names = [f"n{index}" for index in range(NODES)]
        for queue, (weight, _) in queues.items():
            self.apply(e.QueueSet(queue=Queue(name=queue, weight=weight)))
        nodes = (Node(name=name, gpus=GPUS_PER_NODE, cpu_milli=1_000_000, memory_bytes=1 << 40) for name in names)
        self.apply(e.NodesListed(nodes=tuple(nodes)))
        for queue, of_queue in users.items():  # all of one queue before all of another
            for _ in range(-(-PENDING // len(of_queue))):
                for user in of_queue:
                    self.submit(queue, user)

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def submit(self, queue: str, user: str) -> None:
        self.number += 1
        jobs = self.jobs.get(queue, Jobs())
        run_ms, factor = self.chance.randint(*jobs.run_ms), self.chance.choice(jobs.limits)
        gpus = GpuRequest(count=self.chance.choice(jobs.sizes))
        limits = Limits(time_ms=factor * run_ms if factor else None)
        spec = JobSpec(run="x", queue=queue, resources=Resources(gpu=gpus, cpu_milli=1), limits=limits)
        job = draws.job(self.number, user, spec)
        self.account[job.id], self.run_ms[job.id] = (queue, user), run_ms
        self.apply(e.Submitted(job=job))

    def run(self, *, starts: int | None = None, for_ms: float | None = None) -> None:
        """Let jobs end one by one, with another submitted for each that starts, for some starts or some time."""
        while (starts or 0) > 0 or (for_ms is not None and self.now_ms < self.begin_ms + for_ms):
            planned = plan(self.state, self.now_ms, dynamic, explains=False)
            if planned.decisions:
                self.apply(e.Decided(plan=planned, policy="dynamic", version="0"))
            for decision in planned.decisions:
                if isinstance(decision, Start):
                    starts = None if starts is None else starts - 1
                    end_ms = self.now_ms + self.run_ms[decision.gang]
                    heappush(self.ends, (end_ms, decision.gang))
                    account = self.account[decision.gang]
                    self.held.append((account, len(decision.shares[0].devices), self.now_ms, end_ms))
                    self.submit(*account)
            if planned.next_wake_ms is not None and planned.next_wake_ms < self.ends[0][0]:
                self.now_ms = planned.next_wake_ms
                continue
            self.now_ms, gang = heappop(self.ends)
            for kind in (e.Finished, e.Cleared):
                nodes = tuple(share.node for share in self.state.gangs[gang].attempt.held)
                self.apply(kind(gang=gang, generation=1, nodes=nodes))

    def shares(self, begin_ms: float, end_ms: float) -> Counter[Account]:
        """Return the part of all GPU time held in an interval that each account held."""
        held_ms = Counter[Account]()
        for account, gpus, from_ms, until_ms in self.held:
            held_ms[account] += gpus * max(0, min(until_ms, end_ms) - max(from_ms, begin_ms))
        total_ms = held_ms.total()
        return Counter({account: part_ms / total_ms for account, part_ms in held_ms.items()})


def jobs_of_a_queue(sizes: tuple[int, ...]) -> st.SearchStrategy[Jobs]:
    """Return jobs of ten minutes to two hours, with time limits that are exact, too long or missing."""
    shortest_ms = st.sampled_from((10 * MINUTE_MS, 20 * MINUTE_MS, 40 * MINUTE_MS))
    run_ms = st.tuples(shortest_ms, st.integers(1, 3)).map(lambda drawn: (drawn[0], drawn[0] * drawn[1]))
    return st.builds(Jobs, st.just(sizes), run_ms, st.sampled_from(((1,), (1, 2, 3), (10,), (0,), (0, 1, 2))))


@examples(gate=1, otherwise=settings().max_examples)
@given(data=st.data())
def test_each_queue_gets_its_weighted_share_and_each_user_an_equal_part_of_it(data: st.DataObject) -> None:
    """Check what was wrong: reservations made 3:1 half and half, the more the better the limits were.

    And 3:1 with 1 and 20 users gave 27:37 of 64 GPUs, and FIFO after sixteen hours.
    """
    names = "abc"[: data.draw(st.integers(2, 3), label="queues")]
    # The same for all queues: what is too small for the jobs of one queue is otherwise used by those of another.
    sizes = data.draw(st.sampled_from(((1,), (2,), (1, 2), (1, 1, 1, 2))), label="sizes")
    queues = {name: (data.draw(st.integers(1, 4), label="weight"), data.draw(jobs_of_a_queue(sizes))) for name in names}
    users = {
        name: tuple(f"{name}{user}" for user in range(data.draw(st.integers(1, 8), label="users"))) for name in names
    }
    order = data.draw(st.permutations(names), label="submitted first")
    world = Backlog({name: users[name] for name in order}, queues, data.draw(st.randoms(use_true_random=False)))
    mean_ms = sum(jobs.mean_run_ms for _, jobs in queues.values()) / len(queues)
    world.run(for_ms=(WINDOWS[-1] + WINDOW) * mean_ms)
    total_weight = sum(weight for weight, _ in queues.values())
    for begin in WINDOWS:
        begin_ms = world.begin_ms + begin * mean_ms
        shares = world.shares(begin_ms, begin_ms + WINDOW * mean_ms)
        for name, (weight, _) in queues.items():
            part = sum(shares[name, user] for user in users[name])
            assert abs(part - weight / total_weight) < TOLERANCE, (begin, name, part, weight / total_weight)
    shares = world.shares(world.begin_ms, world.now_ms)
    for name, of_queue in users.items():
        part = sum(shares[name, user] for user in of_queue)
        for user in of_queue:
            assert abs(shares[name, user] - part / len(of_queue)) < TOLERANCE_OF_USERS, user


@examples(gate=2, otherwise=settings().max_examples // 5)
@given(data=st.data())
def test_a_newcomer_starts_after_few_of_a_long_queue(data: st.DataObject) -> None:
    """Check what was wrong: a single job started after all 200 of another user, who had waited for longer."""
    world = Backlog({"default": ("ann",)}, {}, data.draw(st.randoms(use_true_random=False)))
    for _ in range(200):
        world.submit("default", "ann")
    world.run(starts=data.draw(st.integers(GPUS, 200), label="started before"))
    world.submit("default", "bob")
    world.run(starts=2)
    assert any(account == ("default", "bob") for account, *_ in world.held), "others started before"


def test_on_a_large_cluster_a_reserved_start_leaves_its_place_to_the_first_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check what was wrong: the next starving gang of the queue got it at once, before the newcomer's turn."""
    monkeypatch.setattr(queue_rotation, "LARGE_CLUSTER_NODES", 0)
    world = Backlog({"default": ("ann",)}, {"default": (1, Jobs(run_ms=(HOUR_MS, HOUR_MS)))}, Random(0))
    world.run(starts=46)
    world.submit("default", "bob")
    world.run(starts=2)
    assert any(account == ("default", "bob") for account, *_ in world.held), "others started before"
