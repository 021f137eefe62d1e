"""The server of one state directory: joins log, loop, backend and REST, and serves until told to end.

Called by `python -m ganger.server serve`. Two threads matter: the core's, where the loop decides, and the main one,
where the event loop serves REST and talks to launchers; a pool answers what may block. Jobs outlive all of them.
"""

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final, NoReturn

import uvicorn
from starlette.types import ASGIApp

from ganger import __version__
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.local_backend import LocalBackend
from ganger.backends.local.machine import MEMORY_NOTE, machine
from ganger.backends.local.topology_file import TopologyError, read_topology, whole_machine
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.log_retention import Retention
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.service import Service
from ganger.engine.wall_clock import WallClock
from ganger.errors import RequestError
from ganger.launcher.build_archive import build
from ganger.launcher_server.acceptor import Acceptor, UnauthenticatedPeer
from ganger.model.cluster import Cluster, Node
from ganger.model.decision import Start
from ganger.model.job import Job
from ganger.ports import Backend, LaunchPlan, LaunchPlanner
from ganger.registry import order
from ganger.rest.app import make_app
from ganger.rest.token_gate import TokenGate
from ganger.server import server_log
from ganger.server.http_connection import STRANGER, Admitting, Connection
from ganger.server.state_directory import (
    ServerStartError,
    announced,
    check_home,
    clear_way,
    holds,
    listening,
    listening_at,
    locked,
    lost_files,
    make_database,
)
from ganger.settings import HOME, Home, SettingsError, read_retention_limits

