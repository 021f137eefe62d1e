"""What the supervisor knows of a gang's newest generation: what is left of it, how far it has come, who is ready.

Lives on the event loop and is lost with the server: what counts is in the log and in the task directories.
"""

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from ganger.launcher_server.checkpoints.checkpoint_coordinator import Coordinator
from ganger.launcher_server.health.stall_messages import Detail, StallReport
from ganger.launcher_server.health.straggler import StepPaces
from ganger.model.decision import FAILURES, Cause, Start, Stop
from ganger.model.job import Job

KILL_AFTER_FAILURE_MS: Final = 500
KILL_AFTER_MS: Final = 5_000


@dataclass(slots=True)
class Inquiry:
    """All nodes were asked where their ranks are: who owes an answer, what was told, when it is waited no longer."""

    owed: set[str]
    timer: asyncio.TimerHandle
    details: tuple[Detail, ...] = ()


@dataclass(slots=True)
class Generation:
    """The newest generation of a gang. left: nodes from which it has not been cleared yet, in rank order; failed: nodes
    whose failure is told; sweeping: those without a launcher, where strays are killed; steps: each node's newest
    milestone; slowest: the last one told; stages: with which stage each node is ready, and the port of its agent;
    standings: what each node says of its ranks; inquiry: while it is asked where they are; paces: what it says of their
    steps; done: what became of the report that the job is; deadline: when its launchers are killed; refused: how
    many messages of each node were, since one was acknowledged; coordinator: has its ranks save together, woken by
    coordinator_timer; ranks, ranks_of: all that it has, and those of each node, which every message asks for."""

    start: Start
    job: Job
    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    sweeping: list[str] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    slowest: int | None = None
    stages: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    standings: dict[str, StallReport] = field(default_factory=dict)
    inquiry: Inquiry | None = None
    paces: StepPaces = field(default_factory=StepPaces)
    done: Future[int] | None = None
    stopping: Stop | None = None
    deadline: asyncio.TimerHandle | None = None
    refused: dict[str, int] = field(default_factory=dict)
    coordinator: Coordinator | None = None
    coordinator_timer: asyncio.TimerHandle | None = None
    ranks: frozenset[int] = field(init=False)
    ranks_of: dict[str, frozenset[int]] = field(init=False)

    def __post_init__(self) -> None:
        of: dict[str, list[int]] = {}
        for share in self.start.shares:
            of.setdefault(share.node, []).extend(share.ranks)
        self.ranks_of = {node: frozenset(ranks) for node, ranks in of.items()}
        self.ranks = frozenset(rank for ranks in of.values() for rank in ranks)

    @property
    def gang(self) -> str:
        """Whose it is."""
        return self.start.gang

    @property
    def number(self) -> int:
        """Which it is."""
        return self.start.generation

    def clear(self, node: str) -> None:
        """Nothing of it is left on this node."""
        if node in self.left:
            self.left.remove(node)
        if not self.left:
            self.forget_deadline()

    def forget_deadline(self) -> None:
        """Its launchers need no more watching over."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
        if self.coordinator_timer is not None:
            self.coordinator_timer.cancel()
            self.coordinator_timer = None

    def progress(self, node: str, step: int) -> int | None:
        """The step that all nodes which report have finished, when it is time to tell: as soon as every node has one,
        then with each milestone of the first node but its first, which comes at most every 10 s. So a gang of which
        only rank 0 reports is told of too."""
        again = node == self.start.shares[0].node and node in self.steps
        self.steps[node] = step
        whole = self.slowest is None and len(self.steps) == len(self.ranks_of)
        if not whole and not again:
            return None
        slowest = min(self.steps.values())
        if not whole and self.slowest is not None and slowest <= self.slowest:
            return None
        self.slowest = slowest
        return slowest

    def ready(self, node: str, stage: int, port: int | None) -> tuple[int, list[str]] | None:
        """A node says with which stage it is ready. Gives the stage that all are ready with, and the nodes that wait
        for this; None while somebody is missing."""
        self.stages[node] = (stage, port)
        if len(self.stages) < len(self.ranks_of) or self.stopping is not None:
            return None
        reached = min(stage for stage, _ in self.stages.values())
        return reached, [node for node, (stage, _) in self.stages.items() if stage == reached]


def begun(start: Start, job: Job, stopping: Stop | None = None) -> Generation:
    """A generation of which everything is left."""
    return Generation(start=start, job=job, left=list(start.nodes), stopping=stopping)


def kill_after_ms(cause: Cause) -> int:
    """How long ranks have between SIGTERM and SIGKILL: little after a failure, when they only hang in a collective."""
    return KILL_AFTER_FAILURE_MS if cause in FAILURES else KILL_AFTER_MS
