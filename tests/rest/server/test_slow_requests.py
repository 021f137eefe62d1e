"""Incomplete requests are dropped after a time; slow answers are not."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from ganger.server import http_connection
from ganger.server.http_connection import Connection

pytestmark = pytest.mark.serial

LIMIT_S = 0.1
COMPLETE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
INCOMPLETE = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost:",
    "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nfive.",
    "chunks without an end": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfive.\r\n",
    "half of a second one": COMPLETE + b"GET / HT",
}


async def slow(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """Answer when the request is complete, after a while."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(4 * LIMIT_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


async def response_to(sent: bytes) -> bytes:
    """Return all that is received until the server closes the connection."""
    config = uvicorn.Config(slow, http=Connection, ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        server.close()


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout of requests."""
    monkeypatch.setattr(http_connection, "REQUEST_S", LIMIT_S)


@pytest.mark.parametrize("sent", INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_an_incomplete_request_is_dropped(sent: bytes) -> None:
    assert b"done" not in asyncio.run(response_to(sent)).partition(b"done")[2]


def test_a_slow_answer_is_sent(short_timeout: None) -> None:
    assert asyncio.run(response_to(COMPLETE)).endswith(b"done")
