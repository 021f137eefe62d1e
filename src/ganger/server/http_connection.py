"""HTTP connections of the REST interface, with a limit on how slowly a request may be received.

Without it a client that sends half a header, or a body without an end, would keep a connection of a server that has
few; sending an answer has no limit. A TCP connection is a stranger's (`ganger.launcher_server.acceptor`) until a
request with a valid token has come over it.
"""

import asyncio
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ganger.launcher_server.acceptor import UnauthenticatedPeer
from ganger.rest.broken_response import ABORT

REQUEST_S: Final = 60.0
"""Time limit for receiving a request; it may take up to twice as long."""
MIN_UPLOAD_BYTES: Final = 1 << 20
"""Part of a request that has to be received in that time for its rest to get as much again: an archive is long."""
STRANGER: Final = "ganger.stranger"
"""Key of a connection's stranger in the state that uvicorn copies into the scope of each request."""


class Connection(H11Protocol):
    """Checked every `REQUEST_S`: dropped if it is still receiving the same request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Create it as uvicorn does."""
        super().__init__(*arguments, **options)
        self._checked_cycle: object = None
        self._received_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer, and let the token gate close the connection."""
        self.app_state = self.app_state | {ABORT: transport.abort}  # type: ignore[attr-defined]  # as below
        super().connection_made(transport)  # type: ignore[arg-type]  # asyncio gives stream protocols one that writes
        self._timer = self.loop.call_later(REQUEST_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and release the stranger."""
        if self._timer is not None:
            self._timer.cancel()
        stranger: UnauthenticatedPeer | None = self.app_state.get(STRANGER)
        if stranger is not None:
            stranger.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is received."""
        self._received_bytes += len(data)
        super().data_received(data)

    def _check(self) -> None:
        """Abort the connection if its request is still incomplete; `cycle` is new for each received header."""
        is_slow = self.cycle is self._checked_cycle and self._received_bytes < MIN_UPLOAD_BYTES
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and is_slow:
            self.transport.abort()
            return
        self._received_bytes = 0
        self._checked_cycle = self.cycle
        self._timer = self.loop.call_later(REQUEST_S, self._check)


class StrangerRelease:
    """ASGI middleware inside the token gate: releases the stranger whose request was accepted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Release the stranger and handle the request."""
        scope["state"][STRANGER].release()
        await self._app(scope, receive, send)
