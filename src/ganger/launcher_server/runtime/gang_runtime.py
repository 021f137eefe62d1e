"""The gang runtime: carries out the core's decisions, with one launcher for each node of a gang.

It is the same for all places where launchers run; `Place` is its port to them. Everything runs on the event loop, so
nothing is locked. Launchers outlive the server: what must be known after a restart is in the event log (which
generations have nodes), and at the place (what has begun, how it ended).
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, Protocol

from ganger.launcher_server import message_events
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import Dispatcher, LauncherWorld, send_stop
from ganger.launcher_server.generation_state import Generation, kill_after_ms, new_generation
from ganger.launcher_server.listener import LauncherListener
from ganger.launcher_server.rank_records import Records
from ganger.model.decision import Cause, Start, Stop
from ganger.model.event import Cleared, Event, Failed, Finished
from ganger.model.job import Job
from ganger.model.job_metrics import JobMetrics
from ganger.ports import LiveGeneration, Report

WEDGED_AFTER_S: Final = 10.0
"""Time beyond the ranks' deadline after which a launcher that was asked to stop is ended itself."""

WARM_UP_S: Final = 50.0
"""Time that a generation runs on at most while nodes that a resize adds import the job's modules."""

_log = logging.getLogger(__name__)


class NodeEnd(NamedTuple):
    """End of a generation on a node where nothing of it is left, for the case that no launcher has reported it.

    has_succeeded: every rank ended well, or was stopped, though no launcher had a server to report that to.
    explains_failure: it is why the ranks failed, whatever a launcher has recorded of them.
    """

    cause: Cause
    detail: str
    has_succeeded: bool = False
    explains_failure: bool = False


class Place(Protocol):
    """A place where launchers run, such as this machine or a cluster: the runtime's port.

    keeps_launchers: a launcher serves one generation after the other, and waits for the next one.
    """

    keeps_launchers: bool

    @property
    def records(self) -> Records:
        """Records of the launchers."""
        ...

    # -- place ---------------------------------------------------------------------------------------------------------

    def open(self, runtime: "GangRuntime", live: tuple[LiveGeneration, ...]) -> None:
        """Find what runs; resume the runtime's generations, which are `live`; end what belongs to none of them.

        The runtime then ends those that are stopping.
        """

    def begin(self, generation: Generation, previous: Generation | None) -> None:
        """Start a launcher on each node, or report why not. The previous generation of the gang is over by the log."""

    def warm_up(self, generation: Generation, stop: Stop) -> list[str]:
        """Have nodes that a resize adds import the job's modules; return those that will report it (`warmed`)."""

    def is_placing(self, generation: Generation) -> bool:
        """Return True while launchers are being started: the generation is ended when that is over."""

    # -- reach ---------------------------------------------------------------------------------------------------------

    def token(self, gang: str, node: str, generation: int) -> str | None:
        """Return the token of a launcher; None if there is none. May raise ValueError for invalid names."""

    def address(self, gang: str, node: str) -> str | None:
        """Return the address of a gang's ranks on a node, as far as known."""

    def admits(self, hello: Hello) -> bool:
        """Return whether an authenticated launcher may connect now."""

    def connected(self, generation: Generation, connection: Connection, hello: Hello) -> None:
        """Handle a launcher of a current generation that connected; have it run, unless the generation is stopping."""

    def message_received(self, hello: Hello, message: dict[str, Any], current: Generation | None) -> bool:
        """Record a message, about a current generation or not; True if it needs no other handling.

        Raises BadMessage to refuse it.
        """

    def disconnected(self, hello: Hello) -> None:
        """Handle a launcher without a connection, which is gone or will connect again."""

    # -- end -----------------------------------------------------------------------------------------------------------

    def end(self, generation: Generation, nodes: list[str]) -> None:
        """End a generation on nodes whose launchers are not connected; `conclude` or `cleared` follow."""

    def kill(self, generation: Generation, nodes: list[str]) -> None:
        """End launchers that do not end their ranks, with their ranks; `conclude` or `cleared` follow."""

    def sweep(self, generation: Generation, node: str) -> Coroutine[Any, Any, None] | None:
        """Return what removes the last processes of a generation on a node without a launcher; None: there are none."""

    def forget(self, gang: str, generation: Generation | None) -> None:
        """Forget a gang that has ended; its launchers were dismissed."""


