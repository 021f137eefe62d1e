"""The assembly of the server: log, loop, backend and REST, served until the server is stopped.

Two threads matter: the core's, where the loop schedules, and the main one, where the event loop serves REST and talks
to launchers; a pool runs what may block. Jobs outlive all of them.
"""

import asyncio
import gc
import ipaddress
import logging
import os
import resource
import signal
import socket
import sqlite3
import sys
import threading
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, NoReturn

import uvicorn
from starlette.types import ASGIApp

from ganger import __version__
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.local_backend import LocalBackend
from ganger.backends.local.machine import MEMORY_NOTE, machine
from ganger.backends.local.topology_file import TopologyError, read_topology, whole_machine
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.log_retention import Retention, remove_unfinished
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.service import Service
from ganger.engine.wall_clock import WallClock
from ganger.errors import DISK_FULL, RequestError
from ganger.launcher.build_archive import build
from ganger.launcher_server.acceptor import Acceptor, UnauthenticatedPeer
from ganger.model.cluster import Cluster, Node
from ganger.model.decision import Start
from ganger.model.job import Job
from ganger.ports import Backend, BackendContext, LaunchPlan, LaunchPlanner
from ganger.registry import backend as installed_backend
from ganger.registry import order
from ganger.rest.app import make_app
from ganger.rest.token_gate import TokenGate
from ganger.server import server_log
from ganger.server.http_connection import STRANGER, Connection, StrangerRelease
from ganger.server.machine_agent import sampling_machine, sampling_roots
from ganger.server.own_end import reporting_own_end
from ganger.server.state_directory import (
    ServerStartError,
    create_database,
    holds_lock,
    lock_state_directory,
    missing_file,
    prepare_home,
    publish_address,
    remove_stale_socket,
    tcp_listener,
    unix_listener,
)
from ganger.server.tls_certificate import CertificateFiles, server_certificate
from ganger.settings import (
    HOME,
    Home,
    SettingsError,
    read_backend_settings,
    read_incident_webhook,
    read_retention_limits,
)

SHUTDOWN_S: Final = 2
"""Time that running requests, and the core's current batch, may take once the server shuts down."""
KEEP_ALIVE_S: Final = 30
"""Time for which a connection may be idle: the agent of a node sends every 10 s, and keeps its own."""
FILE_CHECK_S: Final = 2
"""Interval at which the server checks that its files are still in place."""
CANNOT: Final = 5
"""Exit code of a server that cannot serve."""
RETENTION_DELAY_S: Final = 600
RETENTION_INTERVAL_S: Final = 3600
"""Delay until the server deletes old data: not while it and its first jobs start."""
SWITCH_INTERVAL_S: Final = 0.0005
"""Thread switch interval.

An answer passes through several threads, and Python's default of 5 ms would delay each hand-over, beside a thousand
submissions.
"""
MAX_OPEN_FILES: Final = 65_536
"""Descriptors of the server, if permitted: more would slow down programs that close all of them."""

_log = logging.getLogger("ganger")


def serve(home: Home, lock_fd: int | None, listen: str | None = None, *, is_insecure: bool = False) -> None:
    """Serve a state directory until the server is stopped, also at `listen` (HOST:PORT) if given.

    Beyond loopback that is over TLS, unless `is_insecure`. A restart replaces the process and does not return. Raises
    ServerStartError.
    """
    run_server(home, lambda lock: Server(home, listen, lock, is_insecure=is_insecure), lock_fd)


def run_server(home: Home, create: Callable[[int], "Server"], lock_fd: int | None = None) -> None:
    """Run the server that `create` makes, given the lock of its state directory."""
    try:
        server_log.set_up(home.server_log)
        prepare_home(home)
        with lock_state_directory(home, lock_fd) as lock:
            server = create(lock)
            if python := asyncio.run(server.serve()):
                server.reexecute(python)
    except RequestError as refused:
        raise ServerStartError(refused.detail, refused.next) from None
    except TopologyError as error:
        raise ServerStartError(error.detail, error.next) from None
    except SettingsError as error:
        raise ServerStartError(str(error), error.next) from None
    except OSError as error:
        message = f"cannot use {error.filename or home.path}: {error.strerror or error}"
        remedy = f"free some space on that disk: df -h {home.path}" if error.errno in DISK_FULL else "ganger doctor"
        raise ServerStartError(message, remedy) from error


