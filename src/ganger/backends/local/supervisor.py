"""Carries decisions out on this machine and tells what became of them: one launcher for each gang on each node.

Built by `backend`; everything here runs on the event loop, so nothing is locked. Launchers outlive the server: what
must be known after a restart is in the log (which generations hold nodes) and on disk (what was begun, how it ended).
"""

import asyncio
import socket
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ganger.backends.local import facts, processes
from ganger.backends.local.begin import Unstartable, complete, refuse_busy_port, working_directory, write_plans
from ganger.backends.local.ends import Ends
from ganger.backends.local.generation import Generation, begun, kill_after_ms
from ganger.backends.local.hang import Hang
from ganger.backends.local.launchers import Launchers, Task
from ganger.backends.local.layout import Layout
from ganger.backends.local.link import Connection, Hello
from ganger.backends.local.rules import Judging
from ganger.engine.ports import Compose, LaunchPlan, Live, Report
from ganger.model.cluster import Cluster
from ganger.model.decision import Cause, Start, Stop
from ganger.model.event import Cleared, Done, Event, Failed, Finished, NodeLost, NodeReturned, NodesListed, Progressed
from ganger.model.job import Job, Retry

WEDGED_AFTER_S: Final = 10.0
"""How much longer than its ranks a launcher that was told to stop may take before it is killed itself."""
SWEEP_FIRST_S: Final = 0.01
SWEEP_MAX_S: Final = 1.0


