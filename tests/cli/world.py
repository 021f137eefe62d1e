"""A fake server with the REST interface of docs/reference/rest.md on a unix socket, scripted by a test.

It makes no decisions: jobs, lines and events are what the test adds. The real server is tested elsewhere; here it
would hide the states that are rare and matter: a lost attempt, a server that goes away, a problem of each kind.
"""

import json
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ganger import __version__
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.queue import Amount, UserLimits
from ganger.model.views.overview import Samples
from ganger.model.views.queue_views import QueueRow
from ganger.model.views.service_views import (
    Change,
    DryRun,
    EventRow,
    ExecCommand,
    Explanation,
    Factor,
    JobRow,
    JobView,
    Ledger,
    NodeRow,
    ReasonView,
    ServerView,
    StartRange,
    Totals,
)
from ganger.model.views.telemetry_views import JobUsage, NodeTelemetry
from ganger.settings import Home

T0 = 1_790_000_000_000
"""Unix ms of the start of every job in these tests."""

SPEC = JobSpec(name="bert", run=("python", "train.py"))
WIDE = JobSpec(
    name="bert",
    framework="torch",
    nodes=2,
    nproc_per_node=2,
    resources=Resources(gpu=GpuRequest(count=2, type="H100")),
    run=("python", "train.py"),
)
REASON = ReasonView(
    code="no_capacity",
    sentence="waiting for 2 nodes with 2 GPUs: 1 node free now; held by cv-11",
    remedy="ask for fewer nodes",
    holders=("cv-11",),
    until_ms=T0 + 720_000,
)
FORECAST = StartRange(
    from_ms=T0 + 720_000,
    until_ms=T0 + 7_200_000,
    expected_ms=T0 + 1_800_000,
    basis="limits",
    depends_on=("cv-11 has to end first",),
)


def job(id: str = "bert-7f3", *, spec: JobSpec = SPEC, **row: Any) -> JobView:
    """Return a job that runs on n1, or as `row` says."""
    fields: dict[str, Any] = {"state": "running", "nodes": ("n1",), "generation": 1, "started_ms": T0 + 1000} | row
    reason = fields.pop("reason", None)
    view_fields = ("attempts", "ledger", "checkpoint_step", "progress", "ends_by_ms", "notice_until_ms")
    rest = {key: fields.pop(key) for key in view_fields if key in fields}
    return JobView(
        row=JobRow(
            id=id,
            name=spec.name,
            user="ada",
            queue=spec.queue,
            priority=0,
            shape=str(spec.shape),
            submitted_ms=T0,
            **fields,
        ),
        spec=spec,
        directory="/home/ada/bert",
        git_commit="0123456789abcdef",
        git_dirty=True,
        reason=reason,
        **({"attempts": (), "ledger": Ledger()} | rest),
    )


def ended(view: JobView, state: str = "succeeded", exit_code: int | None = 0, sentence: str = "finished") -> JobView:
    """Return the job after its end."""
    row = replace(view.row, state=state, exit_code=exit_code, sentence=sentence, ended_ms=T0 + 61_000)
    ledger = Ledger(queued_ms=1000, starting_ms=2000, productive_ms=50_000, lost_ms=3000, recovery_ms=5000)
    return replace(view, row=row, ledger=replace(ledger, total_ms=61_000))


def line(text: str, rank: int = 0, stream: str = "o", t: int = T0, generation: int = 1) -> dict[str, Any]:
    """Return a log line as the server sends it."""
    return {"t": t, "rank": rank, "generation": generation, "stream": stream, "text": text}


