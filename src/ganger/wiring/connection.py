"""A connection of the REST interface, as uvicorn has it, that does not wait for ever for the rest of a request.

Used by `serve`. Whoever sends half a header, or a body without an end, would else hold a connection of a server that
has few; an answer may take, and be read, as long as it likes.
"""

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 60.0
"""A request may take so long to come, and up to twice that."""


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
        super().connection_lost(exc)

    def _see(self) -> None:
        """`cycle` is made anew for each request whose head has come."""
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and self.cycle is self._seen:
            self.transport.abort()
            return
        self._seen = self.cycle
        self._look = self.loop.call_later(REQUEST_S, self._see)
