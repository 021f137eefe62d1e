"""An event loop with several processes on it, each of which dies at once at any of its steps; the network between them.

A process is a context variable: whatever is scheduled inside its context belongs to it. Once it is dead, nothing of it
runs again: its coroutines stay where they are, as memory of a killed process does. Its connections break.
"""

import asyncio
import contextvars
import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tools.skipping import SkippingLoop

BEGIN_S = 1_767_225_600.0
"""Wall clock of the world's first moment: 2026, as in other tests."""


class Killed(BaseException):
    """The process of the running code is killed; unwinds it up to the event loop."""


class Process:
    """A process.

    Attributes:
        steps: callbacks that it has run.
        dies_at: the step at which it is killed; None for none.
        on_death: called once when it is killed, outside its context.
    """

    def __init__(self, loop: "VirtualLoop", name: str, on_death: Callable[[], None] = lambda: None) -> None:
        self.name, self.on_death = name, on_death
        self.is_dead = False
        self.steps = 0
        self.dies_at: int | None = None
        self.unrun: list[asyncio.Handle] = []
        """Callbacks that came up after its death."""
        self._loop = loop
        loop.processes.append(self)
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def run(self, work: Any) -> "asyncio.Task[Any]":
        """Start a coroutine as a task of the process."""
        return self._loop.create_task(work, context=self.context)

    def call(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as code of the process."""
        return self.context.copy().run(callback, *arguments)

    def kill(self) -> None:
        """Kill it: no code of it runs again, and its connections break."""
        if not self.is_dead:
            self.is_dead = True
            self._loop.network.process_died(self)
            # Not before the callback that runs has unwound: it may be inside a transaction.
            self._loop.call_soon(self.on_death, context=contextvars.Context())

    def takes_step(self) -> bool:
        """Count a step; return False if it is dead, or dies before this step."""
        if self.is_dead:
            return False
        self.steps += 1
        if self.dies_at is not None and self.steps >= self.dies_at:
            self.kill()
        return not self.is_dead


_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


def running_process() -> Process | None:
    """Return the process whose code runs; None outside all of them."""
    return _process.get(None)


_NOTHING = asyncio.Handle(lambda: None, (), asyncio.new_event_loop(), contextvars.Context())
"""What runs in place of a callback of a dead process."""


class _Ready(deque[Any]):
    """The callbacks that are ready to run; those of dead processes are put aside as they come up."""

    def popleft(self) -> Any:
        handle = super().popleft()
        process = handle._context.get(_process)
        if process is not None and not process.takes_step():
            process.unrun.append(handle)
            return _NOTHING
        return handle


class VirtualLoop(SkippingLoop):
    """A loop on virtual time without threads and sockets: executors run inline, connections are in memory."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._ready = _Ready(self._ready)  # type: ignore[has-type]  # of asyncio.BaseEventLoop
        self._chance = chance
        self.network = Network(self, chance)
        self.processes: list[Process] = []
        self.readers: dict[int, Callable[[], None]] = {}
        """Callbacks for descriptors that the world, and not the system, makes ready."""
        self._tasks = list[asyncio.Task[Any]]()
        """All tasks: those of dead processes would otherwise be closed, and run their `finally`, at any moment."""
        self.set_task_factory(self._make_task)
        self._targets: dict[int, Any] = {}

    def _make_task(self, loop: Any, work: Any, **options: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **options)
        self._tasks.append(task)
        if len(self._tasks) > 1_000:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":
        """Run the function on the loop, some time later."""
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)

        self.call_later(self._chance.uniform(0, 0.002), run)
        return future

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """Schedule a callback: there are no other threads."""
        return self.call_soon(callback, *args, context=context)

    def wind_up(self) -> None:
        """Close the loop: whatever is not done, of dead processes too, is cancelled without a network, and forgotten.

        Otherwise it would be closed by the garbage collector, at any moment and with errors on stderr.
        """
        self.network.is_over = True
        for process in self.processes:
            process.is_dead, process.dies_at = False, None
            process.on_death = lambda: None
            self._ready.extend(process.unrun)
        with suppress(Exception):
            self.run_until_complete(self._cancel_all())
            self.run_until_complete(self.shutdown_asyncgens())
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # of asyncio.Task
        self._tasks.clear()
        self.close()

    async def _cancel_all(self) -> None:
        """Cancel all tasks, as often as some of them begin others or do not end."""
        for _ in range(5):
            own = asyncio.current_task()
            if not (tasks := [task for task in self._tasks if task is not own and not task.done()]):
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=60)

    # -- descriptors ---------------------------------------------------------------------------------------------------

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        """Have the callback run when the world says that the descriptor is readable."""
        context = contextvars.copy_context()
        self.readers[fd] = lambda: self.call_soon(callback, *args, context=context)

    def remove_reader(self, fd: Any) -> bool:
        """Forget a callback."""
        return self.readers.pop(fd, None) is not None

    # -- connections ---------------------------------------------------------------------------------------------------

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:  # type: ignore[override]
        """Note where a socket, which stays closed, would be connected to."""
        if not self.network.is_listening(address[1]):
            raise ConnectionRefusedError(111, "nothing listens there")
        self._targets[sock.fileno()] = address[1]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect to a port of the network."""
        if (sock := options.get("sock")) is not None:
            port = self._targets.pop(sock.fileno())
            sock.close()
        return await self.network.connect(port, protocol_factory)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Listen at a port of the network."""
        return self.network.listen(port or self.network.free_port(), protocol_factory)

    async def create_unix_server(self, protocol_factory: Any, path: Any = None, **options: Any) -> Any:
        """Listen at the path of a socket."""
        with options["sock"] as sock:
            return self.network.listen(sock.getsockname(), protocol_factory)


