"""Requests to the application in this process, without a socket."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI

from tests.waiting import DEADLINE_S


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


def call(app: FastAPI, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """Return the whole answer to one request to /api/v1.

    `body` is sent as JSON, bytes as they are, in two pieces.
    """
    return asyncio.run(request(app, method, target, body, headers))


async def request(
    app: FastAPI, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """Return the whole answer to a request that may run beside others."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    pieces = [content[: len(content) // 2], content[len(content) // 2 :]]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(DEADLINE_S):  # an application that reads on after the end of a body waits for ever
        await app(scope(method, target, headers), receive, send)
    start, *parts = sent
    response_headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], response_headers, b"".join(part.get("body", b"") for part in parts))


def scope(method: str, target: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the scope of a request to /api/v1."""
    path, _, query = f"/api/v1{target}".partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            *((k.lower().encode(), v.encode()) for k, v in (headers or {}).items()),
        ],
        "client": None,
        "server": None,
        "state": {},
    }
