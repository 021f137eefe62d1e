"""A server in one process with its users and launchers: log, core, service, REST, local backend, in virtual time."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from ganger import __version__
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.local_backend import LocalBackend
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.service import Service
from ganger.engine.wall_clock import WallClock
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.cluster import Cluster, Node
from ganger.model.job import ENDED
from ganger.model.units import GIB_BYTES
from ganger.registry import policies
from ganger.rest.app import make_app
from ganger.rest.stream_feed import StreamFeed
from ganger.server.http_connection import Connection
from ganger.settings import Home
from tests.crash.audited import audit_log
from tests.crash.oracle import Oracle
from tests.seeds.launchers import Work
from tests.seeds.machine import Machine
from tests.seeds.universe import Universe
from tests.seeds.virtual_loop import Killed, Process, running_process

NODES, GPUS = 4, 4
CYCLE_PAUSE_S = 0.002
"""Time of a scheduling cycle."""
PORT = 80
VALIDATED_EVERY = 20
"""Events between two validations of the state, which would take most of a world's time after each."""


class MortalLog(EventLog):
    """A log that is killed before, in or after an append, has no room, or cannot be written."""

    def __init__(self, path: Path, world: "ServerWorld") -> None:
        super().__init__(path)
        self._world = world

    def append(
        self,
        batch: Sequence[e.Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        world = self._world
        if world.universe.now_s < world.full_until_s:
            world.universe.struck["disk full"] += 1
            raise RequestError("disk_full", "the disk is full", "df -h", 507)
        if world.failing_writes:
            world.failing_writes -= 1
            world.universe.struck["write failed"] += 1
            raise RequestError("log_failed", "disk I/O error", "ganger doctor", 500)
        moment, world.killed_at_append = world.killed_at_append, ""
        if moment == "before":
            self._die(moment)
        super().append(batch, self._torn(projections) if moment == "in" else projections, shows, encoded)
        world.appended(batch)
        if moment == "after":
            self._die(moment)

    def _torn(self, projections: Iterable[Projection]) -> Iterable[Projection]:
        yield from projections
        self._die("in")

    def _die(self, moment: str) -> None:
        self._world.universe.struck[f"server killed {moment} an append"] += 1
        process = running_process()
        assert process is not None
        process.kill()
        raise Killed


class Core(Loop):
    """The core's loop on the event loop. A caller that would wait for the core's thread has its cycle run at once."""

    def __init__(self, world: "ServerWorld", *arguments: Any) -> None:
        super().__init__(*arguments)
        self._world, self._posted = world, asyncio.Event()
        self.is_waited_for = False

    def post_all(self, events: Iterable[e.Event]) -> list["Future[int]"]:
        futures = super().post_all(events)
        if self.is_waited_for:
            self._cycle()
        else:
            self._posted.set()
        return futures

    def wait(self, after_seq: int, timeout_s: float) -> int:
        if timeout_s > 0 and self._seq <= after_seq:
            asyncio.get_running_loop().stall(min(timeout_s, 0.1))  # type: ignore[attr-defined]  # of VirtualLoop
            self._cycle()
        return self._seq

    async def serve(self) -> None:
        """Run cycles: when something is posted, and when a timer is due."""
        while True:
            self._posted.clear()
            self._cycle()
            now_ms = self.now_ms()
            due_s = None if self.next_wake_ms is None else max(CYCLE_PAUSE_S, (self.next_wake_ms - now_ms) / 1000)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._posted.wait(), due_s)
            await asyncio.sleep(CYCLE_PAUSE_S)

    def _cycle(self) -> None:
        batch = self.drain()
        if batch or (self.next_wake_ms is not None and self.next_wake_ms <= self.now_ms()):
            self.run_cycle(batch)


@dataclass
class Request:
    """A job that a user submits under a key, and the ids that answers gave it."""

    key: str
    spec: dict[str, Any]
    ids: list[str] = field(default_factory=list)


@cache
def _served_app() -> tuple[FastAPI, uvicorn.Config]:
    """Return the application and its configuration: making them takes longer than a life of a server."""
    app = make_app(None, lambda _: None)  # type: ignore[arg-type]  # each server sets its own
    config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    return app, config


def _connection_factory(service: Service) -> Callable[[], asyncio.Protocol]:
    """Return what makes the server's end of HTTP connections to this service."""
    app, config = _served_app()
    app.state.service, app.state.feed = service, StreamFeed(service)
    state = ServerState()
    return lambda: Connection(config=config, server_state=state, app_state={})


class ServerWorld:
    """A server that is killed and started again, its users, and its machine."""

    def __init__(self, universe: Universe, folder: Path) -> None:
        self.universe = universe
        self._chance = universe.chance("server")
        self._home = Home(folder)
        self._work = folder / "work"
        self._work.mkdir()
        self._machine = Machine(universe.loop, universe.ranks, universe.chance("machine"))
        self._process: Process | None = None
        self._backend: LocalBackend | None = None
        self._core: Core | None = None
        self._log: MortalLog | None = None
        self.full_until_s = 0.0
        self.failing_writes = 0
        self.killed_at_append = ""
        self._oracle = Oracle()
        self._seq = 0
        self._requests: list[Request] = []
        self._suspended: set[str] = set()
        self._nodes = tuple(
            Node(
                name=f"n{number}",
                domains=(f"r{number // 2}",),
                gpus=GPUS,
                gpu_type="h100",
                cpu_milli=64_000,
                memory_bytes=256 * GIB_BYTES,
            )
            for number in range(NODES)
        )

    # -- the server ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        process = self._process = Process(self.universe.loop, "server", self._died)
        if not self.universe.is_healed and self._chance.random() < 0.4:
            process.dies_at = self._chance.randrange(1, 6_000)
        process.run(self._serve()).add_done_callback(self._has_failed)

    def _has_failed(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Killed):
            self.universe.broken(f"the server failed: {error!r}")

    async def _serve(self) -> None:
        files = JobFiles(self._home.path, self._home.path / "launchers.socket", self._home.path / "launcher.pyz")
        event_loop = asyncio.get_running_loop()
        log = self._log = MortalLog(self._home.database, self)
        backend = self._backend = LocalBackend(files, Cluster(self._nodes), launch_plans, event_loop)
        newest = log.rows(after=log.last_seq() - 1)
        clock = WallClock(newest[0].at_ms if newest else 0)
        order = policies()["priority"]
        core = self._core = Core(self, log, backend, lambda _: order, clock, __version__)
        core.open()
        service = Service(core, log, backend, self._home)
        self.universe.loop.network.listen(PORT, _connection_factory(service))
        await core.serve()

    def _died(self) -> None:
        """Let go of the file as the system does, without the steps of an orderly end, and start the next server."""
        self.universe.trace("the server is dead")
        self.universe.struck["server killed"] += 1
        if self._log is not None:
            self._log._writer.close()
        self._log = self._core = self._backend = None
        down_s = self._chance.choice((0.0, 0.5, 5.0, 40.0))
        self.universe.loop.call_later(down_s, self._start)

    async def _run_inline(self, func: Callable[..., Any], *args: Any, **_: Any) -> Any:
        """Run what `anyio` would run on a thread: it has the core's cycles run when it waits for them."""
        await asyncio.sleep(self._chance.uniform(0, 0.002))
        core = self._core
        if core is None or self.universe.loop.network.is_over:
            raise asyncio.CancelledError  # a request of a dead server, which is being wound up
        core.is_waited_for = True
        try:
            return func(*args)
        finally:
            core.is_waited_for = False

    def appended(self, batch: Sequence[e.Stamped]) -> None:
        """Check the laws of the log after a batch is durable."""
        universe = self.universe
        for row in batch:
            if row.seq != self._seq + 1:
                universe.broken(f"event {row.seq} follows event {self._seq}")
            self._seq = row.seq
            universe.trace(f"{row.seq} {row.event}", at_ms=row.at_ms)
        known = len(self._oracle.errors)
        self._oracle.read(batch)
        for error in self._oracle.errors[known:]:
            universe.broken(error)

    # -- users ---------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Send a request and return its answer; raise OSError if there is none."""
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        content = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} /api/v1{path} HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json"]
        head += [f"Content-Length: {len(content)}", *([f"Idempotency-Key: {key}"] if key else [])]
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        try:
            async with asyncio.timeout(30):
                answer = await reader.read()
        finally:
            writer.close()
        head_bytes, _, content = answer.partition(b"\r\n\r\n")
        if not head_bytes.startswith(b"HTTP/1.1 ") or b"\r\n\r\n" not in answer:
            raise ConnectionResetError("no answer")
        length = next(
            int(line.split(b":")[1]) for line in head_bytes.lower().splitlines() if line.startswith(b"content-length")
        )
        if len(content) < length:
            raise ConnectionResetError("half an answer")
        return int(head_bytes.split()[1]), json.loads(content) if content else None

    async def _ask_until_answered(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Send a request, again and again, until an answer says that it is done, or can not be."""
        while True:
            with suppress(OSError, TimeoutError):
                status, answer = await self._ask(method, path, body, key)
                if status < 500:
                    return status, answer
                self.universe.trace(f"{method} {path}: {status} {answer and answer.get('code')}")
                if status == 500 and answer.get("code") == "internal":
                    self.universe.broken(f"{method} {path}: {answer}")
            await asyncio.sleep(self._chance.choice((0.2, 1.0, 3.0)))

    async def _submit(self, request: Request) -> None:
        await asyncio.sleep(self._chance.uniform(0, 60))
        body = {"spec": request.spec, "directory": str(self._work), "environment": {"PATH": "/usr/bin"}}
        status, answer = await self._ask_until_answered("POST", "/jobs", body, request.key)
        if status not in (200, 201):
            self.universe.broken(f"{request.key} was refused: {status} {answer}")
            return
        request.ids.append(answer["row"]["id"])
        if self._chance.random() < 0.2:
            await asyncio.sleep(self._chance.uniform(0, 20))
            status, answer = await self._ask_until_answered("POST", "/jobs", body, request.key)
            if status == 200:
                request.ids.append(answer["row"]["id"])
            else:
                self.universe.broken(f"the repeat of {request.key} was answered {status} {answer}")
        if self._chance.random() < 0.35:
            await asyncio.sleep(self._chance.uniform(0, 30))
            await self._change(request.ids[0])

    async def _change(self, job: str) -> None:
        """Stop the job, suspend it for a while, or change its priority."""
        match self._chance.choice(("stop", "suspend", "suspend", "priority")):
            case "stop":
                await self._ask_until_answered("POST", f"/jobs/{job}/stop")
            case "priority":
                await self._ask_until_answered("PATCH", f"/jobs/{job}", {"priority": self._chance.choice((0, 200))})
            case _:
                self._suspended.add(job)
                await self._ask_until_answered("PATCH", f"/jobs/{job}", {"suspended": True})
                await asyncio.sleep(self._chance.uniform(0, 60))
                await self._ask_until_answered("PATCH", f"/jobs/{job}", {"suspended": False})

    def _spec(self, number: int) -> dict[str, Any]:
        chance = self._chance
        return {
            "name": f"job{number}",
            **Work.drawn(chance).spec(),
            "nodes": chance.choice((1, 1, 2, 3)),
            "nproc_per_node": 1,
            "resources": {"gpu": chance.choice((1, 2, 4))},
            "retry": {"max": chance.choice((1, 3, 10))},
            "priority": chance.choice((0, 0, 100)),
            **({"checkpoint": {"grace": "5s"}} if chance.random() < 0.4 else {}),
        }

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    async def _trouble(self) -> None:
        """Strike at random moments until the world is healed."""
        network, chance, struck = self.universe.loop.network, self._chance, self.universe.struck
        strikes = (self._kill_server, self._kill_at_append, self._fill_disk, self._fail_writes)
        strikes += (self._kill_launcher, self._lose_node, self._drain_node)
        while True:
            await asyncio.sleep(chance.expovariate(1 / 6))
            if chance.random() < 0.3:
                network.loss = chance.choice((0.0, 0.0, 0.01, 0.05))
                network.slowness_s = chance.choice((0.0, 0.3, 3.0, 20.0))
                continue
            strike = chance.choice(strikes)
            struck[strike.__name__.strip("_")] += 1
            strike()

    def _kill_server(self) -> None:
        if self._process is not None and not self._process.is_dead:
            self._process.dies_at = self._process.steps + self._chance.randrange(1, 300)

    def _kill_at_append(self) -> None:
        self.killed_at_append = self._chance.choice(("before", "in", "after"))

    def _fill_disk(self) -> None:
        self.full_until_s = self.universe.now_s + self._chance.choice((0.5, 5, 30))

    def _fail_writes(self) -> None:
        self.failing_writes = self._chance.randrange(1, 4)

    def _kill_launcher(self) -> None:
        if live := self._machine.live:
            self._machine.die(self._chance.choice(live))

    def _lose_node(self) -> None:
        if (backend := self._backend) is not None and self._process is not None:
            node = self._chance.choice(self._nodes).name
            self._process.call(backend.lose_node, node)
            self.universe.loop.call_later(self._chance.uniform(0.1, 40), self._return_node, node)

    def _return_node(self, node: str) -> None:
        if (backend := self._backend) is not None and self._process is not None:
            self._process.call(backend.return_node, node)

    def _drain_node(self) -> None:
        asyncio.get_running_loop().create_task(self._drain(self._chance.choice(self._nodes).name))

    async def _drain(self, node: str) -> None:
        await self._ask_until_answered("POST", f"/nodes/{node}/drain", {})
        await asyncio.sleep(self._chance.uniform(1, 30))
        await self._ask_until_answered("PATCH", f"/nodes/{node}", {"cordoned": False})

    # -- a life --------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Live through the seed's day, heal everything, and check that every job ends."""
        universe = self.universe
        universe.patch(anyio.to_thread, "run_sync", self._run_inline)
        self._machine.install(universe.patch)
        self._start()
        self._requests = [Request(f"key-{number}", self._spec(number)) for number in range(12)]
        users = [asyncio.create_task(self._submit(request)) for request in self._requests]
        trouble = asyncio.create_task(self._trouble())
        await asyncio.sleep(120)
        trouble.cancel()
        universe.heal()
        self.full_until_s, self.failing_writes, self.killed_at_append = 0.0, 0, ""
        if self._process is not None:
            self._process.dies_at = None
        await asyncio.gather(*users)
        for node in self._nodes:
            self._return_node(node.name)
            await self._ask_until_answered("PATCH", f"/nodes/{node.name}", {"cordoned": False})
        for job in sorted(self._suspended):
            await self._ask_until_answered("PATCH", f"/jobs/{job}", {"suspended": False})
        await self._wait_for_ends()
        self._check_end()
        self._machine.close()

    async def _wait_for_ends(self) -> None:
        give_up_s = self.universe.now_s + 3 * 3600
        while True:
            _, page = await self._ask_until_answered("GET", "/jobs?all=true&limit=200")
            live = [f"{row['id']} is {row['state']}" for row in page["items"] if row["state"] not in ENDED]
            if not live:
                self.universe.ends.update(row["state"] for row in page["items"])
                return
            if self.universe.now_s > give_up_s:
                self.universe.broken(f"never ended: {', '.join(live)}")
                return
            await asyncio.sleep(20)

    def _check_end(self) -> None:
        """Check the whole log, and what users were promised."""
        assert self._log is not None
        audit = audit_log(self._log, validated_every=VALIDATED_EVERY)
        for error in audit.sentences():
            self.universe.broken(error)
        for request in self._requests:
            if len({*request.ids}) > 1:
                self.universe.broken(f"{request.key} made several jobs: {request.ids}")
            if request.ids and self._log.job(request.ids[0]) is None:
                self.universe.broken(f"{request.ids[0]} was accepted and is not listed")
        if audit.jobs != len(self._requests):
            self.universe.broken(f"{audit.jobs} jobs of {len(self._requests)} requests")
