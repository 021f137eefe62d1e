"""Activity of running jobs: what each sample shows of them, and what follows from it by the rules of their queues.

Only jobs of queues with rules for idle jobs are looked at. Only warnings, what comes after them, and the end of a job
that stays idle are events.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ganger.core.queues.idle_jobs import (
    BUSY_GPU_PERCENT,
    MAX_GAP_MS,
    Activity,
    IdleJob,
    activity_of,
    next_idle,
    rules_of_queue,
)
from ganger.core.state.state import State
from ganger.engine.loop import Loop
from ganger.model.decision import NodeShare
from ganger.model.idle.idle_event import Idle
from ganger.model.idle.idle_rules import IdleRules
from ganger.model.job import GangState
from ganger.model.node_health.node_sample import NodeSample
from ganger.ports import RanksUsage

BUSY_RANK_MILLI: Final = 50
"""CPU time from which a process of a job has work: one that waits wakes up now and then."""

Devices = Mapping[int, int]
"""The driver's index of each device of a node."""


class _Job(NamedTuple):
    """A running job of a queue with rules, as far as it is on one node. `is_first`: that node has its first rank."""

    id: str
    generation: int
    nodes: tuple[str, ...]
    shares: tuple[NodeShare, ...]
    is_first: bool
    newest_step: int
    rules: IdleRules


class _Part(NamedTuple):
    """The activity of a generation on one of its nodes."""

    generation: int
    at_ms: int
    activity: Activity


@dataclass(slots=True)
class _Node:
    """A node: the activity of each job there, and the idle jobs whose first rank is there."""

    parts: dict[str, _Part] = field(default_factory=dict)
    idle: dict[str, IdleJob] = field(default_factory=dict)


class JobActivity:
    """Takes each sample of a node, and reports to the loop what follows for jobs there. For one thread.

    Args:
        usage: returns the usage of ranks.
        sessions: returns the number of sessions that a job has had.
        is_foreign: returns whether a gang is of others, whose owners alone resume it: these are left alone.
    """

    def __init__(
        self,
        loop: Loop,
        usage: RanksUsage,
        sessions: Callable[[str], int],
        is_foreign: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._loop, self._usage = loop, usage
        self._sessions, self._is_foreign = sessions, is_foreign
        self._nodes: dict[str, _Node] = {}

    def take(self, samples: Sequence[tuple[NodeSample, Devices]]) -> None:
        """Take samples of nodes."""
        with self._loop.view() as state:
            if not any(queue.idle for queue in state.tree.queues):
                self._nodes.clear()
                return
            found = [
                (sample, devices, [job for job in _jobs(state, sample.node) if not self._is_foreign(job.id)])
                for sample, devices in samples
            ]
        now_ms = self._loop.now_ms()
        for sample, devices, jobs in found:
            activities = {job.id: _activity(job, sample, devices, self._usage) for job in jobs}
            parts = {job.id: _Part(job.generation, now_ms, activities[job.id]) for job in jobs}
            self._nodes[sample.node] = _Node(parts, self._nodes.get(sample.node, _Node()).idle)
        events = [event for sample, _, jobs in found for event in self._steps(self._nodes[sample.node], jobs, now_ms)]
        if events:
            self._loop.post_all(events)

    def idle_job(self, node: str, job: str) -> IdleJob | None:
        """Return a job whose first rank is on a node, if it is idle. Safe from any thread."""
        known = self._nodes.get(node)
        return known.idle.get(job) if known is not None else None

    def forget(self, node: str) -> None:
        """Forget a node that there is no more."""
        self._nodes.pop(node, None)

    def _steps(self, node: _Node, jobs: Iterable[_Job], now_ms: int) -> Iterator[Idle]:
        """Yield what follows for the jobs whose first rank is on a node, and keep which of them are idle."""
        before, idle = node.idle, dict[str, IdleJob]()
        for job in jobs:
            if not job.is_first:
                continue
            progress = (job.newest_step, self._sessions(job.id))
            measured = IdleJob(generation=job.generation, since_ms=now_ms, measured_ms=now_ms, progress=progress)
            was = before.get(job.id)
            after, step = next_idle(was, measured, self._whole(job, now_ms), job.rules)
            if after is not None:
                idle[job.id] = after
            if step is not None and was is not None:
                yield Idle(
                    gang=job.id,
                    generation=job.generation,
                    step=step,
                    idle_ms=now_ms - was.since_ms,
                    left_ms=max(0, after.until_ms - now_ms) if after is not None else 0,
                    action=job.rules.action,
                )
        node.idle = idle

    def _whole(self, job: _Job, now_ms: int) -> Activity:
        """Return the activity of a job on all its nodes by their newest samples, none of which may be missing."""
        found = set[Activity]()
        for name in job.nodes:
            node = self._nodes.get(name)
            part = node.parts.get(job.id) if node is not None else None
            is_known = part is not None and part.generation == job.generation and now_ms - part.at_ms <= MAX_GAP_MS
            found.add(part.activity if part is not None and is_known else Activity.UNKNOWN)
        return activity_of(found)


def _jobs(state: State, node: str) -> Iterator[_Job]:
    """Yield the jobs that run on a node and whose queues have rules for idle jobs."""
    for gang in state.on_nodes([node]):
        start, rules = gang.attempt.start, rules_of_queue(state.tree, gang.queue)
        if rules is None or start is None or gang.state is not GangState.RUNNING:
            continue
        shares = tuple(share for share in start.shares if share.node == node)
        step = gang.checkpoints.newest_step
        is_first = bool(start.nodes) and start.nodes[0] == node
        yield _Job(gang.id, gang.attempt.generation, start.nodes, shares, is_first, -1 if step is None else step, rules)


def _activity(job: _Job, sample: NodeSample, devices: Devices, usage: RanksUsage) -> Activity:
    """Return the activity of a job on a node. What is not measured of it is unknown."""
    gpus = {gpu.index: gpu.utilisation_percent for gpu in sample.gpus}
    used = {device for share in job.shares for device in share.devices}
    work = [gpus.get(devices.get(device, -1)) for device in used]
    figures = [(value, BUSY_GPU_PERCENT) for value in work]
    own = list(usage(job.id, sample.node, job.generation))
    missing = {rank for share in job.shares for rank in share.ranks} - {use.rank for use in own}
    figures += [(use.cpu_milli, BUSY_RANK_MILLI) for use in own] + [(None, 0)] * len(missing)
    if any(value is not None and value >= busy for value, busy in figures):
        return Activity.ACTIVE
    return Activity.UNKNOWN if any(value is None for value, _ in figures) else Activity.IDLE