class World:
    """The state of the server. Tests change it under `changed`, or through the methods."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: dict[str, JobView] = {}
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.events: list[EventRow] = []
        self.queues: dict[str, QueueRow] = {"default": queue("default")}
        self.nodes: dict[str, NodeRow] = {"n1": node("n1"), "n2": node("n2", gpus_free=0, gangs=("cv-11",))}
        self.requests: list[tuple[str, str, Any]] = []
        """Every request: method, target without /api/v1, body."""
        self.refusals: dict[str, tuple[int, str, str, str]] = {}
        """`METHOD /path` -> status, code, detail, next."""
        self.hang_ups: dict[str, int] = {}
        """`METHOD /path` -> how many times the connection is closed without an answer."""
        self.submitted: JobView = job()
        self.totals: Totals | None = None
        self.samples = Samples(at_ms=T0, ranks=(), gpus=())
        self.telemetry: tuple[NodeTelemetry, ...] = ()
        self.usage: JobUsage | None = None
        self.exec_command = ExecCommand(job="bert-7f3", generation=1, rank=0, node="n1", argv=("false",))
        self.streams_end_early = 0
        """The number of log streams that end as they do when the server ends: in good order, the job still running."""
        self.closing = False

    def add(self, view: JobView) -> None:
        with self.changed:
            self.jobs[view.row.id] = view
            self.changed.notify_all()

    def say(self, id: str, *lines: dict[str, Any]) -> None:
        with self.changed:
            self.lines.setdefault(id, []).extend(lines)
            self.changed.notify_all()

    def happen(self, kind: str, id: str | None, sentence: str, **data: Any) -> None:
        with self.changed:
            seq = len(self.events) + 1
            self.events.append(EventRow(seq=seq, at_ms=T0 + seq, kind=kind, job=id, sentence=sentence, data=data))
            self.changed.notify_all()

    def find(self, text: str) -> JobView | None:
        """Return the job with that id, or the newest with that name."""
        matches = [view for view in self.jobs.values() if view.row.name == text]
        return self.jobs.get(text) or (matches[-1] if matches else None)

    def wait_for_request(self, method: str, pattern: str, times: int = 1) -> None:
        """Wait until a request was made so many times."""

        def is_requested() -> bool:
            return sum(m == method and bool(re.search(pattern, target)) for m, target, _ in self.requests) >= times

        with self.changed:
            was_requested = self.changed.wait_for(is_requested, timeout=60)
        assert was_requested, f"never requested: {method} {pattern}"

    def tail(self, items: Callable[[], list[Any]], done: Callable[[], bool], start: int = 0) -> Iterator[Any]:
        """Yield items as they are added, until `done`."""
        position = start
        while True:
            with self.changed:
                while not (len(items()) > position or done() or self.closing):
                    self.changed.wait(60)
                new = items()[position:]
                is_over = done() or self.closing
            yield from new
            position += len(new)
            if is_over and not new:
                return

    def is_over(self, id: str) -> bool:
        return self.jobs[id].row.state in ("succeeded", "failed", "stopped")


def queue(name: str, **fields: Any) -> QueueRow:
    none = asdict(Amount())
    defaults = {
        "parent": "root",
        "weight": 1,
        "nominal": none,
        "borrowing": none,
        "lending": none,
        "used": {"gpus": 3, "cpu_milli": 1500, "memory_bytes": 0},
        "available": {"gpus": None, "cpu_milli": None, "memory_bytes": None},
        "user_limits": asdict(UserLimits()),
        "default_time_ms": None,
        "fair_gpus": 5,
        "pending": 1,
        "running": 2,
    }
    return QueueRow(name=name, **defaults | fields)


def node(name: str, **fields: Any) -> NodeRow:
    defaults = {
        "domains": {"rack": "r1"},
        "state": "ready",
        "gpu_type": "h100",
        "gpus": 2,
        "gpus_free": 2,
        "cpu_milli": 8000,
        "cpu_free_milli": 7500,
        "memory_bytes": 64 << 30,
        "memory_free_bytes": 64 << 30,
    }
    return NodeRow(name=name, **defaults | fields)


def explanation(view: JobView) -> Explanation:
    return Explanation(
        job=view.row.id,
        state=view.row.state,
        sentence=REASON.sentence,
        reason=REASON,
        position=2,
        pending=5,
        waited_ms=180_000,
        earliest_ms=T0 + 720_000,
        forecast=FORECAST,
        domains=("r1: 1 of 2 nodes have 2 GPUs; cv-11 (ends in at most 12m 00s)",),
        quota="queue default: 3 GPUs used, no quota; not what it waits for",
        changes=(Change(description="1 of the 2 nodes would start now", flags="--nodes 1"),),
        policy="dynamic",
        factors=(
            Factor(name="priority", value=100, unit="points", weight=1, points=100, sentence="its priority is 100"),
            Factor(name="age", value=3, unit="minutes", weight=1, points=3, sentence="it was submitted 3m 00s ago"),
        ),
    )


class Problem(Exception):
    """An answer with an error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def address_string(self) -> str:
        return "unix"

    def _serve(self) -> None:
        world = self.server.world
        url = urlsplit(self.path)
        target = unquote(url.path).removeprefix("/api/v1")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        with world.changed:
            world.requests.append((self.command, self.path.removeprefix("/api/v1"), body))
            world.changed.notify_all()
        key = f"{self.command} {target}"
        self.close_connection = True
        if world.hang_ups.get(key, 0):
            world.hang_ups[key] -= 1
            return
        if key in world.refusals:
            status, *result = world.refusals[key]
            self._send(status, {"status": status, **dict(zip(("code", "detail", "next"), result, strict=True))})
            return
        self._answer(target, query, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _answer(self, target: str, query: dict[str, str], body: Any) -> None:
        world = self.server.world
        for method, pattern, act in ROUTES:
            if method == self.command and (match := re.fullmatch(pattern, target)):
                try:
                    value = act(world, match, query, body)
                except Problem as problem:
                    return self._send(404, {"code": "not_found", "detail": str(problem), "next": "ganger ls"})
                return self._stream(value) if isinstance(value, Iterator) else self._send(200, value)
        return self._send(404, {"code": "no_such_route", "detail": target, "next": ""})

    def _send(self, status: int, value: Any) -> None:
        content = b"" if value is None else json.dumps(value).encode()
        self.send_response(204 if value is None else status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, chunks: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass


def _job(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> JobView:
    view = world.find(match["id"])
    if view is None:
        raise Problem(f"there is no job {match['id']}")
    return view


def _submit(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    if query.get("dryRun"):
        return asdict(
            DryRun(
                spec=WIDE,
                shape=str(WIDE.shape),
                starts_now=False,
                reason=REASON,
                forecast=FORECAST,
                argv=("python", "train.py"),
                environment={"RANK": "0", "NOTE": "two words"},
            )
        )
    world.add(world.submitted)
    return asdict(world.submitted)


def _jobs(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    rows = [asdict(view.row) for view in reversed(world.jobs.values())]
    rows = [row for row in rows if row["state"] in query.get("state", row["state"]).split(",")]
    start, limit = int(query.get("cursor", 0)), min(int(query["limit"]), 3)
    has_more = start + limit < len(rows)
    return {"items": rows[start : start + limit], "next": str(start + limit) if has_more else None}


def _logs(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Iterator[bytes]:
    job_id = _job(world, match, query, body).row.id

    def lines() -> list[dict[str, Any]]:
        return world.lines.get(job_id, [])

    if "follow" in query and world.streams_end_early == 0:
        return (json.dumps(record).encode() + b"\n" for record in world.tail(lines, lambda: world.is_over(job_id)))
    world.streams_end_early -= "follow" in query
    return (json.dumps(record).encode() + b"\n" for record in world.tail(lines, lambda: True))


def _stop(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    view = _job(world, match, query, body)
    world.add(replace(view, row=replace(view.row, state="stopping")))
    return asdict(world.jobs[view.row.id])


def _delete(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> None:
    del world.jobs[_job(world, match, query, body).row.id]


def _events(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    after, gang = int(query["after"]), query.get("gang")
    rows = [asdict(row) for row in world.events if row.seq > after and gang in (None, row.job)]
    return {"items": rows[:2], "next": rows[1]["seq"] if len(rows) > 2 else None}


def _stream(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Iterator[bytes]:
    rows = world.tail(lambda: world.events, lambda: False, int(query["after"]))
    rows = (row for row in rows if query.get("gang") in (None, row.job))
    return (b"id: %d\ndata: %s\n\n" % (row.seq, json.dumps(asdict(row)).encode()) for row in rows)


def _put_queue(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    amounts = {part: asdict(Amount()) | body[part] for part in ("nominal", "borrowing", "lending") if part in body}
    limits = {"user_limits": asdict(UserLimits()) | body.get("user_limits", {})}
    world.queues[match["id"]] = queue(match["id"], **body | amounts | limits)
    return asdict(world.queues[match["id"]])


def _get_queue(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    if match["id"] not in world.queues:
        raise Problem(f"there is no queue {match['id']}")
    return asdict(world.queues[match["id"]])


def _cordon(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    state = "cordoned" if body["cordoned"] else "ready"
    world.nodes[match["id"]] = replace(world.nodes[match["id"]], state=state)
    return asdict(world.nodes[match["id"]])


def _drain(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    """Drain a node: its jobs are gone at the next request."""
    node = replace(world.nodes[match["id"]], state="cordoned")
    world.nodes[match["id"]] = replace(node, gangs=())
    return asdict(node)


def _fail(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    world.nodes[match["id"]] = replace(world.nodes[match["id"]], state="lost", gangs=())
    return asdict(world.nodes[match["id"]])


def _return(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    world.nodes[match["id"]] = replace(world.nodes[match["id"]], state="ready")
    return asdict(world.nodes[match["id"]])


def _server(world: World, match: re.Match[str], query: dict[str, str], body: Any) -> Any:
    return asdict(
        ServerView(
            version=__version__,
            pid=4242,
            home="/state",
            seq=len(world.events),
            policy="priority",
            started_ms=T0,
            health="ok",
            pending=1,
            running=2,
            nodes=len(world.nodes),
        )
    )


Act = Callable[[World, re.Match[str], dict[str, str], Any], Any]
ID = r"(?P<id>[^/]+)"
ROUTES: tuple[tuple[str, str, Act], ...] = (
    ("GET", "/server", _server),
    ("GET", "/jobs", _jobs),
    ("POST", "/jobs", _submit),
    ("GET", f"/jobs/{ID}", lambda *arguments: asdict(_job(*arguments))),
    ("DELETE", f"/jobs/{ID}", _delete),
    ("POST", f"/jobs/{ID}/stop", _stop),
    ("GET", f"/jobs/{ID}/logs", _logs),
    ("GET", f"/jobs/{ID}/explain", lambda *arguments: asdict(explanation(_job(*arguments)))),
    ("GET", "/events", _events),
    ("GET", "/stream", _stream),
    ("GET", "/queues", lambda world, *_: {"items": [asdict(row) for row in world.queues.values()], "next": None}),
    ("GET", f"/queues/{ID}", _get_queue),
    ("PUT", f"/queues/{ID}", _put_queue),
    ("DELETE", f"/queues/{ID}", lambda world, match, *_: world.queues.pop(match["id"]) and None),
    ("GET", "/nodes", lambda world, *_: {"items": [asdict(row) for row in world.nodes.values()], "next": None}),
    ("PATCH", f"/nodes/{ID}", _cordon),
    ("POST", f"/nodes/{ID}/drain", _drain),
    ("POST", f"/nodes/{ID}/preempt", _drain),
    ("POST", f"/nodes/{ID}/fail", _fail),
    ("POST", f"/nodes/{ID}/return", _return),
    ("GET", "/report", lambda world, *_: asdict(world.totals) if world.totals else None),
    ("GET", "/samples", lambda world, *_: asdict(world.samples)),
    ("GET", "/telemetry", lambda world, *_: {"items": [asdict(row) for row in world.telemetry], "next": None}),
    ("GET", f"/jobs/{ID}/usage", lambda world, *_: asdict(world.usage)),
    ("GET", f"/jobs/{ID}/exec", lambda world, *_: asdict(world.exec_command)),
)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves a world at the socket of a state directory."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, home: Home, world: World) -> None:
        self.world = world
        super().__init__(str(home.socket("server")), _Handler)
        record = {"pid": 4242, "socket": str(home.socket("server")), "version": __version__}
        home.server_file.write_text(json.dumps(record))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a follower that closed its connection: it is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(home: Path) -> tuple[World, Server]:
    """Serve a fake server for the state directory `home`, on a thread of its own."""
    home.mkdir(mode=0o700)
    world = World()
    server = Server(Home(home), world)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return world, server
