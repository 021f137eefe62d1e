"""State of a gang's newest generation: where it still runs, how far it is, which nodes are ready.

Lives on the event loop and is lost with the server: everything durable is in the log and in the task directories.
"""

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from ganger.launcher_server.checkpoints.checkpoint_coordinator import Coordinator
from ganger.launcher_server.health.loss_watch import LossWatch
from ganger.launcher_server.health.stack_samples import StackSamples
from ganger.launcher_server.health.stall_messages import RankDetail, StallReport
from ganger.launcher_server.health.straggler import StepPaces
from ganger.model.decision import FAILURES, Cause, Start, Stop
from ganger.model.job import Job
from ganger.model.job_metrics import MAX_METRICS, JobMetric, JobMetrics

KILL_AFTER_FAILURE_MS: Final = 500
KILL_AFTER_MS: Final = 5_000


@dataclass(slots=True)
class StackRequest:
    """A request to all nodes for the stacks of their ranks.

    awaited: nodes that have not answered
    timer: fires when the answers are no longer waited for
    details: the answers
    """

    awaited: set[str]
    timer: asyncio.TimerHandle
    details: tuple[RankDetail, ...] = ()


@dataclass(slots=True)
class Generation:
    """The newest generation of a gang.

    remaining: nodes on which it has not been cleared, in rank order
    failed: nodes whose failure is reported
    sweeping: nodes without a launcher, where left-over processes are killed
    steps: newest milestone of each node
    saved_step: that of its newest checkpoint, which all ranks have finished
    part_steps: newest checkpoint of which a node has saved its part, by node
    notice_steps: newest checkpoint that a node has saved, or its part of it, in a save begun after the notice, by node
    notice_step: that of the newest of these that is complete: the ranks need not go on
    reported_step: the last step reported for the gang
    stages: by node, the stage with which it is ready, and the port of its agent
    stall_reports: newest stall report of each node
    stack_request: set while the nodes are asked for stacks
    stack_samples: where its ranks stand, of a gang that makes no step, or reports nothing and writes nothing
    judgement_timer: fires when the next sample is due
    pauses: what this and earlier generations have learned of the job's pauses: it belongs to the job, since each
        attempt may run on other nodes; lost with the server, which learns it again from running launchers
    quiet_since_ms: start of the silence reported last
    paces: step times and work of the ranks
    loss_watch: what it has learned from the node that reports the loss, loss_node; None before that
    metrics: newest values by metric, with the lowest rank that has reported it; at most MAX_METRICS
    metrics_left_out: the most metrics that the launcher of a node has left out
    done_report: outcome of the report that the job is done
    stopping: the stop that was sent, or is once nothing is `warming`
    warming: nodes of the next generation that import its modules first, while this one still runs
    deadline: when its launchers are killed, or nothing more is waited for
    refused_counts: by node, messages refused since one was acknowledged
    coordinator: has its ranks save together, woken by coordinator_timer
    ranks, ranks_of: all ranks, and those of each node, needed for every message
    """

    start: Start
    job: Job
    remaining: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    sweeping: list[str] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    saved_step: int | None = None
    part_steps: dict[str, int] = field(default_factory=dict)
    notice_steps: dict[str, int] = field(default_factory=dict)
    notice_step: int | None = None
    reported_step: int | None = None
    stages: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    stall_reports: dict[str, StallReport] = field(default_factory=dict)
    stack_request: StackRequest | None = None
    stack_samples: StackSamples | None = None
    judgement_timer: asyncio.TimerHandle | None = None
    quiet_since_ms: int | None = None
    pauses: dict[str, Any] = field(default_factory=dict)
    paces: StepPaces = field(default_factory=StepPaces)
    loss_watch: LossWatch | None = None
    metrics: dict[str, tuple[int, JobMetric]] = field(default_factory=dict)
    metrics_left_out: int = 0
    loss_node: str = ""
    done_report: Future[int] | None = None
    stopping: Stop | None = None
    warming: list[str] = field(default_factory=list)
    deadline: asyncio.TimerHandle | None = None
    refused_counts: dict[str, int] = field(default_factory=dict)
    coordinator: Coordinator | None = None
    coordinator_timer: asyncio.TimerHandle | None = None
    ranks: frozenset[int] = field(init=False)
    ranks_of: dict[str, frozenset[int]] = field(init=False)

    def __post_init__(self) -> None:
        by_node: dict[str, list[int]] = {}
        for share in self.start.shares:
            by_node.setdefault(share.node, []).extend(share.ranks)
        self.ranks_of = {node: frozenset(ranks) for node, ranks in by_node.items()}
        self.ranks = frozenset(rank for ranks in by_node.values() for rank in ranks)

    @property
    def gang(self) -> str:
        return self.start.gang

    @property
    def number(self) -> int:
        return self.start.generation

    def clear(self, node: str) -> None:
        """Record that no process of the generation is left on this node."""
        if node in self.remaining:
            self.remaining.remove(node)
        if not self.remaining:
            self.forget_deadline()

    def forget_deadline(self) -> None:
        """Cancel its timers: its launchers need no more supervision."""
        for timer in (self.deadline, self.coordinator_timer, self.judgement_timer):
            if timer is not None:
                timer.cancel()
        self.deadline = self.coordinator_timer = self.judgement_timer = None

    def progress(self, node: str, step: int) -> int | None:
        """Record a milestone; return the step that all reporting nodes have finished, when it is time to report it.

        That is as soon as every node has a step, then with each milestone of the first node but its first one, at most
        every 10 s. So the progress of a gang whose rank 0 alone reports is reported too. The milestone of another node
        may be older than a checkpoint: then the step of the checkpoint is the one that all have finished.
        """
        is_repeated = node == self.start.shares[0].node and node in self.steps
        self.steps[node] = step
        is_complete = self.reported_step is None and len(self.steps) == len(self.ranks_of)
        if not is_complete and not is_repeated:
            return None
        reported_step = min(self.steps.values())
        if self.saved_step is not None:
            reported_step = max(reported_step, self.saved_step)
        if not is_complete and self.reported_step is not None and reported_step <= self.reported_step:
            return None
        self.reported_step = reported_step
        return reported_step

    def part_saved(self, node: str, step: int, parts: int) -> int | None:
        """Record that a node has saved its part of a checkpoint; return the newest that is whole by it, if any is.

        All nodes save the same steps one after the other, so each has saved the least of the newest ones.
        """
        before = min(self.part_steps.values()) if len(self.part_steps) >= parts else None
        self.part_steps[node] = step
        whole = min(self.part_steps.values()) if len(self.part_steps) >= parts else None
        return None if whole == before else whole

    def notice_saved(self, node: str, step: int, parts: int) -> bool:
        """Record that the notice has brought a save on a node; return True if it makes a newer checkpoint complete."""
        self.notice_steps[node] = step
        if len(self.notice_steps) < parts:
            return False
        whole = step if parts <= 1 else min(self.notice_steps.values())
        if self.notice_step is not None and whole <= self.notice_step:
            return False
        self.notice_step = whole
        return True

    def metrics_received(self, values: dict[str, list[Any]], left_out: int) -> None:
        """Record the metrics of one node: of each the lowest rank counts, as on the node itself."""
        for name, (rank, last_step, last, min_step, least, max_step, most) in values.items():
            known = self.metrics.get(name)
            if known is None and len(self.metrics) == MAX_METRICS:
                left_out += 1
            elif known is None or rank <= known[0]:
                extremes = {"min_step": min_step, "min": least, "max_step": max_step, "max": most}
                self.metrics[name] = rank, JobMetric(name=name, last_step=last_step, last=last, **extremes)
        self.metrics_left_out = max(self.metrics_left_out, left_out)

    @property
    def job_metrics(self) -> JobMetrics:
        """Its metrics as far as they are known; also called on other threads, which get a copy."""
        return JobMetrics(
            values=tuple(metric for _, metric in list(self.metrics.values())), left_out=self.metrics_left_out
        )

    def ready(self, node: str, stage: int, port: int | None) -> tuple[int, list[str]] | None:
        """Record a ready node; return the stage reached by all and the waiting nodes, None if a node is missing."""
        self.stages[node] = (stage, port)
        if len(self.stages) < len(self.ranks_of) or self.stopping is not None:
            return None
        reached = min(stage for stage, _ in self.stages.values())
        return reached, [node for node, (stage, _) in self.stages.items() if stage == reached]


def new_generation(start: Start, job: Job, stopping: Stop | None = None) -> Generation:
    """Return a generation that still runs on all its nodes."""
    return Generation(start=start, job=job, remaining=list(start.nodes), stopping=stopping)


def kill_after_ms(cause: Cause) -> int:
    """Return the time between SIGTERM and SIGKILL: short after a failure, when ranks only hang in a collective."""
    return KILL_AFTER_FAILURE_MS if cause in FAILURES else KILL_AFTER_MS
