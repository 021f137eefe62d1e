"""Carries decisions out on this machine and tells what became of them: one launcher for each gang on each node.

Built by `backend`; everything here runs on the event loop, so nothing is locked. Launchers outlive the server: what
must be known after a restart is in the log (which generations hold nodes) and on disk (what was begun, how it ended).
"""

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.launchers import Launchers, Task
from ganger.backends.local.local_records import LocalRecords
from ganger.backends.local.start_checks import Unstartable, complete, refuse_busy_port, working_directory, write_plans
from ganger.launcher_server import message_events
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import Dispatcher, LauncherWorld, send_stop
from ganger.launcher_server.generation_state import Generation, kill_after_ms, new_generation
from ganger.model.cluster import Cluster
from ganger.model.decision import Cause, Start, Stop
from ganger.model.event import Cleared, Failed, Finished, NodeLost, NodeReturned, NodesListed
from ganger.model.job import Job
from ganger.ports import LaunchPlan, LaunchPlanner, LiveGeneration, Report

WEDGED_AFTER_S: Final = 10.0
"""How much longer than its ranks a launcher that was told to stop may take before it is killed itself."""
SWEEP_FIRST_S: Final = 0.01
SWEEP_MAX_S: Final = 1.0


class GangRuntime:
    """The gangs on this machine. Listens to their launchers."""

    def __init__(
        self, layout: JobFiles, cluster: Cluster, compose: LaunchPlanner, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._layout = layout
        self._nodes = {node.name: node for node in cluster.nodes}
        self._levels = cluster.levels
        self._compose = compose
        self._loop = loop
        self._launchers = Launchers(layout, loop, self._gone)
        self._generations: dict[str, Generation] = {}
        self._records = LocalRecords(layout)
        self._lost: list[str] = []
        self._hearing: Dispatcher
        self._sweeps: set[asyncio.Task[None]] = set()
        self._connections: list[Connection] = []
        self._closing = asyncio.Event()

    # -- what the core decides ----------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[LiveGeneration, ...], listening: socket.socket) -> None:
        """Find again what runs, begin what was only decided, and end what nobody wants any more."""
        self._serving = self._loop.create_task(self._serve(listening))
        self._generations = {one.job.id: new_generation(one.start, one.job, one.stopping) for one in live}
        world = LauncherWorld(self._generations.get, self._connection, self._address, self._records)
        self._hearing = Dispatcher(world, report, self._loop)
        self._launchers.find()
        for generation in list(self._generations.values()):
            self._resume(generation)
        self._end_orphans()
        self._hearing.report_event(NodesListed(nodes=tuple(self._nodes.values()), levels=self._levels))

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation; the one before it is over by the log."""
        if before := self._generations.get(start.gang):
            before.forget_deadline()
        generation = self._generations[start.gang] = new_generation(start, job)
        for node in self._lost:
            generation.clear(node)
        self._begin(generation, list(generation.remaining))

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
        self._hearing.report_event(NodeLost(node=node, detail="it was made to fail"))
        for generation in self._generations.values():
            if node in generation.remaining:
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
            self._hearing.report_event(NodeReturned(node=node))

    def close(self) -> None:
        """Let go of everything; launchers and ranks run on."""
        self._closing.set()
        self._hearing.close()
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

    def launcher_connected(self, connection: Connection, hello: Hello) -> None:
        """A launcher is there, for the first time or again: tell it what holds."""
        lost = self._closing.is_set() or hello.node in self._lost
        task = None if lost else self._launchers.connected(connection, hello)
        if task is None:
            connection.close()
            return
        connection.send("welcome")
        generation = self._generations.get(task.gang)
        current = generation.number if generation and task.node in generation.remaining else None
        for number in hello.generations:
            if number != current:
                send_stop(connection, Stop(gang=task.gang, generation=number, cause=Cause.USER))
        if generation is None:
            connection.send("leave")
        elif current and generation.stopping:
            send_stop(connection, generation.stopping)
        elif current and current not in hello.generations and not task.directory.new_generation(current):
            connection.send("run", generation=current)

    def message_received(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        """A fact about a generation, current or not: the core tells them apart. Acknowledged when it is durable."""
        task = self._launchers.task(hello.gang, hello.node)
        if self._closing.is_set() or task.connection is not connection:
            return
        self._hearing.message_received(connection, hello, message, self._hearing.current(hello, message))

    def message_refused(self, hello: Hello, why: str) -> None:
        """A launcher's message was refused: after several in a row it is killed, and its guard clears up after it."""
        if not self._closing.is_set() and self._hearing.message_refused(hello, why):
            self._launchers.kill(self._launchers.task(hello.gang, hello.node))

    def launcher_disconnected(self, connection: Connection) -> None:
        """A launcher is gone, or will be back."""
        self._connections.remove(connection)
        self._launchers.disconnected(connection)

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
        self._hearing.report_event(
            Failed(gang=gang, generation=number, node=why.node, cause=why.cause, detail=why.detail)
        )
        self._hearing.report_event(Cleared(gang=gang, generation=number, nodes=tuple(nodes)))
        for node in nodes:
            generation.clear(node)

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end(self, generation: Generation, stop: Stop) -> None:
        """Have what is left stopped, by the launchers that live and by our own hands where there is none."""
        for node in list(generation.remaining):
            task = self._launchers.task(generation.gang, node)
            if task.connection is not None:
                send_stop(task.connection, stop)
            elif task.process is None:
                self._conclude(generation, task)  # one that lives is told when it has connected
        generation.forget_deadline()
        if generation.remaining:
            limit_s = (stop.notice_ms + kill_after_ms(stop.cause)) / 1000 + WEDGED_AFTER_S
            generation.deadline = self._loop.call_later(limit_s, self._kill_wedged, generation)

    def _kill_wedged(self, generation: Generation) -> None:
        for node in generation.remaining:
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
        elif task.node in generation.remaining and task.node not in generation.sweeping:
            if self._launchers.find_another(task):
                return
            unbegun = task.spawned_for != generation.number and not task.directory.new_generation(generation.number)
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
        found = message_events.ending(task.directory, gang, number, node)
        if self._hearing.report_if_done(generation) is not None and not isinstance(found, Finished):
            found = None  # what it had left is not needed any more
        elif not isinstance(found, Finished) and not generation.stopping and node not in generation.failed:
            generation.failed.append(node)
            detail = f"the launcher of {node} {task.ending}"
            if task.ending.startswith("exited"):  # one that was killed had no time to say why
                detail += _last_words(task.directory.launcher_log)
            lost = Failed(gang=gang, generation=number, node=node, cause=Cause.LAUNCHER_LOST, detail=detail)
            self._hearing.report_event(found or lost)
        self._sweep_up(self._sweep(generation, task, found if isinstance(found, Finished) else None))

    async def _sweep(self, generation: Generation, task: Task, finished: Finished | None) -> None:
        await _kill_all(task.directory.generation(generation.number))
        generation.sweeping.remove(task.node)
        if task.node in generation.remaining:
            if finished is not None:
                self._hearing.report_event(finished)
            self._hearing.report_event(Cleared(gang=generation.gang, generation=generation.number, nodes=(task.node,)))
            generation.clear(task.node)

    # -- after a restart ----------------------------------------------------------------------------------------------

    def _resume(self, generation: Generation) -> None:
        """Carry on with a generation of which this server knows only what the log and the disk say."""
        number, unbegun = generation.number, []
        for node in list(generation.remaining):
            task = self._launchers.task(generation.gang, node)
            if not generation.stopping and not task.directory.new_generation(number):
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
        for place in sorted({place for place, _ in machine_processes.marked()}):
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

    def _connection(self, gang: str, node: str) -> Connection | None:
        return self._launchers.task(gang, node).connection

    def _address(self, gang: str, node: str) -> str | None:
        return self._nodes[node].address if node in self._nodes else None

    def _token_of(self, gang: str, node: str) -> str | None:
        return self._layout.task(gang, node).token()

    def _sweep_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)


async def _kill_all(directory: Path) -> None:
    """Kill until nothing of a generation is left on a node."""
    pause_s = SWEEP_FIRST_S
    while machine_processes.kill_marked(directory):
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
