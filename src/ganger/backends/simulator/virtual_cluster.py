"""A world in virtual time: a heap of what is going to happen, and processes that are only figures.

Scripted by tests, and by traces (`feed`); driven by `run`, which turns the one loop at every moment at which something
happens. Deterministic: what is due at the same time happens in the order in which it was planned. The world outlives
its server: a new loop on the same log is opened, and hears again what it may have missed. It is also a witness: it
raises `Impossible` when it is told to do what no real cluster could.
"""

import heapq
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

from ganger.backends.simulator.job_behaviour import BEFORE_IT_RUNS, Behaviour, Death, Fact, course, last_words, together
from ganger.backends.simulator.overcommit_check import Impossible, Witness
from ganger.model import event as e
from ganger.model.cluster import RACK, Node
from ganger.model.decision import Start, Stop
from ganger.model.job import Job
from ganger.model.views.service_views import Stacks
from ganger.ports import LiveGeneration, LogLine, LogQuery, Metric, Report, Use

BEGIN_MS = 1_767_225_600_000
"""When a world begins, unless somebody says otherwise: 2026-01-01 00:00 UTC."""


class Turning(Protocol):
    """What the world needs of the loop."""

    @property
    def next_wake_ms(self) -> int | None:
        """When it wants to be turned again, if nothing happens before."""

    def drain(self) -> list[tuple[e.Event, "Future[int]"]]:
        """What has been posted since the last turn."""

    def turn(self, batch: list[tuple[e.Event, "Future[int]"]]) -> None:
        """One cycle."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """One generation. left: nodes where processes of it are; said: its facts so far, which a new server hears again;
    first: the step where it began; hangs: some of its ranks are gone, and the others do not get on any more."""

    start: Start
    job: Job
    act: Behaviour
    began_ms: int
    first: int
    course: Iterator[tuple[int, tuple[Fact, ...]]]
    left: list[str]
    said: list[Fact] = field(default_factory=list)
    hangs: bool = False
    stopping: bool = False

    def step(self, now_ms: int) -> int:
        """The step it has done."""
        return self.act.step_after(now_ms - self.began_ms - self.act.runs_after_ms(self.start), self.first)


class World:
    """Nodes, and jobs that behave as scripted (by id; the others as `Behaviour()` says). A backend and its clock."""

    def __init__(
        self,
        nodes: list[Node],
        acts: dict[str, Behaviour] | None = None,
        levels: tuple[str, ...] = RACK,
        begin_ms: int = BEGIN_MS,
    ) -> None:
        """All nodes are up and nothing runs. Times given to `at`, `lose`, `restore` and `run` are ms from `begin_ms`
        on; levels: those that the domains of the nodes are of."""
        self.asked: list[tuple[e.Event, Future[int]]] = []
        """What people asked for, with the answers; one that is never done was lost with its server."""
        self._nodes, self._acts = {node.name: node for node in nodes}, acts or {}
        self._down: dict[str, None] = {}
        self._unknown: dict[str, int] = {}
        """Nodes of which nobody knows yet that they are down, and since when they are."""
        self._listed: dict[str, Node] = {}
        self._levels = levels
        self._begin_ms = self._now_ms = begin_ms
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._runs: dict[str, _Run] = {}
        self._witness = Witness(self._nodes)
        self._saved: dict[str, int] = {}
        self._report: Report = _nobody_hears
        self._act_of: Callable[[str], Behaviour] = _as_usual

    # -- scripting and driving -----------------------------------------------------------------------------------------

    def at(self, at_ms: int, event: e.Event) -> None:
        """Somebody asks for something then."""
        self._plan(self._begin_ms + at_ms, lambda: self.asked.append((event, self._report(event))))

    def feed(self, asked: Iterator[tuple[int, e.Event]], acts: Callable[[str], Behaviour]) -> None:
        """Things that are asked for, in order of time, taken as time comes to them and not remembered; `acts`: how the
        jobs behave that were not scripted."""
        self._act_of = acts
        self._feed(asked)

    def lose(self, at_ms: int, node: str, unknown_ms: int = 0) -> None:
        """The node stops then, with everything on it; so long nobody knows, unless it is back before."""
        self._plan(self._begin_ms + at_ms, lambda: self._lose(node, unknown_ms))

    def restore(self, at_ms: int, node: str) -> None:
        """The node is back then, empty."""
        self._plan(self._begin_ms + at_ms, lambda: self._restore(node))

    def strike(self, at_ms: int, gang: str, death: Death) -> None:
        """What the gang runs then, if anything, dies so, whatever generation and time the death names."""
        self._plan(self._begin_ms + at_ms, lambda: self._strike(gang, death))

    def call(self, at_ms: int, action: Callable[[], None]) -> None:
        """Whatever else happens then, outside of the cluster."""
        self._plan(self._begin_ms + at_ms, action)

    def run(self, loop: Turning | None, until_ms: int) -> None:
        """Let time pass, turning the loop whenever something has happened or it wants to be woken. None: there is no
        server, and nobody hears of anything."""
        if loop is None:
            self._report = _nobody_hears
        elif batch := loop.drain():
            loop.turn(batch)
        while (moment_ms := self._next_ms(loop)) is not None and moment_ms <= self._begin_ms + until_ms:
            self._now_ms = max(self._now_ms, moment_ms)
            while self._due and self._due[0][0] <= self._now_ms:
                heapq.heappop(self._due)[2]()
            if loop is not None:
                loop.turn(loop.drain())
        self._now_ms = max(self._now_ms, self._begin_ms + until_ms)

    def passed_ms(self) -> int:
        """Time since the world began."""
        return self._now_ms - self._begin_ms

    def processes(self) -> dict[str, list[str]]:
        """Gangs that have processes, and on which nodes."""
        return {gang: list(run.left) for gang, run in self._runs.items() if run.left}

    # -- clock and backend ---------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Virtual Unix ms."""
        return self._now_ms

    def behind_ms(self) -> int:
        """Nobody sets this clock."""
        return 0

    def catch_up(self) -> None:
        """It is where it is."""

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """A new server: it hears what it may have missed; what was decided but not done is done now."""
        self._report = report
        self._unknown.clear()
        known = {one.job.id: one.start.generation for one in live}
        for gang, run in self._runs.items():
            if run.left and known.get(gang) != run.start.generation:
                raise Impossible(f"generation {run.start.generation} of {gang} runs and the log does not know")
        for one in live:
            run_before = self._runs.get(one.job.id)
            if run_before is not None and run_before.start.generation == one.start.generation:
                self._resume(run_before, one)
            elif one.stopping is None:
                self.start(one.start, one.job)
            else:
                report(e.Cleared(gang=one.job.id, generation=one.start.generation, nodes=one.start.nodes))
        report(self._listing())

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation on those of its nodes that are up."""
        before = self._runs.get(job.id)
        if before is not None and (before.left or before.start.generation >= start.generation):
            raise Impossible(
                f"generation {before.start.generation} of {job.id} is on {before.left}: no time for {start}"
            )
        act, first = self._acts.get(job.id) or self._act_of(job.id), self._saved.get(job.id, 0)
        left = [node for node in start.nodes if node not in self._down]
        self._runs[job.id] = run = _Run(
            start=start,
            job=job,
            act=act,
            began_ms=self._now_ms,
            first=first,
            course=course(start, act, first),
            left=left,
            hangs=len(left) < len(start.nodes),
        )
        self._witness.begin(start, job, left)
        self._go_on(run)

    def stop(self, stop: Stop, job: Job) -> None:
        """Stop what is left of a generation; with notice, it saves its work first."""
        run = self._runs.get(stop.gang)
        if run is None or run.start.generation != stop.generation or run.stopping or run.act.stop_ms is None:
            return
        run.stopping = True
        ends_ms = self._now_ms + run.act.stop_ms
        self._keep(run)
        if stop.notice_ms and run.act.checkpoint_every and not run.hangs and run.step(self._now_ms) > run.first:
            ends_ms += min(stop.notice_ms, run.act.save_ms)
            if run.act.save_ms <= stop.notice_ms:
                saved = e.Checkpointed(gang=stop.gang, generation=stop.generation, step=run.step(self._now_ms))
                self._plan(self._now_ms + run.act.save_ms, partial(self._say, run, saved))
        for position, nodes in enumerate(together(run.left, run.act)):
            gone = e.Cleared(gang=stop.gang, generation=stop.generation, nodes=nodes)
            self._plan(ends_ms + position * run.act.apart_ms, partial(self._say, run, gone))

    def forget(self, gang: str) -> None:
        """The gang has ended."""
        run = self._runs.pop(gang, None)
        if run is not None and run.left:
            raise Impossible(f"{gang} has ended and is still on {run.left}")

    def delete(self, gang: str) -> None:
        """Nothing is on any disk but the newest checkpoint."""
        self._saved.pop(gang, None)

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        """Nothing writes here."""
        return iter(())

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        """Nothing writes here."""
        return iter(())

    def metrics(self, job: str) -> Iterator[dict[str, Any]]:
        """Nothing reports figures here."""
        return iter(())

    def progress(self, job: str) -> dict[str, Any] | None:
        """The step that was reached."""
        run = self._runs.get(job)
        return {"step": run.step(self._now_ms), "metrics": {}, "t": self._now_ms, "phase": ""} if run else None

    def stacks(self, job: str, generation: int) -> Stacks | None:
        """Nothing runs here that would have any."""
        return None

    def log_bytes(self, gang: str) -> int:
        """Nothing is written here."""
        return 0

    def drop_logs(self, gang: str, instead: str) -> None:
        """There are none."""

    def entrance(self, gang: str, node: str) -> tuple[str, ...]:
        """There is nothing here that a command could run beside."""
        return ()

    def use(self) -> Use:
        """Nothing uses anything."""
        return Use(at_ms=self._now_ms)

    def lose_node(self, name: str) -> None:
        """As `lose`, by the server's own hand."""
        self._plan(self._now_ms, lambda: self._lose(name))

    def measures(self) -> tuple[Metric, ...]:
        return ()

    def take_away(self, name: str) -> None:
        """The same: every node here is the server's own."""
        self.lose_node(name)

    def return_node(self, name: str) -> None:
        """As `restore`, by the server's own hand."""
        self._plan(self._now_ms, lambda: self._restore(name))

    def close(self) -> None:
        """The server goes; the world does not."""
        self._report = _nobody_hears

    # -- what happens --------------------------------------------------------------------------------------------------

    def _go_on(self, run: _Run) -> None:
        """Wait for the next fact of a generation's course."""
        coming = next(run.course, None)
        if coming is not None:
            self._plan(run.began_ms + coming[0], partial(self._happen, run, coming[1]))

    def _happen(self, run: _Run, facts: tuple[Fact, ...]) -> None:
        if run.left and not run.hangs:
            for fact in facts:
                self._say(run, fact)
            self._go_on(run)

    def _say(self, run: _Run, fact: Fact) -> None:
        """A fact, unless nothing of the generation is there any more."""
        where = fact.nodes if isinstance(fact, e.Started | e.Finished | e.Cleared) else run.left
        if not run.left or not any(node in run.left for node in where):
            return
        if isinstance(fact, e.Cleared):
            self._leave(run, fact.nodes)
        elif isinstance(fact, e.Checkpointed):
            self._saved[run.job.id] = max(fact.step, self._saved.get(run.job.id, 0))
        run.hangs = run.hangs or isinstance(fact, e.Failed)
        run.said.append(fact)
        self._report(fact)

    def _strike(self, gang: str, death: Death) -> None:
        run = self._runs.get(gang)
        began = run is not None and any(isinstance(fact, e.Started) for fact in run.said)
        if run is None or run.stopping or run.hangs or began == (death.cause in BEFORE_IT_RUNS):
            return
        if run.start.shares[death.node % len(run.start.shares)].node not in run.left:
            return  # what ran there has ended: there is nothing to strike
        step = run.step(self._now_ms) if any(isinstance(fact, e.Progressed) for fact in run.said) else None
        for fact in last_words(run.start, death, step):
            self._say(run, fact)
        run.hangs = True

    def _lose(self, node: str, unknown_ms: int = 0) -> None:
        if node in self._down:
            return
        self._down[node], self._unknown[node] = None, self._now_ms
        for gang in self._witness.on(node):
            run = self._runs[gang]
            self._keep(run)
            self._leave(run, (node,))
            run.hangs = True
        if unknown_ms:
            self._plan(self._now_ms + unknown_ms, partial(self._miss, node, self._now_ms))
        else:
            self._miss(node, self._now_ms)

    def _miss(self, node: str, since_ms: int) -> None:
        """The server hears of the loss, if it is not known yet."""
        if self._unknown.get(node) == since_ms:
            del self._unknown[node]
            self._report(e.NodeLost(node=node, detail="it was made to fail"))

    def _leave(self, run: _Run, nodes: tuple[str, ...]) -> None:
        """Nothing of it is there any more."""
        run.left = [node for node in run.left if node not in nodes]
        for node in nodes:
            self._witness.leave(run.job.id, node)

    def _keep(self, run: _Run) -> None:
        """What a quiet one has kept by now is told, if it is more than when it began."""
        if run.act.quiet and not run.hangs:
            ran_ms = self._now_ms - run.began_ms - run.act.runs_after_ms(run.start)
            step = run.act.kept_after(ran_ms, run.first)
            if step > max(run.first, self._saved.get(run.job.id, 0)):
                self._say(run, e.Checkpointed(gang=run.job.id, generation=run.start.generation, step=step))

    def _restore(self, node: str) -> None:
        """The server hears of the return; one that was never told of the node hears of all there are."""
        if node not in self._down:
            return
        if node in self._unknown:
            self._miss(node, self._unknown[node])
        del self._down[node]
        self._report(e.NodeReturned(node=node) if node in self._listed else self._listing())

    def _resume(self, run: _Run, live: LiveGeneration) -> None:
        """Say again what was said, and what nobody was there to say."""
        for fact in run.said:
            self._report(fact)
        gone = [node for node in run.start.nodes if node not in (*run.left, *self._down)]
        if gone:
            self._report(e.Cleared(gang=run.job.id, generation=run.start.generation, nodes=tuple(gone)))
        if live.stopping is not None:
            self.stop(live.stopping, live.job)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _listing(self) -> e.NodesListed:
        self._listed = {name: node for name, node in self._nodes.items() if name not in self._down}
        return e.NodesListed(nodes=tuple(self._listed.values()), levels=self._levels)

    def _feed(self, asked: Iterator[tuple[int, e.Event]]) -> None:
        """Wait for the next of them."""
        coming = next(asked, None)
        if coming is not None:
            self._plan(self._begin_ms + coming[0], partial(self._take_in, asked, coming[1]))

    def _take_in(self, asked: Iterator[tuple[int, e.Event]], event: e.Event) -> None:
        self._report(event)
        self._feed(asked)

    def _plan(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_ms, next(self._order), action))

    def _next_ms(self, loop: Turning | None) -> int | None:
        moments = [self._due[0][0]] if self._due else []
        if loop is not None and loop.next_wake_ms is not None:
            moments.append(loop.next_wake_ms)
        return min(moments, default=None)


def _as_usual(job: str) -> Behaviour:  # noqa: ARG001 - whatever job it is
    return Behaviour()


def _nobody_hears(event: e.Event, *beside: e.Event) -> "Future[int]":  # noqa: ARG001 - there is no server: nobody will ever answer
    return Future()
