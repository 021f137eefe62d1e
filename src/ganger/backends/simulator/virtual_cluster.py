"""A cluster in virtual time: a heap of future events, and processes that exist only as figures.

Tests script it, traces feed it, and `run` drives it by running the scheduling loop whenever something has happened. It
is deterministic: events of the same time happen in the order in which they were planned. It outlives its server: a new
loop on the same log reopens it and receives again what it may have missed. It raises `Impossible` when it is asked
to do what no real cluster could.
"""

import heapq
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from ganger.backends.simulator.job_behaviour import (
    BEFORE_IT_RUNS,
    AttemptEvent,
    Behaviour,
    ScriptedFailure,
    TimedEvents,
    attempt_events,
    failure_events,
    reporting_groups,
)
from ganger.backends.simulator.overcommit_check import Impossible, OvercommitCheck
from ganger.model import event as e
from ganger.model.cluster import RACK, Node
from ganger.model.decision import Cause, Start, Stop
from ganger.model.job import Job
from ganger.model.job_metrics import Curve, JobMetrics
from ganger.model.node_health.health_event import RepairEnded
from ganger.model.views.service_views import Stacks
from ganger.ports import LiveGeneration, LogLine, LogQuery, Metric, RepairCall, Report, UsageSample

BEGIN_MS = 1_767_225_600_000
"""Default begin of virtual time: 2026-01-01 00:00 UTC."""
HOOK_MS = 600_000
"""Time that a hook takes."""


def _never() -> bool:
    return False


class DrivenLoop(Protocol):
    """The part of the scheduling loop that the cluster drives."""

    @property
    def next_wake_ms(self) -> int | None:
        """Time at which the loop wants to run again if nothing happens before."""

    def drain(self) -> list[tuple[e.Event, "Future[int]"]]:
        """Return the events that were posted since the last cycle."""

    def run_cycle(self, batch: list[tuple[e.Event, "Future[int]"]]) -> None:
        """Run one scheduling cycle."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One attempt of a job.

    first_step: the step from which the attempt resumed
    events: scripted events that are still to come
    left: nodes on which processes remain
    reported: events reported so far; a new server receives them again
    hangs: some ranks are gone, and the others make no progress
    leaving: it is stopped, to go on later, and from then on does nothing but save
    """

    start: Start
    job: Job
    behaviour: Behaviour
    began_ms: int
    first_step: int
    events: TimedEvents
    left: list[str]
    reported: list[AttemptEvent] = field(default_factory=list)
    hangs: bool = False
    stopping: bool = False
    leaving: bool = False

    def ran_ms(self, now_ms: int) -> int:
        """Return the time since all its ranks run; negative before."""
        return now_ms - self.began_ms - self.behaviour.ranks_up_ms(self.start)

    def step(self, now_ms: int) -> int:
        """Return the step that it has reached."""
        return self.behaviour.step_after(self.ran_ms(now_ms), self.first_step)


