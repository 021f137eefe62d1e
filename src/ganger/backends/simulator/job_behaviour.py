"""The behaviour of jobs in virtual time, as a test or a trace scripts it, and the events that follow from it."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from math import ceil

from ganger.model import event as e
from ganger.model.decision import Cause, Start
from ganger.model.evidence import PythonError, RankEnd

MILESTONE_MS = 10_000
"""Progress is reported no more often than this, after the first step."""

BEFORE_IT_RUNS = (Cause.START_FAILED, Cause.PORT_BUSY)
OF_A_RANK = (Cause.RANK_FAILED, Cause.OUT_OF_MEMORY)
GONE_AT_ONCE = (Cause.LAUNCHER_LOST, None)

AttemptEvent = e.Started | e.Progressed | e.Checkpointed | e.Finished | e.Failed | e.Cleared
TimedEvents = Iterator[tuple[int, tuple[AttemptEvent, ...]]]
"""(ms since the start of an attempt, events that happen then), in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedFailure:
    """A failure of one attempt, on one of its nodes.

    generation: the attempt that fails
    cause: None: the processes are gone and nothing reports how
    after_ms: time since all ranks run; with START_FAILED and PORT_BUSY since the start itself
    node: index of the node among those of the attempt
    error: the exception that the first rank on the node ended with
    """

    generation: int
    cause: Cause | None = Cause.RANK_FAILED
    after_ms: int = 0
    node: int = 0
    exit_code: int | None = 1
    signal: int | None = None
    error: PythonError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The behaviour of one job in every attempt.

    startup_ms: from the decision until the first node runs
    stagger_ms: delay from each node to the next, whatever they report; 0: all nodes report at once
    step_ms_by_gpu_type: `step_ms` on nodes with GPUs of a type, where it is another
    speedup_by_nodes: throughput on a number of nodes, as a multiple of that which `step_ms` says, where it is another
    steps: number of steps; None: the job never ends
    checkpoint_every: steps between checkpoints, from the newest of which the next attempt resumes; 0: no checkpoints
    write_ms: time that writing such a checkpoint keeps the job from its steps; the last step needs none
    save_ms: time that a checkpoint takes when the job is given notice of a stop
    stop_ms: from a stop to the end; None: the job ignores stops and only the loss of its nodes ends it
    finish_offsets_ms: for each node, in order, how long after the first it finishes, None for never; empty: as
        `stagger_ms` says
    quiet: no step is reported, and the newest checkpoint only when the job is stopped or loses a node; from a stop on,
        unless a user cancels it, it only saves its work
    failures: at most one for each attempt
    """

    startup_ms: int = 500
    stagger_ms: int = 10
    step_ms: int | Fraction = 1_000
    step_ms_by_gpu_type: Mapping[str, Fraction] = field(default_factory=dict)
    speedup_by_nodes: Mapping[int, Fraction] = field(default_factory=dict)
    steps: int | None = 10
    checkpoint_every: int = 0
    write_ms: int = 0
    save_ms: int = 1_000
    stop_ms: int | None = 200
    finish_offsets_ms: tuple[int | None, ...] = ()
    quiet: bool = False
    failures: tuple[ScriptedFailure, ...] = ()

    def on(self, gpu_types: Collection[str]) -> "Behaviour":
        """Return the behaviour of an attempt on nodes of these types, whose ranks all wait for the slowest.

        gpu_types: one for each node
        """
        if not self.step_ms_by_gpu_type and not self.speedup_by_nodes:
            return self
        step_ms = max(self.step_ms_by_gpu_type.get(gpu_type, self.step_ms) for gpu_type in gpu_types)
        speedup = self.speedup_by_nodes.get(len(gpu_types))
        return replace(self, step_ms=step_ms if speedup is None else step_ms / speedup)

    def ranks_up_ms(self, start: Start) -> int:
        """Return the time from a start until all ranks run."""
        return self.startup_ms + ((len(start.nodes) - 1) * self.stagger_ms if self.stagger_ms else 0)

    @property
    def work_ms(self) -> int | None:
        """Time from all ranks running to the end of the last, undisturbed and without writing checkpoints.

        None: the job never ends.
        """
        if self.steps is None or None in self.finish_offsets_ms:
            return None
        return ceil(self.steps * self.step_ms) + max((ms for ms in self.finish_offsets_ms if ms is not None), default=0)

    def duration_ms(self, first_step: int) -> int | None:
        """Return the time that an attempt from `first_step` on runs until it ends well; None: it never ends."""
        if self.steps is None:
            return None
        return self.reach_ms(self.steps, first_step) if self.steps > first_step else 0

    def reach_ms(self, step: int, first_step: int) -> int:
        """Return the time from all ranks running to `step`, with the checkpoints that are written before it."""
        written = 0
        if self.checkpoint_every:
            written = (step - 1) // self.checkpoint_every - first_step // self.checkpoint_every
        return ceil((step - first_step) * self.step_ms) + written * self.write_ms

    def step_after(self, ran_ms: int, first_step: int) -> int:
        """Return the step that an attempt from `first_step` on has reached after running for `ran_ms`."""
        intervals, rest_ms = self._complete_intervals(ran_ms, first_step)
        step = rest_ms // self.step_ms
        if self.checkpoint_every:
            newest = (first_step // self.checkpoint_every + intervals) * self.checkpoint_every
            step = newest + min(step, self.checkpoint_every)
        else:
            step += first_step
        return step if self.steps is None else min(step, self.steps)

    def checkpoint_after(self, ran_ms: int, first_step: int) -> int:
        """Return the step of the newest checkpoint after `ran_ms`; `first_step` if the attempt has written none."""
        every, newest = self.checkpoint_every, 0
        if every:
            newest = (first_step // every + self._complete_intervals(ran_ms, first_step)[0]) * every
        return max(first_step, newest if self.steps is None else min(newest, self.steps))

    def _complete_intervals(self, ran_ms: int, first_step: int) -> tuple[int, int | Fraction]:
        """Return the number of complete checkpoint intervals, and the ms since the last.

        Counted as if the attempt had begun at the checkpoint before `first_step`. Without checkpoints all the time is
        since the last.
        """
        ran_ms, every = max(0, ran_ms), self.checkpoint_every
        if not every:
            return 0, ran_ms
        return divmod(ran_ms + first_step % every * self.step_ms, every * self.step_ms + self.write_ms)


def attempt_events(start: Start, behaviour: Behaviour, first_step: int) -> TimedEvents:
    """Yield the events of an attempt from `first_step` on that nothing stops."""
    failure = next((failure for failure in behaviour.failures if failure.generation == start.generation), None)
    if failure and failure.cause in BEFORE_IT_RUNS:
        yield failure.after_ms, failure_events(start, failure, None)
        return
    for position, nodes in enumerate(reporting_groups(start.nodes, behaviour)):
        started = e.Started(gang=start.gang, generation=start.generation, nodes=nodes)
        yield behaviour.startup_ms + position * behaviour.stagger_ms, (started,)
    ranks_up_ms, duration_ms = behaviour.ranks_up_ms(start), behaviour.duration_ms(first_step)
    if failure and duration_ms is not None and failure.after_ms >= duration_ms:
        failure = None  # the attempt ends before
    for after_ms, events in _running_events(start, behaviour, first_step):
        if failure and after_ms >= failure.after_ms:
            break
        yield ranks_up_ms + after_ms, events
    if failure:
        step = behaviour.step_after(failure.after_ms, first_step)
        yield ranks_up_ms + failure.after_ms, failure_events(start, failure, step)


def _running_events(start: Start, behaviour: Behaviour, first_step: int) -> TimedEvents:
    """Yield steps, checkpoints and a good end, by ms since all ranks run."""
    end_ms = behaviour.duration_ms(first_step)
    reports = (
        () if behaviour.quiet else (_steps(start, behaviour, first_step), _checkpoints(start, behaviour, first_step))
    )
    for after_ms, event in heapq.merge(*reports, key=_after_ms):
        if end_ms is not None and after_ms >= end_ms:
            break
        yield after_ms, (event,)
    if end_ms is not None:
        for offset_ms, nodes in _finishing_groups(start.nodes, behaviour):
            finished = e.Finished(gang=start.gang, generation=start.generation, nodes=nodes)
            yield end_ms + offset_ms, (finished, _cleared(start, nodes))


def _finishing_groups(nodes: tuple[str, ...], behaviour: Behaviour) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (ms after the first of them, nodes that finish then), in order."""
    if not behaviour.finish_offsets_ms:
        for position, group in enumerate(reporting_groups(nodes, behaviour)):
            yield position * behaviour.stagger_ms, group
        return
    for offset_ms in sorted({ms for ms in behaviour.finish_offsets_ms if ms is not None}):
        offsets = zip(nodes, behaviour.finish_offsets_ms, strict=True)
        yield offset_ms, tuple(node for node, ms in offsets if ms == offset_ms)


