"""Proxy between a client and a real API server that forwards requests and lets faults strike.

Benches and tests use it to do on a real API server what `FakeApi.inject` does to the fake one. The client speaks plain
HTTP on loopback without credentials: the server sees the identity of `tls`. What a fault delays is forwarded even if
the client is dead by then, as a network would.
"""

import asyncio
import json
import random
import ssl
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from yarl import URL

from tools.fakeapi.errors import StatusError
from tools.fakeapi.faults import Call, Fault
from tools.fakeapi.server.http import Connection, Request
from tools.fakeapi.server.server import NoSuchPath, error_response, fault_error, parse_path, verb_of

FORWARDED_HEADERS: Final = ("accept", "authorization", "content-type", "user-agent")
"""Request headers that are forwarded."""


class FaultProxy:
    """Proxy of the API server at `url`; `tls` verifies it and identifies the client. seed: seed of all randomness."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, *, seed: int = 0) -> None:
        self._base, self._tls = URL(url), tls
        self._rng = random.Random(seed)
        self._faults: list[Fault] = []
        self._connections: dict[Connection, asyncio.Task[None] | None] = {}
        """Connections, and the watch of each, which ends with it."""
        self._work: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession
        self._listening: asyncio.Server

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
        )
        self._listening = await asyncio.get_running_loop().create_server(self._make_connection, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for connection in list(self._connections):
            connection.abort()
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._session.close()

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig of its client; return its path."""
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy", "namespace": "default"}}],
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {}}],
        }
        path.write_text(json.dumps(text))
        return path

    def inject(self, fault: Fault) -> Fault:
        """Add a fault; of several that match a call the first one strikes."""
        self._faults.append(fault)
        return fault

    def cut_watches(self) -> int:
        """Break the connections of all watches; return their number."""
        watched = [connection for connection, watch in self._connections.items() if watch is not None]
        for connection in watched:
            connection.abort()
        return len(watched)

    # -- called by connections -----------------------------------------------------------------------------------------

    def _make_connection(self) -> Connection:
        return Connection(self._handle, self._add_connection, self._remove_connection)

    def _add_connection(self, connection: Connection) -> None:
        self._connections[connection] = None

    def _remove_connection(self, connection: Connection) -> None:
        if (watch := self._connections.pop(connection, None)) is not None:
            watch.cancel()

    def _handle(self, request: Request) -> None:
        """Handle one request: forward it, or do what a fault makes of it."""
        call = _call(request)
        fault = next((fault for fault in self._faults if fault.strikes(call, self._rng)), None)
        if fault is None:
            self._execute(request, call, None)
        else:
            fault.run_before_call(request.connection, lambda: self._execute(request, call, fault))

    # -- forwarding ----------------------------------------------------------------------------------------------------

    def _execute(self, request: Request, call: Call, fault: Fault | None) -> None:
        connection = request.connection
        if fault and fault.status:
            code, body, headers = error_response(fault_error(fault))
            fault.run_before_response(connection, lambda: connection.answer(code, body, headers))
        elif call.verb != "watch":
            self._start_task(self._forward(request, fault))
        elif fault and fault.lost:
            connection.abort()
        elif connection in self._connections:
            self._connections[connection] = self._start_task(self._forward_watch(request))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _forward(self, request: Request, fault: Fault | None) -> None:
        """Forward a request. A broken or absent server is the same to the client."""
        connection = request.connection
        try:
            async with self._request(request) as answer:
                code, body, kind = answer.status, await answer.read(), answer.content_type
                retry_after = answer.headers.get("Retry-After")
        except (aiohttp.ClientError, OSError):
            connection.abort()
            return
        headers = f"Retry-After: {retry_after}\r\n" if retry_after else ""
        if fault:
            fault.run_before_response(connection, lambda: connection.answer(code, body, headers, kind))
        else:
            connection.answer(code, body, headers, kind)

    async def _forward_watch(self, request: Request) -> None:
        """Forward a watch, piece by piece."""
        connection = request.connection
        try:
            async with self._request(request) as answer:
                if answer.status != 200:
                    connection.answer(answer.status, await answer.read())
                    return
                connection.start_stream()
                async for piece in answer.content.iter_any():
                    connection.send([b"%x\r\n" % len(piece), piece, b"\r\n"])
        except (aiohttp.ClientError, OSError):
            connection.abort()
        else:
            self._connections[connection] = None
            connection.end()

    def _request(self, request: Request) -> "aiohttp.client._RequestContextManager":
        return self._session.request(
            request.method,
            self._base.with_path(request.path).with_query(request.query),
            data=request.body or None,
            headers={name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(),
        )


def _call(request: Request) -> Call:
    """Return the call for faults; a path without an object is its own resource."""
    try:
        group, _, namespace, rest = parse_path(request.path)
        plural, name, sub = [*rest, "", ""][:3]
        verb = verb_of(request, name, sub)
    except (NoSuchPath, StatusError):
        return Call("", request.method.lower(), "", request.path, "", "")
    return Call("", verb, group, f"{plural}/{sub}" if sub else plural, namespace, name)
