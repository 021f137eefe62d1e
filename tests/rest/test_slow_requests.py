"""Requests that do not come whole hold no connection for ever; slow answers are nobody's fault."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from ganger.server import http_connection
from ganger.server.http_connection import Connection

LIMIT_S = 0.1
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
NEVER_WHOLE = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost:",
    "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nfive.",
    "chunks without an end": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfive.\r\n",
    "half of a second one": WHOLE + b"GET / HT",
}


async def slow(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """Answers when the request is whole, and takes its time."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(4 * LIMIT_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


async def said_to(sent: bytes) -> bytes:
    """All that comes back until the server hangs up."""
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
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a minute here."""
    monkeypatch.setattr(http_connection, "REQUEST_S", LIMIT_S)


@pytest.mark.parametrize("sent", NEVER_WHOLE.values(), ids=NEVER_WHOLE.keys())
def test_a_request_that_never_comes_whole_is_given_up(sent: bytes) -> None:
    assert b"done" not in asyncio.run(said_to(sent)).partition(b"done")[2]


def test_a_slow_answer_comes(short: None) -> None:
    assert asyncio.run(said_to(WHOLE)).endswith(b"done")