END_S: Final = 2
"""How long answers under way, and the core's batch in hand, may take once the server is to end."""
STAY_EVERY_S: Final = 2
"""How often a server looks whether its files are still where everybody looks for them."""
CANNOT: Final = 5
"""What a server exits with that cannot serve."""
FORGET_FIRST_S: Final = 600
FORGET_EVERY_S: Final = 3600
"""When a server looks for what it need not keep any more: not while it and its first jobs begin."""
TURN_S: Final = 0.0005
"""How long a thread may compute while others wait to: an answer passes through several threads, and with Python's 5 ms
each hand-over would be a wait, beside a thousand submissions."""
MOST_OPEN_FILES: Final = 65_536
"""Descriptors that a server has, where it may: more would only make those slow that go through all of them."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = logging.getLogger("ganger")


def serve(home: Home, lock_fd: int | None, listen: str | None = None) -> None:
    """Serve until told to end, at `listen` (HOST:PORT) too if it is given; a restart replaces the process and does not
    return. CannotServe says why not."""
    serving(home, lambda lock: Server(home, listen, lock), lock_fd)


def serving(home: Home, made: Callable[[int], "Server"], lock_fd: int | None = None) -> None:
    """The same of the server that `made` makes, given the lock of its state directory."""
    server_log.set_up(home.server_log)
    check_home(home)
    try:
        with locked(home, lock_fd) as lock:
            server = made(lock)
            if python := asyncio.run(server.serve()):
                server.run_anew(python)
    except RequestError as refused:
        raise ServerStartError(refused.detail, refused.next) from None
    except TopologyError as error:
        raise ServerStartError(error.detail, error.next) from None
    except SettingsError as error:
        raise ServerStartError(str(error), error.next) from None
    except OSError as error:
        what = f"cannot use {error.filename or home.path}: {error.strerror or error}"
        remedy = f"free some space on that disk: df -h {home.path}" if error.errno in NO_ROOM else "ganger doctor"
        raise ServerStartError(what, remedy) from error


class Server:
    """One life of the server. Made and run on the main thread, inside a running event loop."""

    REFUSES_UNTIL_TOKEN: ClassVar[bool] = False
    """Whether it listens where other machines reach it before there is a token, and refuses everybody; else it does not
    start, for then somebody is there to read why."""

    def __init__(self, home: Home, listen: str | None, lock: int) -> None:
        self._home = home
        self._listen = listen
        self._lock = lock
        self._open_files = raise_open_files()
        self._end = asyncio.Event()
        self._python: str | None = None
        self._core_broke = False

    async def serve(self) -> str | None:
        """Serve to the end; gives the interpreter to run anew with, if somebody asked for that."""
        async with self._world() as (log, loop, backend), self._forgetting(loop, backend):
            await self._rest(self._service(loop, log, backend))
        if self._core_broke:
            raise ServerStartError("the core stopped working: its log says why. Jobs run on", "ganger server start")
        return self._python

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[tuple[EventLog, Loop, Backend]]:
        """Log, loop and backend, at work."""
        make_database(self._home)
        log = EventLog(self._home.database)
        event_loop = asyncio.get_running_loop()
        launchers = clear_way(self._home.socket("launcher"))
        most = read_retention_limits(self._home).rank_log_bytes or 0
        layout = JobFiles(
            home=self._home.path,
            socket=launchers,
            launcher=build(self._home.path),
            log_bytes=most,
            open_files=self._open_files,
        )
        backend = LocalBackend(layout, _cluster(self._home), _composer(self._home), event_loop)
        last = log.rows(after=log.last_seq() - 1)
        loop = Loop(log, backend, order, WallClock(last[0].at_ms if last else 0), __version__)
        loop.open()
        core = threading.Thread(target=self._run_core, args=(loop, event_loop), name="core", daemon=True)
        core.start()
        try:
            yield log, loop, backend
        finally:
            backend.close()
            loop.close()
            await asyncio.to_thread(core.join, END_S)
            log.close()

    def _service(self, loop: Loop, log: EventLog, backend: Backend) -> Service:
        """What answers."""
        return Service(loop, log, backend, self._home)

    @asynccontextmanager
    async def _forgetting(self, loop: Loop, backend: Backend) -> AsyncIterator[None]:
        """Inside it the server forgets, now and then, what it need not keep."""
        retention = Retention(self._home, read_retention_limits(self._home), backend, loop.view)
        task = asyncio.create_task(_forget(retention, loop))
        try:
            yield
        finally:
            retention.close()
            task.cancel()

    async def _rest(self, service: Service) -> None:
        """Listen and answer until the end."""
        event_loop = asyncio.get_running_loop()

        def leave(python: str | None) -> None:
            event_loop.call_soon_threadsafe(self._leave, python)

        app = make_app(service, leave)
        path = clear_way(self._home.socket("server"))
        with ExitStack() as open_:
            doors: list[tuple[ASGIApp, socket.socket]] = []
            url = None
            if self._listen is not None:
                may = self.REFUSES_UNTIL_TOKEN or any(not token.expired for token in service.tokens())
                listener = open_.enter_context(listening_at(self._listen, has_token=may))
                doors.append((self._gate(Admitting(app), service), listener))
                url = _url(listener, "https" if self._certificate() else "http")
            # Announced first: whoever gets an answer can also read from whom.
            open_.enter_context(announced(self._home, path, url))
            doors.append((app, open_.enter_context(listening(path))))
            for number in (signal.SIGTERM, signal.SIGINT):
                event_loop.add_signal_handler(number, self._leave, None)
            where = f" and {url}" if url else ""
            _log.info("ganger %s serves %s%s (pid %d)", __version__, self._home.path, where, os.getpid())
            _log.info(MEMORY_NOTE)
            gc.collect()
            gc.freeze()  # what start-up made stays: later collections need not look at it
            sys.setswitchinterval(TURN_S)
            let_go = app.state.feed.close
            staying = asyncio.create_task(self._stay())
            await asyncio.gather(*(self._rest_of(listener, door, let_go).serve([listener]) for door, listener in doors))
            staying.cancel()
            _log.info("the server ends; jobs run on")

    def _gate(self, app: ASGIApp, service: Service) -> ASGIApp:
        """What stands before the application over TCP."""
        return TokenGate(app, service)

    def _certificate(self) -> tuple[Path, Path] | None:
        """Files of a certificate and of its key, with which to speak TLS over TCP; None: it is not spoken."""
        return None

    def _rest_of(self, listener: socket.socket, app: ASGIApp, let_go: Callable[[], None]) -> "_Rest":
        if listener.family == socket.AF_UNIX:
            return _Rest(app, self._end, let_go)
        return _TcpRest(app, self._end, let_go, self._certificate())

    async def _stay(self) -> None:
        """Look again and again whether this server can still be found, and what it writes too. Where that is not so, it
        runs itself anew, which puts everything back in its place; jobs run on. A server whose whole state directory is
        gone ends at once, and touches nothing: what is there now is another's."""
        while True:
            await asyncio.sleep(STAY_EVERY_S)
            if not holds(self._home, self._lock):
                _log.error("%s was deleted: nobody can find this server any more. It ends", self._home.path)
                os._exit(CANNOT)
            if lost := self._lost_files():
                _log.error("%s was deleted: the server runs itself anew", lost)
                self._leave(sys.executable)
                return

    def _lost_files(self) -> Path | None:
        """A file that this server would miss, and is gone."""
        return lost_files(self._home)

    def _leave(self, python: str | None) -> None:
        """End; with an interpreter, to run anew under it, unless it was told to end for good."""
        self._python = None if self._end.is_set() and self._python is None else python
        self._end.set()

    def run_anew(self, python: str) -> NoReturn:
        """Become the next server: the same process, the same lock, another interpreter or version."""
        os.set_inheritable(self._lock, True)
        argv = [python, "-P", "-m", *self._program(), "--home", str(self._home.path)]
        argv += ["--lock-fd", str(self._lock)] + (["--listen", self._listen] if self._listen is not None else [])
        logging.shutdown()
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            os.execv(python, argv)  # noqa: S606 - there is nothing for a shell to do
        except OSError as error:
            raise ServerStartError(f"cannot run {python}: {error.strerror}", "ganger server start") from None

    def _program(self) -> list[str]:
        """Return the module that runs this server, and its arguments."""
        return ["ganger.server", "serve"]

    def _run_core(self, loop: Loop, event_loop: asyncio.AbstractEventLoop) -> None:
        """The core's thread. A server without it would only look alive, so it ends with it."""
        try:
            loop.run()
        except Exception:  # noqa: BLE001 - whatever it was, the server must not go on without its core
            _log.exception("the core stopped working")
            self._core_broke = True
            event_loop.call_soon_threadsafe(self._leave, None)