Gate = Callable[[ASGIApp], ASGIApp]
"""Wraps the application for clients that come over TCP."""


class World(NamedTuple):
    """A loop over a backend, the service that answers requests about it, and the gate to that service."""

    loop: Loop
    backend: Backend
    service: Service
    gate: Gate


class Server:
    """One run of the server. Created and run on the main thread, inside a running event loop."""

    REFUSES_UNTIL_TOKEN: ClassVar[bool] = False
    """True: a server without tokens listens on a public address but refuses every caller.

    False: it does not start, since a user is there to read the error.
    """

    def __init__(self, home: Home, listen: str | None, lock: int, *, is_insecure: bool = False) -> None:
        self._home = home
        self._listen = listen
        self._is_insecure = is_insecure
        self._lock = lock
        self._open_files = raise_open_files()
        self._end = asyncio.Event()
        self._python: str | None = None
        self._core_broke = False

    def _send_incidents(self, world: World, stack: ExitStack) -> None:
        """Send incidents to the webhook of the settings file, if it names one, while the stack lasts."""
        if url := read_incident_webhook(self._home):
            from ganger.server.incident_webhook import IncidentWebhook  # urllib, which few need

            sent = self._home.sent_incidents
            webhook = IncidentWebhook(
                url,
                lambda span_ms: world.service.incidents(span_ms=span_ms),
                world.service.seq,
                world.loop.now_ms,
                sent,
            )
            stack.enter_context(webhook.running())

    async def serve(self) -> str | None:
        """Serve until shutdown; return the interpreter for a restart if one was requested."""
        async with self._world() as world, self._retention(world.loop, world.backend):
            with ExitStack() as stack:
                self._send_incidents(world, stack)
                if isinstance(world.backend, LocalBackend):
                    stack.enter_context(reporting_own_end(self._home, world.loop, world.backend))
                    stack.enter_context(sampling_machine(self._home, world.loop, world.service))
                await self._serve_rest(world)
        if self._core_broke:
            raise ServerStartError(
                "the scheduler core failed, see the server log; jobs keep running", "ganger server start"
            )
        return self._python

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[World]:
        """Open the log, and continue from there. What is entered last ends first."""
        create_database(self._home)
        remove_unfinished(self._home)
        async with AsyncExitStack() as stack:
            log = stack.enter_context(closing(EventLog(self._home.database)))
            backend = self._create_backend()
            newest = log.rows(after=log.last_seq() - 1)
            loop = await stack.enter_async_context(self._core(log, backend, newest[0].at_ms if newest else 0))
            stack.enter_context(closing(backend))
            service = Service(loop, log, backend, self._home)
            _log.info(MEMORY_NOTE)
            yield World(loop, backend, service, lambda app: TokenGate(app, service))

    def _create_backend(self) -> Backend:
        """Return the backend of the settings file, or this machine."""
        home, log_bytes = self._home, read_retention_limits(self._home).rank_log_bytes or 0
        if (chosen := read_backend_settings(home)) is not None:
            context = BackendContext(home=home.path, settings=chosen.table, compose=launch_plans, log_bytes=log_bytes)
            backend: Backend = installed_backend(chosen.name).create(context)
            return backend
        job_files = JobFiles(
            home=home.path,
            socket=remove_stale_socket(home.socket("launcher")),
            launcher=build(home.path),
            log_bytes=log_bytes,
            open_files=self._open_files,
        )
        nvml_library = sampling_roots(home).nvml_library
        return LocalBackend(job_files, _cluster(home, nvml_library), _composer(home), get_running_loop(), nvml_library)

    @asynccontextmanager
    async def _core(self, log: EventLog, backend: Backend, newest_ms: int) -> AsyncIterator[Loop]:
        """Run the loop on the core's thread for the duration of the context. newest_ms: time of the newest event."""
        loop = Loop(log, backend, order, WallClock(newest_ms), __version__)
        loop.open()
        core = threading.Thread(target=self._run_core, args=(loop, get_running_loop()), name="core", daemon=True)
        core.start()
        try:
            yield loop
        finally:
            loop.close()
            await asyncio.to_thread(core.join, SHUTDOWN_S)

    @asynccontextmanager
    async def _retention(self, loop: Loop, backend: Backend) -> AsyncIterator[None]:
        """Delete old data at intervals while the context is open."""
        retention = Retention(self._home, read_retention_limits(self._home), backend, loop.view)
        task = asyncio.create_task(_apply_retention(retention, loop))
        try:
            yield
        finally:
            retention.close()
            task.cancel()

    @asynccontextmanager
    async def _answering(self, app: ASGIApp) -> AsyncIterator[None]:
        """Serve `app` at the public address, if there is one, for the duration of the context."""
        if self._listen is None:
            yield
            return
        with tcp_listener(self._listen, has_token=True) as listener:
            end = asyncio.Event()
            server = _TcpRestServer(app, end, lambda: None, self._certificate(listener.getsockname()[0]))
            serving = asyncio.create_task(server.serve([listener]))
            try:
                yield
            finally:
                end.set()
                await serving

    async def _serve_rest(self, world: World) -> None:
        """Listen and answer requests until shutdown."""
        event_loop = asyncio.get_running_loop()

        def leave(python: str | None) -> None:
            event_loop.call_soon_threadsafe(self._leave, python)

        app = make_app(world.service, leave)
        path = remove_stale_socket(self._home.socket("server"))
        with ExitStack() as stack:
            servers: list[tuple[_RestServer, socket.socket]] = []
            url = fingerprint = None
            if self._listen is not None:
                admits_others = self.REFUSES_UNTIL_TOKEN or any(not token.expired for token in world.service.tokens())
                listener = stack.enter_context(tcp_listener(self._listen, has_token=admits_others))
                certificate = self._certificate(listener.getsockname()[0])
                url, fingerprint = _url(listener, certificate), certificate.fingerprint if certificate else None
                gate = world.gate(StrangerRelease(app))
                servers.append((_TcpRestServer(gate, self._end, app.state.feed.close, certificate), listener))
            # server.json first: a client that gets an answer can then also read from whom.
            stack.enter_context(publish_address(self._home, path, url, fingerprint))
            unix_server = _RestServer(app, self._end, app.state.feed.close)
            servers.append((unix_server, stack.enter_context(unix_listener(path))))
            self._leave_on_signals()
            url_text = f" and {url}" if url else ""
            _log.info("ganger %s serves %s%s (pid %d)", __version__, self._home.path, url_text, os.getpid())
            gc.collect()
            gc.freeze()  # objects of start-up live on: later collections can skip them
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            file_check = asyncio.create_task(self._watch_files())
            await asyncio.gather(*(server.serve([listener]) for server, listener in servers))
            file_check.cancel()
            _log.info("the server shuts down; jobs keep running")

    def _certificate(self, host: str) -> CertificateFiles | None:
        """Return the TLS certificate of a listener at the address `host`, or None for plain TCP."""
        if self._is_insecure or ipaddress.ip_address(host).is_loopback:
            return None
        return server_certificate(self._home, host)

    def _leave_on_signals(self) -> None:
        """Shut down on SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave, None)

    async def _watch_files(self) -> None:
        """Check regularly that the files of this server are still in place.

        If its socket or log was deleted, the server reexecutes itself, which creates them again. If its whole state
        directory is gone it exits at once and touches nothing, since what is there now belongs to another server.
        """
        while True:
            await asyncio.sleep(FILE_CHECK_S)
            if not holds_lock(self._home, self._lock):
                _log.error("%s was deleted: clients cannot find this server any more; exiting", self._home.path)
                os._exit(CANNOT)
            if lost := self._missing_file():
                _log.error("%s was deleted: restarting the server", lost)
                self._leave(sys.executable)
                return

    def _missing_file(self) -> Path | None:
        """Return a deleted file without which the server cannot work, or None."""
        return missing_file(self._home)

    def _leave(self, python: str | None) -> None:
        """Shut down; with an interpreter, to restart under it, unless a final shutdown was already requested."""
        self._python = None if self._end.is_set() and self._python is None else python
        self._end.set()

    def reexecute(self, python: str) -> NoReturn:
        """Replace this process by the next server, with the same lock and another interpreter or version."""
        os.set_inheritable(self._lock, True)
        argv = [python, "-P", "-m", *self._program(), "--home", str(self._home.path)]
        argv += ["--lock-fd", str(self._lock)] + (["--listen", self._listen] if self._listen is not None else [])
        argv += ["--insecure"] if self._is_insecure else []
        logging.shutdown()
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            os.execv(python, argv)  # noqa: S606 - no shell needed
        except OSError as error:
            raise ServerStartError(f"cannot run {python}: {error.strerror}", "ganger server start") from None

    def _program(self) -> list[str]:
        """Return the module that runs this server, and its arguments."""
        return ["ganger.server", "serve"]

    def _run_core(self, loop: Loop, event_loop: asyncio.AbstractEventLoop) -> None:
        """Run the core on its thread. A server without a core would only look alive, so it shuts down too."""
        try:
            loop.run()
        except Exception:  # noqa: BLE001 - on any error the server must not go on without its core
            _log.exception("the scheduler core failed")
            self._core_broke = True
            event_loop.call_soon_threadsafe(self._leave, None)


class _RestServer(uvicorn.Server):
    """uvicorn without signal handlers and without its timer: it sleeps until a request or the shutdown."""

    def __init__(
        self,
        app: ASGIApp,
        shutdown: asyncio.Event,
        close_streams: Callable[[], None],
        certificate: CertificateFiles | None = None,
    ) -> None:
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
            ssl_certfile=certificate.certificate if certificate else None,
            ssl_keyfile=certificate.key if certificate else None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        super().__init__(config)
        self._end = shutdown
        self._close_streams = close_streams

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the server."""
        yield

    async def main_loop(self) -> None:
        """Wait for the shutdown, then end open streams, so that the current requests can finish."""
        await self._end.wait()
        self._close_streams()