def _steps(start: Start, behaviour: Behaviour, first_step: int) -> Iterator[tuple[int, AttemptEvent]]:
    step_ms = ceil(behaviour.step_ms)
    for ran_ms in count(step_ms, max(MILESTONE_MS, step_ms)):
        step = behaviour.step_after(ran_ms, first_step)
        yield ran_ms, e.Progressed(gang=start.gang, generation=start.generation, step=step)


def _checkpoints(start: Start, behaviour: Behaviour, first_step: int) -> Iterator[tuple[int, AttemptEvent]]:
    every = behaviour.checkpoint_every
    if every:
        for step in count((first_step // every + 1) * every, every):
            checkpointed = e.Checkpointed(gang=start.gang, generation=start.generation, step=step)
            yield behaviour.reach_ms(step, first_step) + behaviour.write_ms, checkpointed


def failure_events(start: Start, failure: ScriptedFailure, step: int | None) -> tuple[AttemptEvent, ...]:
    """Return the last events of an attempt that fails; `step`: the newest that its ranks had reported."""
    share = start.shares[failure.node % len(start.shares)]
    cleared = (_cleared(start, (share.node,)),) if failure.cause in GONE_AT_ONCE else ()
    if failure.cause is None:
        return cleared
    failed = e.Failed(gang=start.gang, generation=start.generation, node=share.node, cause=failure.cause)
    if failure.cause in OF_A_RANK:
        code, rank = failure.exit_code if failure.signal is None else None, share.ranks[0]
        failed = replace(failed, rank=rank, exit_code=code, signal=failure.signal)
        if failure.error is not None:
            end = RankEnd(rank=rank, node=share.node, at_ms=0, exit_code=code, step=step, error=failure.error)
            failed = replace(failed, ends=(end,))
    return (failed, *cleared)


def reporting_groups(nodes: Iterable[str], behaviour: Behaviour) -> tuple[tuple[str, ...], ...]:
    """Return the nodes in groups that report at the same time: each alone, or all of them."""
    return tuple((node,) for node in nodes) if behaviour.stagger_ms else (tuple(nodes),)


def _cleared(start: Start, nodes: tuple[str, ...]) -> e.Cleared:
    return e.Cleared(gang=start.gang, generation=start.generation, nodes=nodes)


def _after_ms(timed: tuple[int, AttemptEvent]) -> int:
    return timed[0]
