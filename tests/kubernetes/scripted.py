"""Loopback server that responds as a test scripts it.

Behaviour of the API server itself is in `tools/fakeapi`; this is for responses that it never gives by itself: a broken
connection, a silent stream.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from ganger.kubeapi.credentials import Credentials
from tools.skipping import SkippingLoop

T = TypeVar("T")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def run(test: Coroutine[Any, Any, T]) -> T:
    """Run a test to its end, with an hour as short as a second."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(test)


@asynccontextmanager
async def serving(
    answer: Answer, folder: Path, user: dict[str, Any] | None = None, tls: ssl.SSLContext | None = None, **cluster: Any
) -> AsyncIterator[Credentials]:
    """Yield credentials for a server with that handler."""
    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield Credentials.from_kubeconfig([kubeconfig(folder, url, user or {}, **cluster)])
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, server: str, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me", "namespace": "team"}}],
                "clusters": [{"name": "one", "cluster": {"server": server, **cluster}}],
                "users": [{"name": "me", "user": user}],
            }
        )
    )
    return path


def refused(code: int, reason: str, message: str = "no", **details: Any) -> web.Response:
    status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(status | {"details": details}, status=code)


def pod(name: str, version: int = 1, *, uid: str = "u1", node: str = "", **annotations: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version)}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata | {"annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})},
        "status": {},
    }


def broken(request: web.Request) -> web.Response:
    """Break the connection before a response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