class _Rest(uvicorn.Server):
    """uvicorn without its signals and without its clock: it sleeps until there is a request, or the end."""

    def __init__(
        self, app: ASGIApp, end: asyncio.Event, let_go: Callable[[], None], certificate: tuple[Path, Path] | None = None
    ) -> None:
        file, key = certificate or (None, None)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            date_header=False,
            server_header=False,
            ssl_certfile=file,
            ssl_keyfile=key,
            timeout_graceful_shutdown=END_S,
        )
        super().__init__(config)
        self._end = end
        self._let_go = let_go

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the server's, not uvicorn's."""
        yield

    async def main_loop(self) -> None:
        """Until the end; then whoever follows is let go, so that the answers under way can end."""
        await self._end.wait()
        self._let_go()


class _TcpRest(_Rest):
    """uvicorn on TCP: connections come through an acceptor, which limits strangers before anything of them is read."""

    _acceptor: Acceptor

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections at the one socket."""
        await super().startup([])
        assert sockets  # noqa: S101  # `serve` is given the listener
        self._acceptor = Acceptor(sockets[0], self._protocol, self.config.ssl)

    def _protocol(self, stranger: UnauthenticatedPeer) -> asyncio.Protocol:
        state = {STRANGER: stranger}
        return Connection(config=self.config, server_state=self.server_state, app_state=state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nobody any more, and let the answers under way end."""
        self._acceptor.close()
        await super().shutdown(sockets)


async def _forget(retention: Retention, loop: Loop) -> None:
    pause_s = FORGET_FIRST_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = FORGET_EVERY_S
        try:
            gone = await asyncio.to_thread(retention.run_once, loop.now_ms())
        except (OSError, sqlite3.Error, ValueError) as error:
            _log.warning("something old could not be taken away: %s", error)
        else:
            if str(gone):
                _log.info("taken away by age or size: %s", gone)


def raise_open_files() -> int:
    """Raise the soft limit of descriptors as far as this process may, and return what it was before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MOST_OPEN_FILES)), hard))
    return soft


def _cluster(home: Home) -> Cluster:
    """The nodes to show: those of the topology file, else this machine."""
    this = machine(home.jobs)
    return read_topology(home.topology, this) if home.topology.exists() else Cluster(whole_machine(this))


def _composer(home: Home) -> LaunchPlanner:
    """Plans as `launch_plans` makes them, whose ranks know this server: `ganger` in a job's process speaks to it."""

    def compose(start: Start, job: Job, nodes: Mapping[str, Node], directory: str) -> tuple[LaunchPlan, ...]:
        plans = launch_plans(start, job, nodes, directory)
        return tuple(replace(plan, environment=plan.environment | {HOME: str(home.path)}) for plan in plans)

    return compose


def _url(listener: socket.socket, scheme: str) -> str:
    host, port, *_ = listener.getsockname()
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
