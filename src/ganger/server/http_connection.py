"""A connection of the REST interface, as uvicorn has it, that does not wait for ever for the rest of a request.

Used by `serve`. Whoever sends half a header, or a body without an end, would else hold a connection of a server that
has few; an answer may take, and be read, as long as it likes. Over TCP a connection is a stranger's
(`ganger.launcher_server.acceptor`) until a request with a good token has come over it.
"""

import asyncio
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ganger.launcher_server.acceptor import UnauthenticatedPeer

REQUEST_S: Final = 60.0
"""A request may take so long to come, and up to twice that."""
STRANGER: Final = "ganger.stranger"
"""The key of a connection's stranger in the state that uvicorn copies into the scope of each request."""


class Connection(H11Protocol):
    """Looked at every `REQUEST_S`: one on which the same request is still under way is dropped."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*given, **named)
        self._seen: object = None
        self._look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        super().connection_made(transport)  # type: ignore[arg-type]  # asyncio gives stream protocols one that writes
        self._look = self.loop.call_later(REQUEST_S, self._see)

    def connection_lost(self, exc: Exception | None) -> None:
        """They are gone."""
        if self._look is not None:
            self._look.cancel()
        stranger: UnauthenticatedPeer | None = self.app_state.get(STRANGER)
        if stranger is not None:
            stranger.release()
        super().connection_lost(exc)

    def _see(self) -> None:
        """`cycle` is made anew for each request whose head has come."""
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and self.cycle is self._seen:
            self.transport.abort()
            return
        self._seen = self.cycle
        self._look = self.loop.call_later(REQUEST_S, self._see)


class Admitting:
    """`app` behind the gate: releases the stranger whose request came through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["state"][STRANGER].release()
        await self._app(scope, receive, send)
