"""A large cluster and its load for the benches of the core: nodes, queues, users, gangs of mixed shapes.

Used by `cycle_full`, `cycle_next` and similar benches; drives a `State` by events alone, as the loop would. The mixture
follows published traces of training clusters: most gangs are small, most GPUs are requested by large ones, time limits
are from ten minutes to a week. One seed yields one fleet.
"""

import random
import time
from dataclasses import dataclass, field
from typing import Final

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.engine.loop import collection_paused
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Plan, Start, Stop
from ganger.model.job import GangState, GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.queue import Amount, Queue
from ganger.model.units import GIB_BYTES, MINUTE_MS

SEED: Final = 6
GPUS: Final = 8
NODES_A_RACK: Final = 32
SIZES: Final = (
    (1, 1, 340), (1, 2, 140), (1, 4, 140), (1, 8, 180), (2, 8, 80), (4, 8, 50),
    (8, 8, 30), (16, 8, 20), (32, 8, 10), (64, 8, 6), (128, 8, 3), (512, 8, 1),
)  # fmt: skip
"""Nodes, GPUs on each, relative frequency."""
LIMITS_MS: Final = tuple(
    minutes * MINUTE_MS for minutes in (10, 30, 60, 120, 240, 480, 720, 1440, 2880, 4320, 7200, 10080)
)
PRIORITIES: Final = (0, 0, 0, 0, 100, -100)
CPUS: Final = (4, 8, 12)
"""CPUs per GPU."""
ENDS, SUBMISSIONS = 0.45, 0.9
BEGIN_MS: Final = 1_000_000_000_000
ORIGIN: Final = Origin(directory="/")


@dataclass(slots=True)
class Fleet:
    """A state and its clock. `step` folds one event; `cycle` plans; `decide` carries out the decisions."""

    policy: Policy
    nodes: int = 10_000
    gangs: int = 100_000
    queues: int = 40
    users: int = 500
    elastic: int = 0
    now_ms: int = BEGIN_MS
    state: State = field(default_factory=State)
    running: list[str] = field(default_factory=list)
    submitted: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))

    def fill(self) -> None:
        """Add nodes, queues and all gangs."""
        for number in range(self.queues):
            quota = Amount(gpus=self.nodes * GPUS // self.queues)
            self.step(e.QueueSet(queue=Queue(name=f"q{number:02}", nominal=quota)))
        self.step(e.NodesListed(nodes=tuple(_node(number) for number in range(self.nodes))))
        for _ in range(self.gangs):
            self.submit()

    def submit(self) -> None:
        """Submit one more gang; each user is in one of two queues."""
        chance = self.chance
        user = chance.randrange(self.users)
        queue = (user * 7 + chance.choice((0, 0, 0, 1)) * 13) % self.queues
        nodes, gpus, _ = chance.choices(SIZES, [size[2] for size in SIZES])[0]
        cpus = gpus * chance.choice(CPUS)
        spec = JobSpec(
            queue=f"q{queue:02}",
            nodes=nodes,
            max_nodes=2 * nodes if self.submitted < self.elastic else None,
            priority=chance.choice(PRIORITIES),
            resources=Resources(gpu=GpuRequest(count=gpus), cpu_milli=1000 * cpus, memory_bytes=16 * GIB_BYTES * gpus),
            limits=Limits(time_ms=chance.choice(LIMITS_MS)),
            run=("train",),
        )
        job = Job(id=f"j{self.submitted}", user=f"u{user:03}", spec=spec, origin=ORIGIN)
        self.submitted += 1
        self.step(e.Submitted(job=job))

    def step(self, event: e.Event) -> None:
        """Fold one event."""
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def cycle(self) -> Plan:
        """Run one scheduling cycle without carrying out its decisions."""
        with collection_paused():
            return plan(self.state, self.now_ms, self.policy)

    def decide(self, planned: Plan) -> None:
        """Record the decisions; started gangs run at once, stopped ones leave at once."""
        self.step(e.Decided(plan=planned, policy=self.policy.NAME, version=""))
        for decision in planned.decisions:
            if isinstance(decision, Start):
                self.step(e.Started(gang=decision.gang, generation=decision.generation, nodes=decision.nodes))
                self.running.append(decision.gang)
            elif isinstance(decision, Stop) and (left := self.state.gangs[decision.gang].attempt.left):
                self.step(e.Cleared(gang=decision.gang, generation=decision.generation, nodes=tuple(left)))

    def first_s(self) -> float:
        """Return the CPU time of the first cycle, and carry it out."""
        before = time.process_time()
        planned = self.cycle()
        taken_s = time.process_time() - before
        self.decide(planned)
        return taken_s

    def next_s(self) -> float:
        """Return the CPU time of one event, a second later, and of the cycle after it.

        45 % of the events are ends of a gang, 45 % submissions, 10 % lost nodes.
        """
        self.now_ms += 1_000
        draw = self.chance.random()
        run_event = self.end_one if draw < ENDS else self.submit if draw < SUBMISSIONS else self.lose_one
        before = time.process_time()
        run_event()
        planned = self.cycle()
        taken_s = time.process_time() - before
        self.decide(planned)
        return taken_s

    def end_one(self) -> None:
        """Finish a running gang successfully."""
        index = self.chance.randrange(len(self.running))
        self.running[index], self.running[-1] = self.running[-1], self.running[index]
        gang = self.state.gangs[self.running.pop()]
        for kind in (e.Finished, e.Cleared):
            self.step(kind(gang=gang.id, generation=gang.attempt.generation, nodes=gang.nodes))

    def lose_one(self) -> None:
        """Lose a ready node; its gangs restart elsewhere."""
        ready = self.state.nodes.ready.nonzero()[0]
        node = self.state.nodes.nodes[int(ready[self.chance.randrange(len(ready))])].name
        self.step(e.NodeLost(node=node))
        gangs = self.state.gangs
        self.running = [name for name in self.running if name in gangs and gangs[name].state is GangState.RUNNING]


def _node(number: int) -> Node:
    rack = f"r{number // NODES_A_RACK:04}"
    return Node(
        name=f"n{number}",
        domains=(rack,),
        gpus=GPUS,
        gpu_type="h100",
        cpu_milli=1000 * 128,
        memory_bytes=2048 * GIB_BYTES,
    )