class VirtualCluster:
    """Nodes, and jobs that behave as scripted: a backend and its clock."""

    def __init__(
        self,
        nodes: list[Node],
        behaviours: dict[str, Behaviour] | None = None,
        levels: tuple[str, ...] = RACK,
        begin_ms: int = BEGIN_MS,
    ) -> None:
        """Begin with all nodes up and nothing running.

        behaviours: by job id; other jobs behave as `Behaviour()` or as `feed` says
        levels: topology levels that the nodes' domains belong to
        begin_ms: Unix time that the times given to `at`, `lose`, `restore` and `run` count from
        """
        self.asked: list[tuple[e.Event, Future[int]]] = []
        """Requests made by `at`, with their answers; an answer that is never set was lost with its server."""
        self._nodes, self._behaviours = {node.name: node for node in nodes}, behaviours or {}
        self._down: dict[str, None] = {}
        self._unnoticed: dict[str, int] = {}
        """Nodes that are down without the server's knowledge, and since when."""
        self._listed: dict[str, Node] = {}
        self._levels = levels
        self._begin_ms = self._now_ms = begin_ms
        self._planned: list[tuple[int, int, Callable[[], None]]] = []
        self._plan_number = count()
        self._attempts: dict[str, _Attempt] = {}
        self._overcommit_check = OvercommitCheck(self._nodes)
        self._checkpoints: dict[str, int] = {}
        self._report: Report = _report_to_no_server
        self._behaviour_of: Callable[[str], Behaviour] = _default_behaviour
        self._repairs: dict[tuple[str, int, int], tuple[bool, int]] = {}
        self.hook: Callable[[RepairCall], tuple[bool, int] | None] = _default_hook
        """The success of a hook, and its time in ms; None: it never ends."""

    # -- scripting and driving -----------------------------------------------------------------------------------------

    def at(self, at_ms: int, event: e.Event) -> None:
        """Make a request at a time, and keep it with its answer in `asked`."""
        self._plan(self._begin_ms + at_ms, lambda: self.asked.append((event, self._report(event))))

    def feed(self, requests: Iterator[tuple[int, e.Event]], behaviour_of: Callable[[str], Behaviour]) -> None:
        """Make requests, given in order of time; each is taken from the iterator when the one before has been made.

        behaviour_of: behaviour of each job that was not scripted
        """
        self._behaviour_of = behaviour_of
        self._plan_request(requests)

    def lose(self, at_ms: int, node: str, unknown_ms: int = 0) -> None:
        """Make a node fail with everything on it; the server learns of it `unknown_ms` later, or when it is back."""
        self._plan(self._begin_ms + at_ms, lambda: self._lose(node, unknown_ms))

    def restore(self, at_ms: int, node: str) -> None:
        """Bring a node back, empty."""
        self._plan(self._begin_ms + at_ms, lambda: self._restore(node))

    def inject_failure(self, at_ms: int, gang: str, failure: ScriptedFailure) -> None:
        """Make the current attempt of a gang fail, whatever attempt and time the failure names."""
        self._plan(self._begin_ms + at_ms, lambda: self._inject_failure(gang, failure))

    def call(self, at_ms: int, action: Callable[[], None]) -> None:
        """Call a function at a time, for what happens outside of the cluster."""
        self._plan(self._begin_ms + at_ms, action)

    def run(self, loop: DrivenLoop | None, until_ms: int, is_over: Callable[[], bool] = _never) -> None:
        """Let time pass, running the loop whenever something has happened or it wants to wake.

        loop: None: there is no server, and no event is received
        is_over: asked after each cycle; once it is true, time stands still and nothing more happens
        """
        if loop is None:
            self._report = _report_to_no_server
        elif batch := loop.drain():
            loop.run_cycle(batch)
        while (next_ms := self._next_ms(loop)) is not None and next_ms <= self._begin_ms + until_ms:
            self._now_ms = max(self._now_ms, next_ms)
            while self._planned and self._planned[0][0] <= self._now_ms:
                heapq.heappop(self._planned)[2]()
            if loop is not None:
                loop.run_cycle(loop.drain())
            if is_over():
                return
        self._now_ms = max(self._now_ms, self._begin_ms + until_ms)

    def elapsed_ms(self) -> int:
        """Return the time since the cluster began."""
        return self._now_ms - self._begin_ms

    def processes(self) -> dict[str, list[str]]:
        """Return the gangs that have processes, and the nodes of these."""
        return {gang: list(attempt.left) for gang, attempt in self._attempts.items() if attempt.left}

    # -- clock and backend ---------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the virtual time, in Unix ms."""
        return self._now_ms

    def behind_ms(self) -> int:
        """Return 0: virtual time is never set back."""
        return 0

    def catch_up(self) -> None:
        """Do nothing: virtual time needs no correction."""

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """Report to a new server what it may have missed, and carry out decisions that were not carried out."""
        self._report = report
        self._unnoticed.clear()
        generations = {allocated.job.id: allocated.start.generation for allocated in live}
        for gang, attempt in self._attempts.items():
            if attempt.left and generations.get(gang) != attempt.start.generation:
                raise Impossible(f"generation {attempt.start.generation} of {gang} runs and is not in the log")
        for allocated in live:
            attempt_before = self._attempts.get(allocated.job.id)
            if attempt_before is not None and attempt_before.start.generation == allocated.start.generation:
                self._resume(attempt_before, allocated)
            elif allocated.stopping is None:
                self.start(allocated.start, allocated.job)
            else:
                start = allocated.start
                report(e.Cleared(gang=allocated.job.id, generation=start.generation, nodes=start.nodes))
        report(self._listing())

    def start(self, start: Start, job: Job) -> None:
        """Begin an attempt on those nodes of the start that are up."""
        before = self._attempts.get(job.id)
        if before is not None and (before.left or before.start.generation >= start.generation):
            raise Impossible(
                f"generation {before.start.generation} of {job.id} is on {before.left}: too early for {start}"
            )
        behaviour = self._behaviours.get(job.id) or self._behaviour_of(job.id)
        behaviour = behaviour.on([self._nodes[node].gpu_type for node in start.nodes])
        first_step = self._checkpoints.get(job.id, 0)
        left = [node for node in start.nodes if node not in self._down]
        self._attempts[job.id] = attempt = _Attempt(
            start=start,
            job=job,
            behaviour=behaviour,
            began_ms=self._now_ms,
            first_step=first_step,
            events=attempt_events(start, behaviour, first_step),
            left=left,
            hangs=len(left) < len(start.nodes),
        )
        self._overcommit_check.begin(start, job, left)
        self._plan_next_events(attempt)

    def stop(self, stop: Stop, job: Job) -> None:
        """Stop the rest of an attempt; with notice, it writes a checkpoint first."""
        attempt = self._attempts.get(stop.gang)
        if attempt is None or attempt.start.generation != stop.generation or attempt.stopping:
            return
        behaviour = attempt.behaviour
        if behaviour.stop_ms is None:
            return
        attempt.stopping, attempt.leaving = True, behaviour.quiet and stop.cause is not Cause.USER
        ends_ms = self._now_ms + behaviour.stop_ms
        self._report_newest_checkpoint(attempt)
        step = attempt.step(self._now_ms)
        if stop.notice_ms and behaviour.checkpoint_every and not attempt.hangs and step > attempt.first_step:
            ends_ms += min(stop.notice_ms, behaviour.save_ms)
            if behaviour.save_ms <= stop.notice_ms:
                checkpointed = e.Checkpointed(gang=stop.gang, generation=stop.generation, step=step)
                self._plan(self._now_ms + behaviour.save_ms, partial(self._happen, attempt, checkpointed))
        for position, nodes in enumerate(reporting_groups(attempt.left, behaviour)):
            cleared = e.Cleared(gang=stop.gang, generation=stop.generation, nodes=nodes)
            self._plan(ends_ms + position * behaviour.stagger_ms, partial(self._happen, attempt, cleared))

    def forget(self, gang: str) -> None:
        """Drop a gang that has ended."""
        attempt = self._attempts.pop(gang, None)
        if attempt is not None and attempt.left:
            raise Impossible(f"{gang} has ended and is still on {attempt.left}")

    def delete(self, gang: str) -> None:
        """Delete the newest checkpoint of a gang, the only thing that it keeps."""
        self._checkpoints.pop(gang, None)

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        """Return no lines: virtual processes write none."""
        return iter(())

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        """Return no lines: virtual processes write none."""
        return iter(())

    def metrics(self, job: str) -> JobMetrics:
        """Return no metrics: virtual processes report none."""
        return JobMetrics()

    def curves(self, job: str) -> tuple[Curve, ...] | None:
        """Return no curves: virtual processes report none."""
        return ()

    def reports(self, job: str) -> Iterator[dict[str, Any]]:
        """Return no reports: virtual processes make none."""
        return iter(())

    def progress(self, job: str) -> dict[str, Any] | None:
        """Return the step that a job has reached."""
        attempt = self._attempts.get(job)
        if attempt is None:
            return None
        return {"step": attempt.step(self._now_ms), "metrics": {}, "t": self._now_ms, "phase": ""}

    def stacks(self, job: str, generation: int) -> Stacks | None:
        """Return None: virtual processes have no stacks."""
        return None

    def log_bytes(self, gang: str) -> int:
        """Return 0: virtual processes write nothing."""
        return 0

    def drop_logs(self, gang: str, instead: str) -> None:
        """Do nothing: virtual processes write nothing."""

    def exec_command(self, gang: str, node: str) -> tuple[str, ...]:
        """Return an empty command line: no command can run beside virtual processes."""
        return ()

    def output_directories(self, gang: str) -> tuple[Path, ...]:
        """Return none: virtual processes write nothing."""
        return ()

    def measure_usage(self) -> UsageSample:
        """Return that nothing is used."""
        return UsageSample(at_ms=self._now_ms)

    def lose_node(self, name: str) -> None:
        """Make a node fail now, at the server's request."""
        self._plan(self._now_ms, lambda: self._lose(name))

    def backend_metrics(self) -> tuple[Metric, ...]:
        """Return no metrics."""
        return ()

    def remove_node(self, name: str) -> None:
        """Make a node fail now, as `lose_node` does: every node belongs to the server."""
        self.lose_node(name)

    def return_node(self, name: str) -> None:
        """Bring a node back now, at the server's request."""
        self._plan(self._now_ms, lambda: self._restore(name))

    def cordon_node(self, name: str, *, cordoned: bool, reason: str) -> None:
        """Do nothing: only the server reads the marks of its nodes."""

    def repair_node(self, call: RepairCall) -> None:
        """Run a hook, once, as `hook` says."""
        identity = (call.node, call.repair, call.begun_ms)
        if identity in self._repairs:
            has_succeeded, at_ms = self._repairs[identity]
        elif (end := self.hook(call)) is not None:
            has_succeeded, at_ms = end[0], self._now_ms + end[1]
            self._repairs[identity] = has_succeeded, at_ms
        else:
            return  # it never ends
        ended = RepairEnded(node=call.node, repair=call.repair, has_succeeded=has_succeeded)
        self._plan(max(self._now_ms, at_ms), partial(self._report_repair, ended))

    def _report_repair(self, ended: RepairEnded) -> None:
        self._report(ended)

    def close(self) -> None:
        """Detach from the server; the cluster goes on."""
        self._report = _report_to_no_server

    # -- what happens --------------------------------------------------------------------------------------------------

    def _plan_next_events(self, attempt: _Attempt) -> None:
        timed = next(attempt.events, None)
        if timed is not None:
            after_ms, events = timed
            self._plan(attempt.began_ms + after_ms, partial(self._continue, attempt, events))

    def _continue(self, attempt: _Attempt, events: tuple[AttemptEvent, ...]) -> None:
        if attempt.left and not attempt.hangs and not attempt.leaving:
            for event in events:
                self._happen(attempt, event)
            self._plan_next_events(attempt)

    def _happen(self, attempt: _Attempt, event: AttemptEvent) -> None:
        """Report an event, unless the attempt has left the nodes that it is about."""
        nodes = event.nodes if isinstance(event, e.Started | e.Finished | e.Cleared) else attempt.left
        if not attempt.left or not any(node in attempt.left for node in nodes):
            return
        if isinstance(event, e.Cleared):
            self._leave(attempt, event.nodes)
        elif isinstance(event, e.Checkpointed):
            self._checkpoints[attempt.job.id] = max(event.step, self._checkpoints.get(attempt.job.id, 0))
        attempt.hangs = attempt.hangs or isinstance(event, e.Failed)
        attempt.reported.append(event)
        self._report(event)

    def _inject_failure(self, gang: str, failure: ScriptedFailure) -> None:
        attempt = self._attempts.get(gang)
        began = attempt is not None and any(isinstance(event, e.Started) for event in attempt.reported)
        if attempt is None or attempt.stopping or attempt.hangs or began == (failure.cause in BEFORE_IT_RUNS):
            return
        if attempt.start.shares[failure.node % len(attempt.start.shares)].node not in attempt.left:
            return  # the processes on that node have ended
        has_steps = any(isinstance(event, e.Progressed) for event in attempt.reported)
        step = attempt.step(self._now_ms) if has_steps else None
        for event in failure_events(attempt.start, failure, step):
            self._happen(attempt, event)
        attempt.hangs = True

    def _lose(self, node: str, unknown_ms: int = 0) -> None:
        if node in self._down:
            return
        self._down[node], self._unnoticed[node] = None, self._now_ms
        for gang in self._overcommit_check.gangs_on(node):
            attempt = self._attempts[gang]
            self._report_newest_checkpoint(attempt)
            self._leave(attempt, (node,))
            attempt.hangs = True
        if unknown_ms:
            self._plan(self._now_ms + unknown_ms, partial(self._report_loss, node, self._now_ms))
        else:
            self._report_loss(node, self._now_ms)

    def _report_loss(self, node: str, since_ms: int) -> None:
        """Report the loss of a node, unless the server knows of it."""
        if self._unnoticed.get(node) == since_ms:
            del self._unnoticed[node]
            self._report(e.NodeLost(node=node, detail="the node was made to fail"))

    def _leave(self, attempt: _Attempt, nodes: tuple[str, ...]) -> None:
        gone = frozenset(nodes)
        attempt.left = [node for node in attempt.left if node not in gone]
        for node in nodes:
            self._overcommit_check.leave(attempt.job.id, node)

    def _report_newest_checkpoint(self, attempt: _Attempt) -> None:
        """Report the newest checkpoint of a quiet job, if it is newer than the one that the attempt began from."""
        if attempt.behaviour.quiet and not attempt.hangs:
            step = attempt.behaviour.checkpoint_after(attempt.ran_ms(self._now_ms), attempt.first_step)
            if step > max(attempt.first_step, self._checkpoints.get(attempt.job.id, 0)):
                generation = attempt.start.generation
                self._happen(attempt, e.Checkpointed(gang=attempt.job.id, generation=generation, step=step))

    def _restore(self, node: str) -> None:
        """Report the return of a node; a server that does not have the node receives the list of all nodes."""
        if node not in self._down:
            return
        if node in self._unnoticed:
            self._report_loss(node, self._unnoticed[node])
        del self._down[node]
        self._report(e.NodeReturned(node=node) if node in self._listed else self._listing())

    def _resume(self, attempt: _Attempt, allocated: LiveGeneration) -> None:
        """Report the events of an attempt again, and those that happened without a server."""
        for event in attempt.reported:
            self._report(event)
        gone = [node for node in attempt.start.nodes if node not in (*attempt.left, *self._down)]
        if gone:
            self._report(e.Cleared(gang=attempt.job.id, generation=attempt.start.generation, nodes=tuple(gone)))
        if allocated.stopping is not None:
            self.stop(allocated.stopping, allocated.job)

    # -- the heap ------------------------------------------------------------------------------------------------------

    def _listing(self) -> e.NodesListed:
        self._listed = {name: node for name, node in self._nodes.items() if name not in self._down}
        return e.NodesListed(nodes=tuple(self._listed.values()), levels=self._levels)

    def _plan_request(self, requests: Iterator[tuple[int, e.Event]]) -> None:
        timed = next(requests, None)
        if timed is not None:
            at_ms, event = timed
            self._plan(self._begin_ms + at_ms, partial(self._make_request, requests, event))

    def _make_request(self, requests: Iterator[tuple[int, e.Event]], event: e.Event) -> None:
        self._report(event)
        self._plan_request(requests)

    def _plan(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._planned, (at_ms, next(self._plan_number), action))

    def _next_ms(self, loop: DrivenLoop | None) -> int | None:
        times_ms = [self._planned[0][0]] if self._planned else []
        if loop is not None and loop.next_wake_ms is not None:
            times_ms.append(loop.next_wake_ms)
        return min(times_ms, default=None)


def _default_hook(call: RepairCall) -> tuple[bool, int]:  # noqa: ARG001 - every hook succeeds
    return True, HOOK_MS


def _default_behaviour(job: str) -> Behaviour:  # noqa: ARG001 - every job behaves alike
    return Behaviour()


def _report_to_no_server(event: e.Event, *beside: e.Event) -> "Future[int]":  # noqa: ARG001 - without a server the answer is never set
    return Future()
