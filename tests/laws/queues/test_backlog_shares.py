"""Under a backlog the default order gives each queue its weighted share, and each user in it an equal one.

For any number of users of a queue and any order of submission. The oracle adds up what ran, from starts and ends alone.
"""

from collections import Counter
from heapq import heappop, heappush
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.queue import Queue
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.policies import dynamic
from tests.examples import examples
from tests.laws import draws

GPUS = 16
PENDING = 6
"""Jobs of each user that wait at any time."""
STARTS = 300
TOLERANCE = 0.08
"""Of the cluster: what jobs are cut into cannot be divided finer, and the first jobs found it empty."""
Account = tuple[str, str]


class Backlog:
    """A full cluster, and users who always have jobs waiting."""

    def __init__(self, users: dict[str, tuple[str, ...]], weights: dict[str, int], chance: Random) -> None:
        self.state, self.now_ms, self.number, self.chance = State(), 1_000_000_000, 0, chance
        self.ends: list[tuple[int, str]] = []
        self.account: dict[str, Account] = {}
        self.held_ms: Counter[Account] = Counter()
        node = Node(name="n1", gpus=GPUS, cpu_milli=1_000_000, memory_bytes=1 << 40)
        for queue, weight in weights.items():
            self.apply(e.QueueSet(queue=Queue(name=queue, weight=weight)))
        self.apply(e.NodesListed(nodes=(node,)))
        for queue, names in users.items():  # all of one queue before all of another
            for _ in range(PENDING):
                for user in names:
                    self.submit(queue, user)

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def submit(self, queue: str, user: str) -> None:
        self.number += 1
        spec = JobSpec(run="x", queue=queue, resources=Resources(gpu=GpuRequest(count=1), cpu_milli=1))
        job = draws.job(self.number, user, spec)
        self.account[job.id] = queue, user
        self.apply(e.Submitted(job=job))

    def run(self, starts: int) -> None:
        """Let jobs end one by one, with another submitted for each that starts, until so many have started."""
        while starts > 0:
            planned = plan(self.state, self.now_ms, dynamic)
            self.apply(e.Decided(plan=planned, policy="dynamic", version="0"))
            for decision in planned.decisions:
                if isinstance(decision, Start):
                    starts -= 1
                    run_ms = self.chance.randint(30 * MINUTE_MS, 3 * HOUR_MS)
                    heappush(self.ends, (self.now_ms + run_ms, decision.gang))
                    self.submit(*self.account[decision.gang])
                    self.held_ms[self.account[decision.gang]] += run_ms
            self.now_ms, gang = heappop(self.ends)
            for kind in (e.Finished, e.Cleared):
                self.apply(kind(gang=gang, generation=1, nodes=("n1",)))


@examples(gate=2, otherwise=settings().max_examples // 5)
@given(data=st.data())
def test_each_queue_gets_its_weighted_share_and_each_user_an_equal_part_of_it(data: st.DataObject) -> None:
    """Check what was wrong: 3:1 with 1 and 20 users gave 27:37 of 64 GPUs, and FIFO after sixteen hours."""
    counts = data.draw(st.permutations([1, data.draw(st.integers(1, 12), label="users")]))
    weights = {"a": data.draw(st.integers(1, 4), label="weight"), "b": 1}
    users = {
        queue: tuple(f"{queue}{index}" for index in range(count)) for queue, count in zip("ab", counts, strict=True)
    }
    order = data.draw(st.permutations("ab"), label="submitted first")
    world = Backlog({queue: users[queue] for queue in order}, weights, data.draw(st.randoms(use_true_random=False)))
    world.run(STARTS)
    total_ms = world.held_ms.total()
    for queue, names in users.items():
        part = sum(world.held_ms[queue, user] for user in names) / total_ms
        assert abs(part - weights[queue] / sum(weights.values())) < TOLERANCE, (queue, part)
        for user in names:
            assert abs(world.held_ms[queue, user] / total_ms - part / len(names)) < TOLERANCE, user


@examples(gate=4, otherwise=settings().max_examples // 5)
@given(data=st.data())
def test_a_newcomer_starts_after_few_of_a_long_queue(data: st.DataObject) -> None:
    """Check what was wrong: a single job started after all 200 of another user, who had waited for longer."""
    world = Backlog({"default": ("ann",)}, {}, data.draw(st.randoms(use_true_random=False)))
    for _ in range(200):
        world.submit("default", "ann")
    world.run(data.draw(st.integers(GPUS, 200), label="started before"))
    world.submit("default", "bob")
    world.run(2)
    assert world.held_ms["default", "bob"], "others started before"