class GangRuntime:
    """The gangs at a place; the peer of their launchers.

    Attributes:
        generations: the newest generation of each gang.
        listener: the connections of launchers; opened by the backend.
        is_open: False before `open` and from `close` on, when nothing is reported.
    """

    _dispatcher: Dispatcher

    def __init__(self, place: Place, loop: asyncio.AbstractEventLoop) -> None:
        self._place, self.loop = place, loop
        self.generations: dict[str, Generation] = {}
        self.listener = LauncherListener(self, place.token)
        self.connection = self.listener.connection
        self.is_open = False
        self._tasks: set[asyncio.Task[None]] = set()

    # -- decisions of the core -----------------------------------------------------------------------------------------

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """Resume what runs, begin what was only decided, and end what is obsolete."""
        self.generations.update({item.job.id: new_generation(item.start, item.job, item.stopping) for item in live})
        world = LauncherWorld(self.generations.get, self.connection, self._place.address, self._place.records)
        self._dispatcher = Dispatcher(world, report, self.loop)
        self.is_open = True
        self._place.open(self, live)
        for generation in list(self.generations.values()):
            if generation.stopping:
                self.end(generation, generation.stopping)

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation; by the event log the previous one is over."""
        generation = new_generation(start, job)
        if previous := self.generations.get(start.gang):
            previous.forget_deadline()
            generation.pauses = previous.pauses
        self.generations[start.gang] = generation
        _log.debug("begins attempt %d of %s on %s", start.generation, start.gang, ", ".join(start.nodes))
        self._place.begin(generation, previous)

    def stop(self, stop: Stop) -> None:
        """Stop what is left of a generation."""
        generation = self.generations.get(stop.gang)
        if generation is not None and generation.number == stop.generation:
            _log.debug("stops attempt %d of %s: %s", stop.generation, stop.gang, stop.cause)
            generation.stopping = stop
            generation.warming = self._place.warm_up(generation, stop)
            if generation.warming:
                generation.deadline = self.loop.call_later(WARM_UP_S, self._stop_warming, generation)
            else:
                self.end(generation, stop)

    def forget(self, gang: str) -> None:
        """Dismiss the launchers of a gang that has ended."""
        generation = self.generations.pop(gang, None)
        if generation is not None:
            generation.forget_deadline()
        for connection in self.listener.connections_of(gang).values():
            connection.send("leave")
        self._place.forget(gang, generation)

    def close(self) -> None:
        """Release everything and report nothing more; launchers and ranks run on."""
        if self.is_open:
            self._dispatcher.close()
        self.is_open = False
        for generation in self.generations.values():
            generation.forget_deadline()
        for task in self._tasks:
            task.cancel()
        self.listener.close()

    # -- ends ----------------------------------------------------------------------------------------------------------

    def end(self, generation: Generation, stop: Stop) -> None:
        """Stop what is left: through the launchers that are connected, and by other means on the other nodes."""
        generation.forget_deadline()
        if self._place.is_placing(generation):
            return
        disconnected = []
        for node in generation.remaining:
            connection = self.connection(generation.gang, node)
            if connection is None:
                disconnected.append(node)
            else:
                send_stop(connection, stop, generation.notice_step)
        if disconnected:
            self._place.end(generation, disconnected)
        if generation.remaining:
            limit_s = (stop.notice_ms + kill_after_ms(stop.cause)) / 1000 + WEDGED_AFTER_S
            generation.deadline = self.loop.call_later(limit_s, self._kill_wedged, generation)

    def _stop_warming(self, generation: Generation) -> None:
        """End a generation that ran on until the next one's new nodes had imported its modules."""
        generation.warming = []
        if generation.stopping is not None:
            self.end(generation, generation.stopping)

    def conclude(self, generation: Generation, node: str, end: NodeEnd) -> None:
        """Report how a generation ended on a node without a launcher, and then that nothing of it is left there.

        What the launcher has recorded counts first.
        """
        if node in generation.sweeping:
            return
        gang, number = generation.gang, generation.number
        recorded = message_events.ending(self._place.records.task(gang, node), gang, number, node)
        # A launcher that is told to stop exits with 0 too.
        if recorded is None and end.has_succeeded and not generation.stopping:
            recorded = Finished(gang=gang, generation=number, nodes=(node,))
        is_done = self._dispatcher.report_if_done(generation) is not None  # the gang is done without the rest
        finished = recorded if isinstance(recorded, Finished) else None
        if finished is None and not is_done and not generation.stopping and node not in generation.failed:
            generation.failed.append(node)
            lost = Failed(gang=gang, generation=number, node=node, cause=end.cause, detail=end.detail)
            self.report(lost if recorded is None or end.explains_failure else recorded)
        sweep = self._place.sweep(generation, node)
        if sweep is None:
            self._cleared(generation, node, finished)
        else:
            generation.sweeping.append(node)
            self.run(self._sweep(generation, node, sweep, finished))

    def cleared(self, generation: Generation, nodes: list[str]) -> None:
        """Report that nothing of a generation is left on these nodes."""
        self._dispatcher.clear(generation, nodes)
        self.report(Cleared(gang=generation.gang, generation=generation.number, nodes=tuple(nodes)))
        if generation.warming:
            self._stop_warming(generation)

    def lose(self, node: str) -> list[Generation]:
        """Take a lost node, which the core knows, from all generations; stop what still runs there. Return them."""
        lost = [generation for generation in self.generations.values() if node in generation.remaining]
        for generation in lost:
            if (connection := self.connection(generation.gang, node)) is not None:
                send_stop(connection, Stop(gang=generation.gang, generation=generation.number, cause=Cause.NODE_LOST))
            generation.failed.append(node)
            self._dispatcher.clear(generation, [node])
            if generation.warming:
                self._stop_warming(generation)
        return lost

    def fail(self, generation: Generation, node: str, detail: str, cause: Cause = Cause.START_FAILED) -> None:
        """Report that a generation cannot start; the core then stops what is left of it."""
        if generation.stopping is None:
            failed = Failed(gang=generation.gang, generation=generation.number, node=node, cause=cause, detail=detail)
            self._dispatcher.report_failure(generation, failed)

    def report(self, event: Event) -> None:
        """Report an event to the core while the runtime is open."""
        if self.is_open:
            self._dispatcher.report_event(event)

    def metrics(self, gang: str) -> JobMetrics:
        """Return the metrics of a gang's newest generation while it runs; safe from any thread."""
        generation = self.generations.get(gang)
        return JobMetrics() if generation is None or not generation.remaining else generation.job_metrics

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that `close` cancels; log its error."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    async def _sweep(
        self, generation: Generation, node: str, sweep: Coroutine[Any, Any, None], finished: Finished | None
    ) -> None:
        await sweep
        generation.sweeping.remove(node)
        if node in generation.remaining:
            self._cleared(generation, node, finished)

    def _cleared(self, generation: Generation, node: str, finished: Finished | None) -> None:
        if finished is not None:
            self.report(finished)
        self.cleared(generation, [node])

    def _kill_wedged(self, generation: Generation) -> None:
        tasks = {node: self._place.records.task(generation.gang, node) for node in generation.remaining}
        self._place.kill(generation, [node for node, task in tasks.items() if not task.cleared(generation.number)])

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the gang runtime failed", exc_info=error)

    # -- messages of launchers -----------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Do nothing before the launcher has identified itself."""

    def launcher_connected(self, connection: Connection, hello: Hello) -> None:
        """Tell a launcher, which connects for the first time or again, what it must run or stop."""
        _log.debug("the launcher of %s on %s connects, with attempts %s", hello.gang, hello.node, hello.generations)
        if not self.is_open or not self._place.admits(hello):
            connection.close()
            return
        connection.send("welcome")
        newest = self.generations.get(hello.gang)
        current = newest if newest is not None and self._serves(hello, newest) else None
        for number in hello.generations:
            if current is None or number != current.number:
                send_stop(connection, Stop(gang=hello.gang, generation=number, cause=Cause.USER))
        if newest is None or (current is None and not self._place.keeps_launchers):
            connection.send("leave")
        if current is not None:
            self._place.connected(current, connection, hello)
            if current.stopping and not current.warming:
                send_stop(connection, current.stopping, current.notice_step)

    def message_received(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        """Handle a report about a generation, current or not. It is acknowledged once the event is durable."""
        if not self.is_open:
            return
        _log.debug("%s on %s reports %s", hello.gang, hello.node, message["type"])
        current = self._dispatcher.current(hello, message)
        if self._place.message_received(hello, message, current):
            return
        self._dispatcher.message_received(connection, hello, message, current)
        newest = self.generations.get(hello.gang)
        if newest is not None and newest.warming:
            self._follow_warming(newest, hello.node, message["type"], is_own=current is not None)
        if message["type"] == "cleared" and not self._place.keeps_launchers:
            connection.send("leave")

    def _follow_warming(self, generation: Generation, node: str, kind: str, *, is_own: bool) -> None:
        """End a generation once the new nodes are warm, or at once if something of it ends by itself."""
        if kind == "warmed" and node in generation.warming:
            generation.warming.remove(node)
        if not generation.warming or (is_own and kind in ("rank_failed", "start_failed", "finished", "cleared")):
            self._stop_warming(generation)

    def message_refused(self, hello: Hello, reason: str) -> None:
        """Count a rejected message; after several in a row end the launcher."""
        if self.is_open and self._dispatcher.message_refused(hello, reason):
            self._place.kill(self.generations[hello.gang], [hello.node])

    def launcher_disconnected(self, connection: Connection) -> None:
        """Handle a lost connection of a launcher, which may be gone or reconnect."""
        hello = connection.hello
        if self.is_open and hello is not None and self.connection(hello.gang, hello.node) is None:
            self._place.disconnected(hello)

    def _serves(self, hello: Hello, generation: Generation) -> bool:
        is_of = self._place.keeps_launchers or hello.generation == generation.number
        return is_of and hello.node in generation.remaining