class _TcpRestServer(_RestServer):
    """uvicorn on TCP: connections come through an acceptor, which limits strangers before any byte is read."""

    _acceptor: Acceptor

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections at the one listener."""
        await super().startup([])
        assert sockets  # noqa: S101  # `serve` is given the listener
        self._acceptor = Acceptor(sockets[0], self._protocol, self.config.ssl)

    def _protocol(self, stranger: UnauthenticatedPeer) -> asyncio.Protocol:
        state = {STRANGER: stranger}
        return Connection(config=self.config, server_state=self.server_state, app_state=state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and let the current requests finish."""
        self._acceptor.close()
        await super().shutdown(sockets)


async def _apply_retention(retention: Retention, loop: Loop) -> None:
    pause_s = RETENTION_DELAY_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = RETENTION_INTERVAL_S
        try:
            deleted = await asyncio.to_thread(retention.run_once, loop.now_ms())
        except (OSError, sqlite3.Error, ValueError) as error:
            _log.warning("cannot delete old data: %s", error)
        else:
            if str(deleted):
                _log.info("deleted by age or size: %s", deleted)


def raise_open_files() -> int:
    """Raise the soft limit of descriptors as far as permitted and return the previous one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_OPEN_FILES)), hard))
    return soft


def _cluster(home: Home, nvml_library: Path | None) -> Cluster:
    """Return the nodes of the topology file, or this machine as the only node."""
    this_machine = machine(home.jobs, nvml_library)
    return (
        read_topology(home.topology, this_machine) if home.topology.exists() else Cluster(whole_machine(this_machine))
    )


def _composer(home: Home) -> LaunchPlanner:
    """Return `launch_plans` with this server's address for ranks, so that `ganger` in a job's process reaches it."""

    def compose(start: Start, job: Job, nodes: Mapping[str, Node], directory: str) -> tuple[LaunchPlan, ...]:
        plans = launch_plans(start, job, nodes, directory)
        return tuple(replace(plan, environment=plan.environment | {HOME: str(home.path)}) for plan in plans)

    return compose


def _url(listener: socket.socket, certificate: CertificateFiles | None) -> str:
    host, port, *_ = listener.getsockname()
    return f"{'https' if certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