class Port:
    """A port that something listens at: what `create_server` returns."""

    def __init__(self, network: "Network", address: Any, protocol_factory: Callable[[], asyncio.Protocol]) -> None:
        self.address, self.protocol_factory = address, protocol_factory
        self.process, self.context = running_process(), contextvars.copy_context()
        self._network = network
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, Any]:
        """Return its address, as a socket does."""
        return "127.0.0.1", self.address

    def fileno(self) -> int:
        """Return a descriptor that nothing has."""
        return -1

    def close(self) -> None:
        """Stop listening."""
        self._network.close_port(self)

    async def wait_closed(self) -> None:
        """Return at once."""


class Wire(asyncio.Transport):
    """One end of a connection. What is written arrives at the other end later, in order, or the connection breaks."""

    def __init__(self, network: "Network", protocol: asyncio.Protocol, is_server: bool) -> None:
        super().__init__()
        self._network, self.protocol, self.is_server = network, protocol, is_server
        self.process, self.context = running_process(), contextvars.copy_context()
        self.peer: Wire
        self.is_closing_soon = self.is_lost = self.is_paused = False
        self._arriving: deque[bytes | None] = deque()
        """What is under way to this end; None is the end of the stream."""
        self._waiting: deque[bytes | None] = deque()
        """What has arrived while reading was paused."""
        self.arrives_at = 0.0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        is_dead = self.process is not None and self.process.is_dead
        return self.is_closing_soon or self.is_lost or is_dead or self._network.is_over

    def write(self, data: Any) -> None:
        if data and not self.is_closing():
            self._network.carry(self, bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self.is_closing():
            self._network.deliver(self.peer, None)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol  # type: ignore[assignment]  # all are stream protocols here

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        self._network.loop.call_soon(self._read_waiting, context=self.context)

    def is_reading(self) -> bool:
        return not self.is_paused

    def close(self) -> None:
        if not self.is_closing():
            self.is_closing_soon = True
            self._network.deliver(self.peer, None)
            self._network.loop.call_soon(self.lose, None, context=self.context)

    def abort(self) -> None:
        if not self.is_lost and not self._network.is_over and not (self.process is not None and self.process.is_dead):
            self.is_closing_soon = True
            self._network.loop.call_soon(self.lose, None, context=self.context)
            self._network.reset(self.peer)

    def lose(self, error: Exception | None) -> None:
        """End this end of the connection, in the context of its process."""
        if not self.is_lost:
            self.is_lost = True
            self._network.forget(self)
            self.protocol.connection_lost(error)

    def arrive(self) -> None:
        """Hand over the oldest piece that is under way; in the context of the process of this end."""
        if not self._arriving:
            return
        self._waiting.append(self._arriving.popleft())
        self._read_waiting()

    def _read_waiting(self) -> None:
        while self._waiting and not self.is_paused and not self.is_lost:
            data = self._waiting.popleft()
            if data is not None:
                if not self.is_closing_soon:
                    self.protocol.data_received(data)
            elif not self.protocol.eof_received():
                self.is_closing_soon = True
                self.lose(None)


class Network:
    """The network of a world: ports, connections, and what goes wrong on them.

    Attributes:
        loss: probability that a connection breaks with a message that it carries; the message itself is lost or not.
        slowness_s: longest delay of a message in bad weather.
        struck: how often each kind of fault struck.
    """

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop, self._chance = loop, chance
        self._ports: dict[Any, Port] = {}
        self._wires: dict[Wire, None] = {}
        self._next_port = 40_000
        self.loss = self.slowness_s = 0.0
        self.is_over = False
        """Nothing is carried, and nothing listens, any more."""
        self.struck: Counter[str] = Counter()

    def free_port(self) -> int:
        """Return a port that nothing listens at."""
        self._next_port += 1
        return self._next_port

    def is_listening(self, address: Any) -> bool:
        """Return whether a connection there would be accepted."""
        return address in self._ports and not self.is_over

    def listen(self, address: Any, protocol_factory: Callable[[], asyncio.Protocol]) -> Port:
        """Listen at an address, in the name of the running process."""
        port = self._ports[address] = Port(self, address, protocol_factory)
        return port

    def close_port(self, port: Port) -> None:
        """Refuse connections from now on."""
        if self._ports.get(port.address) is port:
            del self._ports[port.address]

    async def connect(self, address: Any, protocol_factory: Callable[[], Any]) -> tuple[Wire, Any]:
        """Connect the running process to an address; raise ConnectionRefusedError."""
        await asyncio.sleep(self._delay_s())
        wire = self.connect_now(address, protocol_factory())
        return wire, wire.protocol

    def connect_now(self, address: Any, protocol: asyncio.Protocol) -> Wire:
        """Connect at once; raise ConnectionRefusedError."""
        port = self._ports.get(address)
        if port is None or self.is_over:
            raise ConnectionRefusedError(111, "nothing listens there")
        wire = Wire(self, protocol, is_server=False)
        wire.peer = peer = port.context.copy().run(lambda: Wire(self, port.protocol_factory(), is_server=True))
        peer.peer = wire
        self._wires |= {wire: None, peer: None}
        self.loop.call_soon(peer.protocol.connection_made, peer, context=peer.context)
        protocol.connection_made(wire)
        return wire

    def carry(self, sender: Wire, data: bytes) -> None:
        """Carry what an end has written to the other one, or break the connection before or after it."""
        if self.loss and self._chance.random() < self.loss:
            is_lost = self._chance.random() < 0.5
            what = "answer" if sender.is_server else "request"
            self.struck[f"{what} lost" if is_lost else f"broken after {what}"] += 1
            if not is_lost:
                self.deliver(sender.peer, data)
            self.reset(sender.peer)
            self.reset(sender)
            return
        self.deliver(sender.peer, data)

    def deliver(self, receiver: Wire, data: bytes | None) -> None:
        """Have a piece arrive at an end after all earlier ones."""
        receiver._arriving.append(data)
        self._schedule(receiver, receiver.arrive)

    def reset(self, wire: Wire) -> None:
        """Have an end learn that its connection is broken, after what is under way."""
        self._schedule(wire, partial(wire.lose, ConnectionResetError(104, "the connection broke")))

    def _schedule(self, receiver: Wire, callback: Callable[[], None]) -> None:
        if self.is_over:
            return
        # Two timers of one moment fire in any order: each is later than the one before.
        receiver.arrives_at = max(receiver.arrives_at + 1e-6, self.loop.time() + self._delay_s())
        self.loop.call_at(receiver.arrives_at, callback, context=receiver.context)

    def _delay_s(self) -> float:
        if self.slowness_s and self._chance.random() < 0.05:
            self.struck["message delayed"] += 1
            return self._chance.uniform(0, self.slowness_s)
        return self._chance.uniform(0.0001, 0.002)

    def forget(self, wire: Wire) -> None:
        """Forget an end that is lost."""
        self._wires.pop(wire, None)

    def process_died(self, process: Process) -> None:
        """Break the connections of a process, and close its ports."""
        for port in [port for port in self._ports.values() if port.process is process]:
            self.close_port(port)
        for wire in [wire for wire in self._wires if wire.process is process]:
            self.forget(wire)
            self.reset(wire.peer)