class Supervisor:
    """The gangs on this machine. Listens to their launchers."""

    def __init__(self, layout: Layout, cluster: Cluster, compose: Compose, loop: asyncio.AbstractEventLoop) -> None:
        self._layout = layout
        self._nodes = {node.name: node for node in cluster.nodes}
        self._levels = cluster.levels
        self._compose = compose
        self._loop = loop
        self._launchers = Launchers(layout, loop, self._gone)
        self._generations: dict[str, Generation] = {}
        self._hang = Hang(layout, loop, self._ask_for_stacks, self._fail)
        self._lost: list[str] = []
        self._report: Judging
        self._sweeps: set[asyncio.Task[None]] = set()
        self._connections: list[Connection] = []
        self._closing = asyncio.Event()

    # -- what the core decides ----------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[Live, ...], listening: socket.socket) -> None:
        """Find again what runs, begin what was only decided, and end what nobody wants any more."""
        self._serving = self._loop.create_task(self._serve(listening))
        self._generations = {one.job.id: begun(one.start, one.job, one.stopping) for one in live}
        ends = Ends(self._layout, self._generations.get)
        self._report = Judging(self._layout, ends, report, self._retry_of)
        self._launchers.find()
        for generation in list(self._generations.values()):
            self._resume(generation)
        self._end_orphans()
        self._tell(NodesListed(nodes=tuple(self._nodes.values()), levels=self._levels))

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation; the one before it is over by the log."""
        if before := self._generations.get(start.gang):
            before.forget_deadline()
        generation = self._generations[start.gang] = begun(start, job)
        for node in self._lost:
            generation.clear(node)
        self._begin(generation, list(generation.left))

    def stop(self, stop: Stop) -> None:
        """Stop what is left of a generation."""
        generation = self._generations.get(stop.gang)
        if generation is not None and generation.number == stop.generation:
            generation.stopping = stop
            self._end(generation, stop)

    def forget(self, gang: str) -> None:
        """The gang has ended: its launchers may go."""
        generation = self._generations.pop(gang, None)
        if generation is not None:
            generation.forget_deadline()
        for task in self._launchers.all():
            if task.gang == gang and task.connection is not None:
                task.connection.send("leave")
            elif task.gang == gang and task.process is None:
                self._launchers.forget(task)

    def lose(self, node: str) -> None:
        """Make a virtual node vanish with all that runs on it."""
        if node in self._lost or node not in self._nodes:
            return
        self._lost.append(node)
        self._tell(NodeLost(node=node, detail="it was made to fail"))
        for generation in self._generations.values():
            if node in generation.left:
                generation.clear(node)
                task = self._launchers.task(generation.gang, node)
                self._sweep_up(_kill_all(task.directory.generation(generation.number)))
        for task in self._launchers.all():
            if task.node == node:
                self._launchers.kill(task)

    def restore(self, node: str) -> None:
        """Let a lost virtual node come back."""
        if node in self._lost:
            self._lost.remove(node)
            self._tell(NodeReturned(node=node))

    def close(self) -> None:
        """Let go of everything; launchers and ranks run on."""
        self._closing.set()
        self._report.close()
        for generation in self._generations.values():
            generation.forget_deadline()
        for sweep in self._sweeps:
            sweep.cancel()
        self._launchers.close()
        for connection in self._connections:
            connection.close()
        with suppress(OSError):
            self._layout.socket.unlink()

    # -- what launchers say -------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Somebody is there. A launcher that comes too late must be dropped, or it would not come to our successor."""
        self._connections.append(connection)
        if self._closing.is_set():
            connection.close()

    def greeted(self, connection: Connection, hello: Hello) -> None:
        """A launcher is there, for the first time or again: tell it what holds."""
        lost = self._closing.is_set() or hello.node in self._lost
        task = None if lost else self._launchers.connected(connection, hello)
        if task is None:
            connection.close()
            return
        connection.send("welcome")
        generation = self._generations.get(task.gang)
        current = generation.number if generation and task.node in generation.left else None
        for number in hello.generations:
            if number != current:
                _send_stop(connection, Stop(gang=task.gang, generation=number, cause=Cause.USER))
        if generation is None:
            connection.send("leave")
        elif current and generation.stopping:
            _send_stop(connection, generation.stopping)
        elif current and current not in hello.generations and not task.directory.begun(current):
            connection.send("run", generation=current)

    def heard(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        """A fact about a generation, current or not: the core tells them apart. Acknowledged when it is durable."""
        task = self._launchers.task(hello.gang, hello.node)
        if self._closing.is_set() or task.connection is not connection:
            return
        generation = self._generations.get(task.gang)
        if generation is not None and generation.number != message.get("generation"):
            generation = None
        if message["type"] == "ready":
            if generation is not None:
                self._proceed(generation, task.node, message)
            return
        if message["type"] in ("standing", "stacked"):
            if generation is not None:
                hears = self._hang.heard if message["type"] == "standing" else self._hang.answered
                hears(generation, task.node, message)
            return
        durable = self._take(generation, task, message)
        if "n" in message:
            connection.acknowledge(facts.whole(message, "n"), durable)

    def parted(self, connection: Connection) -> None:
        """A launcher is gone, or will be back."""
        self._connections.remove(connection)
        self._launchers.disconnected(connection)

    def _take(self, generation: Generation | None, task: Task, message: dict[str, Any]) -> Future[int] | None:
        """Report what a message says of the current generation, if it is one, or of an older one."""
        if message["type"] in ("done", "exited") and generation is not None:
            done = self._done(generation)
            if done is not None or message["type"] == "done":
                return done  # who dies because the others have ended does no harm
        event = self._event(generation, task, message)
        return None if event is None else self._report(event)

    def _event(self, generation: Generation | None, task: Task, message: dict[str, Any]) -> Event | None:
        if message["type"] == "progressed":
            if generation is None or not message.get("milestone"):
                return None
            step = generation.progress(task.node, facts.whole(message, "step"))
            for slow in self._hang.paced(generation, task.node, message):
                self._tell(slow)
            return None if step is None else Progressed(gang=task.gang, generation=generation.number, step=step)
        if message["type"] == "done":
            return None  # of an older one
        event = facts.event(message, task.gang, task.node)
        if generation is not None and isinstance(event, Failed):
            generation.failed.append(task.node)
        if generation is not None and isinstance(event, Cleared):
            generation.clear(task.node)
        return event

    def _ask_for_stacks(self, gang: str, node: str, fields: dict[str, Any]) -> None:
        connection = self._launchers.task(gang, node).connection
        if connection is not None:
            connection.send("stacks", **fields)

    def _fail(self, generation: Generation, failed: Failed) -> None:
        """Tell of a failure that no launcher has told."""
        if self._done(generation) is None:
            generation.failed.append(failed.node)
            self._tell(failed)

    def _done(self, generation: Generation) -> Future[int] | None:
        """Report, once, that all ended whose end is the end of the job; None while that is not so."""
        lost = generation.done is not None and generation.done.done() and generation.done.exception() is not None
        if generation.done is None or lost:
            tasks = [self._layout.task(generation.gang, node) for node in generation.start.nodes]
            if generation.stopping or not facts.is_done(tasks, generation.number):
                return None
            generation.done = self._report(Done(gang=generation.gang, generation=generation.number))
        return generation.done

    def _proceed(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """Let the nodes that wait go on, when all are ready."""
        port = message.get("agent_port")
        port = None if port is None else facts.whole(message, "agent_port")
        reached = generation.ready(node, facts.whole(message, "stage"), port)
        if reached is None:
            return
        stage, waiting = reached
        agents = {
            name: [self._nodes[name].address, port]
            for name, (_, port) in generation.stages.items()
            if port is not None and name in self._nodes
        }
        for name in waiting:
            connection = self._launchers.task(generation.gang, name).connection
            if connection is not None:
                connection.send("proceed", generation=generation.number, stage=stage, agents=agents)

    # -- beginning ----------------------------------------------------------------------------------------------------

    def _begin(self, generation: Generation, nodes: list[str]) -> None:
        """Start the launchers of these nodes, or tell why not."""
        try:
            plans = self._plans(generation, nodes)
            write_plans(self._layout, plans)
        except Unstartable as error:
            self._give_up(generation, nodes, error)
            return
        for plan in plans:
            self._launch(generation, self._launchers.task(plan.gang, plan.node))

    def _plans(self, generation: Generation, nodes: list[str]) -> tuple[LaunchPlan, ...]:
        start, job = generation.start, generation.job
        for node in start.nodes:
            if node not in self._nodes:
                raise Unstartable(Cause.NODE_LOST, node, f"there is no node {node} any more")
        if len(nodes) == len(start.nodes):
            refuse_busy_port(start)
        directory = working_directory(self._layout, start, job)
        try:
            plans = self._compose(start, job, self._nodes, directory)
        except Exception as error:  # plug-ins have a say in it; whatever they do, the gang must not hang
            raise Unstartable(Cause.START_FAILED, nodes[0], f"no plan could be made: {error}") from error
        return tuple(plan for plan in complete(self._layout, plans, job, self._nodes) if plan.node in nodes)

    def _launch(self, generation: Generation, task: Task) -> None:
        if task.process is not None:
            if task.connection is not None:
                task.connection.send("run", generation=generation.number)
            return  # otherwise it is told when it has connected
        try:
            self._launchers.spawn(task, generation.number)
        except OSError as error:
            detail = f"the launcher of {task.node} cannot be started: {error.strerror}"
            self._give_up(generation, [task.node], Unstartable(Cause.START_FAILED, task.node, detail))

    def _give_up(self, generation: Generation, nodes: list[str], why: Unstartable) -> None:
        gang, number = generation.gang, generation.number
        generation.failed.append(why.node)
        self._tell(Failed(gang=gang, generation=number, node=why.node, cause=why.cause, detail=why.detail))
        self._tell(Cleared(gang=gang, generation=number, nodes=tuple(nodes)))
        for node in nodes:
            generation.clear(node)

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end(self, generation: Generation, stop: Stop) -> None:
        """Have what is left stopped, by the launchers that live and by our own hands where there is none."""
        for node in list(generation.left):
            task = self._launchers.task(generation.gang, node)
            if task.connection is not None:
                _send_stop(task.connection, stop)
            elif task.process is None:
                self._conclude(generation, task)  # one that lives is told when it has connected
        generation.forget_deadline()
        if generation.left:
            limit_s = (stop.notice_ms + kill_after_ms(stop.cause)) / 1000 + WEDGED_AFTER_S
            generation.deadline = self._loop.call_later(limit_s, self._kill_wedged, generation)

    def _kill_wedged(self, generation: Generation) -> None:
        for node in generation.left:
            task = self._launchers.task(generation.gang, node)
            if not task.directory.cleared(generation.number):
                self._launchers.kill(task)

    def _gone(self, task: Task) -> None:
        """A launcher ended, and all it had sent was heard. If it owed something, say what became of that."""
        generation = self._generations.get(task.gang)
        if self._closing.is_set():
            return
        if generation is None:
            self._launchers.forget(task)
        elif task.node in generation.left and task.node not in generation.sweeping:
            if self._launchers.find_another(task):
                return
            unbegun = task.spawned_for != generation.number and not task.directory.begun(generation.number)
            if unbegun and not generation.stopping:
                self._launch(generation, task)  # it left just before it could be told of the new generation
            else:
                self._conclude(generation, task)

    def _conclude(self, generation: Generation, task: Task) -> None:
        """Tell from the disk how a generation ended on a node that has no launcher, and clear away what it left."""
        gang, number, node = generation.gang, generation.number, task.node
        if node in generation.sweeping:
            return
        generation.sweeping.append(node)
        found = facts.ending(task.directory, gang, number, node)
        if self._done(generation) is not None and not isinstance(found, Finished):
            found = None  # what it had left is not needed any more
        elif not isinstance(found, Finished) and not generation.stopping and node not in generation.failed:
            generation.failed.append(node)
            detail = f"the launcher of {node} {task.ending}"
            if task.ending.startswith("exited"):  # one that was killed had no time to say why
                detail += _last_words(task.directory.launcher_log)
            lost = Failed(gang=gang, generation=number, node=node, cause=Cause.LAUNCHER_LOST, detail=detail)
            self._tell(found or lost)
        self._sweep_up(self._sweep(generation, task, found if isinstance(found, Finished) else None))

    async def _sweep(self, generation: Generation, task: Task, finished: Finished | None) -> None:
        await _kill_all(task.directory.generation(generation.number))
        generation.sweeping.remove(task.node)
        if task.node in generation.left:
            if finished is not None:
                self._tell(finished)
            self._tell(Cleared(gang=generation.gang, generation=generation.number, nodes=(task.node,)))
            generation.clear(task.node)

    # -- after a restart ----------------------------------------------------------------------------------------------

    def _resume(self, generation: Generation) -> None:
        """Carry on with a generation of which this server knows only what the log and the disk say."""
        number, unbegun = generation.number, []
        for node in list(generation.left):
            task = self._launchers.task(generation.gang, node)
            if not generation.stopping and not task.directory.begun(number):
                # With a plan and a launcher it may be about to begin; the launcher tells when it connects.
                if task.process is None or task.directory.planned(number) is None:
                    unbegun.append(node)
            elif task.process is None:
                self._conclude(generation, task)
        if unbegun:
            self._begin(generation, unbegun)
        if generation.stopping:
            self._end(generation, generation.stopping)

    def _end_orphans(self) -> None:
        """Clear away ranks that no launcher looks after and no generation wants. A launcher that nobody wants is told
        to go when it connects."""
        for place in sorted({place for place, _ in processes.marked()}):
            key = self._layout.task_of(place.parent)
            if key is None:
                continue
            generation = self._generations.get(key[0])
            wanted = generation is not None and place.name == str(generation.number)
            if not wanted and self._launchers.task(*key).process is None:
                self._sweep_up(_kill_all(place))

    # -- the loop's own -----------------------------------------------------------------------------------------------

    async def _serve(self, listening: socket.socket) -> None:
        server = await self._loop.create_unix_server(lambda: Connection(self, self._token_of), sock=listening)
        try:
            await self._closing.wait()
        finally:
            server.close()

    def _retry_of(self, gang: str) -> Retry | None:
        generation = self._generations.get(gang)
        return None if generation is None else generation.job.spec.retry

    def _token_of(self, gang: str, node: str) -> str | None:
        return self._layout.task(gang, node).token()

    def _tell(self, event: Event) -> None:
        if not self._closing.is_set():
            self._report(event)

    def _sweep_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)


def _send_stop(connection: Connection, stop: Stop) -> None:
    connection.send(
        "stop",
        generation=stop.generation,
        cause=stop.cause.value,
        notice_ms=stop.notice_ms,
        kill_after_ms=kill_after_ms(stop.cause),
    )


async def _kill_all(directory: Path) -> None:
    """Kill until nothing of a generation is left on a node."""
    pause_s = SWEEP_FIRST_S
    while processes.kill_marked(directory):
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, SWEEP_MAX_S)


def _last_words(log: Path) -> str:
    """The last line a launcher wrote about itself, as the end of a sentence."""
    try:
        lines = log.read_text(errors="replace")[-2000:].split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return f": {said[-1]}" if said else ""
