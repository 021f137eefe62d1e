"""The gang runtime of one machine: one launcher per gang and node.

Everything runs on the event loop, so nothing is locked. Launchers outlive the server: what must be known after a
restart is in the event log (which generations have nodes) and on disk (what has begun, how it ended).
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
from ganger.backends.local.start_checks import (
    CannotStartError,
    check_port,
    complete,
    working_directory,
    write_plans,
)
from ganger.launcher_server import message_events
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import Dispatcher, LauncherWorld, send_stop
from ganger.launcher_server.generation_state import Generation, new_generation
from ganger.launcher_server.stop_grace import kill_after_ms
from ganger.model.cluster import Cluster
from ganger.model.decision import Cause, Start, Stop
from ganger.model.event import Cleared, Failed, Finished, NodeLost, NodeReturned, NodesListed
from ganger.model.job import Job
from ganger.ports import LaunchPlan, LaunchPlanner, LiveGeneration, Report

WEDGED_AFTER_S: Final = 10.0
"""Time beyond the ranks' deadline after which a launcher that was asked to stop is killed itself."""
SWEEP_FIRST_S: Final = 0.01
SWEEP_MAX_S: Final = 1.0


class GangRuntime:
    """The gangs on this machine; the peer of their launchers."""

    def __init__(
        self, files: JobFiles, cluster: Cluster, compose: LaunchPlanner, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._files = files
        self._nodes = {node.name: node for node in cluster.nodes}
        self._levels = cluster.levels
        self._compose = compose
        self._loop = loop
        self._launchers = Launchers(files, loop, self._handle_exit)
        self._generations: dict[str, Generation] = {}
        self._records = LocalRecords(files)
        self._lost: list[str] = []
        self._dispatcher: Dispatcher
        self._sweeps: set[asyncio.Task[None]] = set()
        self._connections: list[Connection] = []
        self._closing = asyncio.Event()

    # -- decisions of the core ----------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[LiveGeneration, ...], listener: socket.socket) -> None:
        """Adopt running generations, begin those that were only decided, and end those that are obsolete."""
        self._serving = self._loop.create_task(self._serve(listener))
        self._generations = {gen.job.id: new_generation(gen.start, gen.job, gen.stopping) for gen in live}
        world = LauncherWorld(self._generations.get, self._connection, self._address, self._records)
        self._dispatcher = Dispatcher(world, report, self._loop)
        self._launchers.find()
        for generation in list(self._generations.values()):
            self._resume(generation)
        self._end_orphans()
        self._dispatcher.report_event(NodesListed(nodes=tuple(self._nodes.values()), levels=self._levels))

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation; by the event log the previous one is over."""
        if previous := self._generations.get(start.gang):
            previous.forget_deadline()
        generation = self._generations[start.gang] = new_generation(start, job)
        for node in self._lost:
            generation.clear(node)
        self._begin(generation, list(generation.remaining))

    def stop(self, stop: Stop) -> None:
        """Stop the remaining processes of a generation."""
        generation = self._generations.get(stop.gang)
        if generation is not None and generation.number == stop.generation:
            generation.stopping = stop
            self._end(generation, stop)

    def forget(self, gang: str) -> None:
        """Dismiss the launchers of a gang that has ended."""
        generation = self._generations.pop(gang, None)
        if generation is not None:
            generation.forget_deadline()
        for task in self._launchers.all():
            if task.gang == gang and task.connection is not None:
                task.connection.send("leave")
            elif task.gang == gang and task.process is None:
                self._launchers.forget(task)

    def lose(self, node: str) -> None:
        """Make a virtual node fail with everything that runs on it."""
        if node in self._lost or node not in self._nodes:
            return
        self._lost.append(node)
        self._dispatcher.report_event(NodeLost(node=node, detail="the node was made to fail"))
        for generation in self._generations.values():
            if node in generation.remaining:
                generation.clear(node)
                task = self._launchers.task(generation.gang, node)
                self._run_sweep(_kill_all(task.directory.generation(generation.number)))
        for task in self._launchers.all():
            if task.node == node:
                self._launchers.kill(task)

    def restore(self, node: str) -> None:
        """Return a lost virtual node."""
        if node in self._lost:
            self._lost.remove(node)
            self._dispatcher.report_event(NodeReturned(node=node))

    def close(self) -> None:
        """Release everything; launchers and ranks keep running."""
        self._closing.set()
        self._dispatcher.close()
        for generation in self._generations.values():
            generation.forget_deadline()
        for sweep in self._sweeps:
            sweep.cancel()
        self._launchers.close()
        for connection in self._connections:
            connection.close()
        with suppress(OSError):
            self._files.socket.unlink()

    # -- messages of launchers ----------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Register a connection. While closing, drop it, or the launcher would not connect to the next server."""
        self._connections.append(connection)
        if self._closing.is_set():
            connection.close()

    def launcher_connected(self, connection: Connection, hello: Hello) -> None:
        """Tell a launcher, which connects for the first time or again, what it must run or stop."""
        is_lost = self._closing.is_set() or hello.node in self._lost
        task = None if is_lost else self._launchers.connected(connection, hello)
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
        elif current and current not in hello.generations and not task.directory.has_begun(current):
            connection.send("run", generation=current)

    def message_received(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        """Handle a report about a generation, current or not. It is acknowledged once the event is durable."""
        task = self._launchers.task(hello.gang, hello.node)
        if self._closing.is_set() or task.connection is not connection:
            return
        self._dispatcher.message_received(connection, hello, message, self._dispatcher.current(hello, message))

    def message_refused(self, hello: Hello, reason: str) -> None:
        """Count a rejected message; after several in a row kill the launcher, whose guard cleans up after it."""
        if not self._closing.is_set() and self._dispatcher.message_refused(hello, reason):
            self._launchers.kill(self._launchers.task(hello.gang, hello.node))

    def launcher_disconnected(self, connection: Connection) -> None:
        """Handle a lost connection of a launcher, which may be gone or reconnect."""
        self._connections.remove(connection)
        self._launchers.disconnected(connection)

    # -- start --------------------------------------------------------------------------------------------------------

    def _begin(self, generation: Generation, nodes: list[str]) -> None:
        """Start the launchers on these nodes, or report why that is impossible."""
        try:
            plans = self._plans(generation, nodes)
            write_plans(self._files, plans)
        except CannotStartError as error:
            self._report_failed_start(generation, nodes, error)
            return
        for plan in plans:
            self._launch(generation, self._launchers.task(plan.gang, plan.node))

    def _plans(self, generation: Generation, nodes: list[str]) -> tuple[LaunchPlan, ...]:
        start, job = generation.start, generation.job
        for node in start.nodes:
            if node not in self._nodes:
                raise CannotStartError(Cause.NODE_LOST, node, f"node {node} no longer exists")
        if len(nodes) == len(start.nodes):
            check_port(start)
        directory = working_directory(self._files, start, job)
        try:
            plans = self._compose(start, job, self._nodes, directory)
        except Exception as error:  # plug-ins take part; whatever they raise, the gang must not hang
            raise CannotStartError(Cause.START_FAILED, nodes[0], f"cannot create the launch plans: {error}") from error
        return tuple(plan for plan in complete(self._files, plans, job, self._nodes) if plan.node in nodes)

    def _launch(self, generation: Generation, task: Task) -> None:
        if task.process is not None:
            if task.connection is not None:
                task.connection.send("run", generation=generation.number)
            return  # a launcher without a connection receives it when it connects
        try:
            self._launchers.spawn(task, generation.number)
        except OSError as error:
            detail = f"cannot start the launcher of {task.node}: {error.strerror}"
            self._report_failed_start(generation, [task.node], CannotStartError(Cause.START_FAILED, task.node, detail))

    def _report_failed_start(self, generation: Generation, nodes: list[str], error: CannotStartError) -> None:
        gang, number = generation.gang, generation.number
        generation.failed.append(error.node)
        self._dispatcher.report_event(
            Failed(gang=gang, generation=number, node=error.node, cause=error.cause, detail=error.detail)
        )
        self._dispatcher.report_event(Cleared(gang=gang, generation=number, nodes=tuple(nodes)))
        for node in nodes:
            generation.clear(node)

    # -- end ----------------------------------------------------------------------------------------------------------

    def _end(self, generation: Generation, stop: Stop) -> None:
        """Stop what is left: through the launchers that live, and directly on nodes without one."""
        for node in list(generation.remaining):
            task = self._launchers.task(generation.gang, node)
            if task.connection is not None:
                send_stop(task.connection, stop)
            elif task.process is None:
                self._conclude(generation, task)  # a living launcher receives the stop when it connects
        generation.forget_deadline()
        if generation.remaining:
            limit_s = (stop.notice_ms + kill_after_ms(stop.cause)) / 1000 + WEDGED_AFTER_S
            generation.deadline = self._loop.call_later(limit_s, self._kill_wedged, generation)

    def _kill_wedged(self, generation: Generation) -> None:
        for node in generation.remaining:
            task = self._launchers.task(generation.gang, node)
            if not task.directory.cleared(generation.number):
                self._launchers.kill(task)

    def _handle_exit(self, task: Task) -> None:
        """Handle a launcher that ended, after all its messages. If it left a generation unfinished, finish it."""
        generation = self._generations.get(task.gang)
        if self._closing.is_set():
            return
        if generation is None:
            self._launchers.forget(task)
        elif task.node in generation.remaining and task.node not in generation.sweeping:
            if self._launchers.find_another(task):
                return
            is_unbegun = task.spawned_for != generation.number and not task.directory.has_begun(generation.number)
            if is_unbegun and not generation.stopping:
                self._launch(generation, task)  # it exited just before it could receive the new generation
            else:
                self._conclude(generation, task)

    def _conclude(self, generation: Generation, task: Task) -> None:
        """Finish a generation on a node without launcher: report its end from the disk, and kill what is left."""
        gang, number, node = generation.gang, generation.number, task.node
        if node in generation.sweeping:
            return
        generation.sweeping.append(node)
        end_event = message_events.ending(task.directory, gang, number, node)
        if self._dispatcher.report_if_done(generation) is not None and not isinstance(end_event, Finished):
            end_event = None  # the gang is done without the rest
        elif not isinstance(end_event, Finished) and not generation.stopping and node not in generation.failed:
            generation.failed.append(node)
            detail = f"the launcher of {node} {task.ending}"
            if task.ending.startswith("exited"):  # a killed launcher had no time to log a reason
                detail += _last_line(task.directory.launcher_log)
            lost = Failed(gang=gang, generation=number, node=node, cause=Cause.LAUNCHER_LOST, detail=detail)
            self._dispatcher.report_event(end_event or lost)
        self._run_sweep(self._sweep(generation, task, end_event if isinstance(end_event, Finished) else None))

    async def _sweep(self, generation: Generation, task: Task, finished: Finished | None) -> None:
        await _kill_all(task.directory.generation(generation.number))
        generation.sweeping.remove(task.node)
        if task.node in generation.remaining:
            if finished is not None:
                self._dispatcher.report_event(finished)
            self._dispatcher.report_event(
                Cleared(gang=generation.gang, generation=generation.number, nodes=(task.node,))
            )
            generation.clear(task.node)

    # -- after a restart ----------------------------------------------------------------------------------------------

    def _resume(self, generation: Generation) -> None:
        """Continue a generation of which this server knows only what the event log and the disk contain."""
        number, to_begin = generation.number, []
        for node in list(generation.remaining):
            task = self._launchers.task(generation.gang, node)
            if not generation.stopping and not task.directory.has_begun(number):
                # With a plan and a launcher it may be about to begin; the launcher reports when it connects.
                if task.process is None or task.directory.planned(number) is None:
                    to_begin.append(node)
            elif task.process is None:
                self._conclude(generation, task)
        if to_begin:
            self._begin(generation, to_begin)
        if generation.stopping:
            self._end(generation, generation.stopping)

    def _end_orphans(self) -> None:
        """Kill ranks of obsolete generations without a launcher; idle launchers are dismissed on connect."""
        for directory in sorted({directory for directory, _ in machine_processes.rank_processes()}):
            key = self._files.task_of(directory.parent)
            if key is None:
                continue
            generation = self._generations.get(key[0])
            is_current = generation is not None and directory.name == str(generation.number)
            if not is_current and self._launchers.task(*key).process is None:
                self._run_sweep(_kill_all(directory))

    # -- internals ----------------------------------------------------------------------------------------------------

    async def _serve(self, listener: socket.socket) -> None:
        server = await self._loop.create_unix_server(lambda: Connection(self, self._token_of), sock=listener)
        try:
            await self._closing.wait()
        finally:
            server.close()

    def _connection(self, gang: str, node: str) -> Connection | None:
        return self._launchers.task(gang, node).connection

    def _address(self, gang: str, node: str) -> str | None:
        return self._nodes[node].address if node in self._nodes else None

    def _token_of(self, gang: str, node: str, _: int) -> str | None:
        """Return the token of a task: one launcher of this user may run several of its attempts."""
        return self._files.task(gang, node).token()

    def _run_sweep(self, sweep: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(sweep)
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)


async def _kill_all(directory: Path) -> None:
    """Kill until no process of a generation is left on a node."""
    pause_s = SWEEP_FIRST_S
    while machine_processes.kill_rank_processes(directory):
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, SWEEP_MAX_S)


def _last_line(log: Path) -> str:
    """Return the last line of a launcher's own log, as the end of a sentence."""
    try:
        text = log.read_text(errors="replace")[-2000:]
    except OSError:
        return ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return f": {lines[-1]}" if lines else ""
