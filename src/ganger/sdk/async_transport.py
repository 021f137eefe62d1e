"""The asynchronous link: requests on the caller's event loop.

h11 implements HTTP, asyncio carries the bytes. Finding or starting a server may block for seconds and runs in a thread.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import h11

from ganger.client.client import Client
from ganger.client.local.follow_requests import Link, at_once, each_at_once
from ganger.client.local.http import PREFIX, Remote, Request, connected, host_and_headers, lost, problem_of

_CHUNK_BYTES = 65536


class AsynchronousLink:
    """An asynchronous link to the server that a client found."""

    def __init__(self, finder: Client) -> None:
        self._finder = finder
        self._turn = threading.Lock()
        self._searches = 0

    async def connect(self) -> None:
        """Find the server, and start one if there is none. Of concurrent callers, one searches and the others wait."""
        await asyncio.to_thread(self._connect, self._searches)

    async def came_back(self) -> bool:
        """Wait for a server that restarts or is started in place of one that died; return False if there is none."""
        return await asyncio.to_thread(self._finder.came_back)

    async def bring(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a submission as it is sent, once the server has the code that it names."""
        return await asyncio.to_thread(self._finder.bring, request)

    async def ask(self, request: Request) -> bytes:
        """Return the body of the response."""
        async with aclosing(self._body(request, None)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def blocks(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the body of the response as it arrives."""
        async with aclosing(self._body(request, None)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yield lines of the response as they arrive, without their ends."""
        rest = b""
        async with aclosing(self._body(request, deadline)) as chunks:
            async for chunk in chunks:
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line.rstrip(b"\r")
        if rest:
            yield rest

    def _connect(self, searches: int) -> None:
        with self._turn:
            if searches == self._searches:
                self._finder.connect()
                self._searches += 1

    async def _body(self, request: Request, deadline: float | None) -> AsyncGenerator[bytes, None]:
        """Yield the body of a successful response in chunks; raise the error of another one."""
        server, http = self._finder.socket, h11.Connection(h11.CLIENT)
        writer = None
        try:
            reader, writer = await _open(server, request.timeout_s)
            writer.write(_sent(http, server, request))
            response = await _next(http, reader, request.timeout_s)
            pieces = _pieces(http, reader, request, deadline)
            if isinstance(response, h11.Response) and response.status_code >= 400:
                raise problem_of(response.status_code, b"".join([piece async for piece in pieces]))
            async for piece in pieces:
                yield piece
        except (h11.ProtocolError, OSError) as error:
            raise lost(server, request, error) from None
        finally:
            if writer is not None:
                writer.close()


class ThreadedLink:
    """An asynchronous link over a blocking one, which runs in threads."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def connect(self) -> None:
        """Find the server."""
        await asyncio.to_thread(lambda: at_once(self._link.connect()))

    async def came_back(self) -> bool:
        """Wait for a server that restarts; return False if there is none any more."""
        return await asyncio.to_thread(lambda: at_once(self._link.came_back()))

    async def bring(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a submission as it is sent."""
        return await asyncio.to_thread(lambda: at_once(self._link.bring(request)))

    async def ask(self, request: Request) -> bytes:
        """Return the body of the response."""
        return await asyncio.to_thread(lambda: at_once(self._link.ask(request)))

    async def blocks(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the body of the response as it arrives."""
        blocks = each_at_once(self._link.blocks(request))
        while (block := await asyncio.to_thread(next, blocks, None)) is not None:
            yield block

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yield lines of the response as they arrive, without their ends."""
        lines = each_at_once(self._link.lines(request, deadline))
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            yield line


async def _open(server: Path | Remote, timeout_s: float | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to a server."""
    if not isinstance(server, Path):
        return await server.opened()  # noqa: ASYNC240 - it is no path
    return await asyncio.open_unix_connection(sock=connected(server, timeout_s))


def _sent(http: h11.Connection, server: Path | Remote, request: Request) -> bytes:
    """Return the request as bytes."""
    host, own_headers = host_and_headers(server, request)
    headers = {"Host": host, "Content-Length": str(len(request.content)), "Connection": "close"} | own_headers
    head = h11.Request(method=request.method, target=PREFIX + request.target, headers=list(headers.items()))
    events = (head, h11.Data(data=request.content), h11.EndOfMessage())
    return b"".join(http.send(event) or b"" for event in events)


async def _pieces(
    http: h11.Connection, reader: asyncio.StreamReader, request: Request, deadline: float | None
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of the response body."""
    while True:
        left_s = request.timeout_s if deadline is None else deadline - time.monotonic()
        event = await _next(http, reader, left_s)
        if not isinstance(event, h11.Data):
            return
        yield bytes(event.data)


async def _next(http: h11.Connection, reader: asyncio.StreamReader, timeout_s: float | None) -> object:
    """Return the next HTTP event; raise TimeoutError when nothing arrives in time."""
    while (event := http.next_event()) is h11.NEED_DATA:
        async with asyncio.timeout(timeout_s):
            http.receive_data(await reader.read(_CHUNK_BYTES))
    return event
