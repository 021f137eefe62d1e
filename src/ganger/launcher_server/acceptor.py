"""Accepts connections over TCP, and limits those that have yet to show a token before anything of them is read.

Used by the launcher listener (`door`) and by the REST listener on TCP (`ganger.server.assembly`). Everything here runs
on the event loop. A connection is silent until its first byte: until then it costs one descriptor, and neither TLS nor
a protocol is begun for it. Silent strangers and those that speak are limited apart, so that silence, which costs its
sender nothing, takes no place from a launcher in its handshake."""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from ganger.launcher_server.connection_limits import ConnectionLimits, counted_address

MOST_SILENT: Final = 512
MOST_SILENT_OF_ADDRESS: Final = 256
MOST_SPEAKING: Final = 1_024
MOST_SPEAKING_OF_ADDRESS: Final = 512
"""So many launchers of one address come back at once when a controller restarts, and none must lose its place."""
ADMITTED_WITHIN_S: Final = 30.0
"""Between the acceptance of a connection and its token."""
HANDSHAKE_WITHIN_S: Final = 10.0
_BACKLOG: Final = 1_024
_BATCH: Final = 16
"""Connections accepted in one turn of the event loop, and begun in one. So a newcomer's first byte is seen before the
next ones can push it out, and other sockets of the server are answered between the handshakes of a crowd."""
_PAUSE_S: Final = 1.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class Stranger:
    """A connection from its acceptance until it has shown a token.

    address: the address it counts for.
    """

    def __init__(self, connection: socket.socket, address: str, forget: Callable[["Stranger"], None]) -> None:
        self.address = address
        self._connection = connection
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(ADMITTED_WITHIN_S, self.drop)
        self._beginning: asyncio.Task[None] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def release(self) -> None:
        """Stop counting the connection: it has shown a token, or is gone."""
        self._deadline.cancel()
        self._forget(self)

    def drop(self) -> None:
        """Close the connection at once."""
        self.release()
        if self._transport is not None:
            self._transport.abort()
        elif self._beginning is not None:
            # Its handshake, or the transport that this has just become, ends by itself and lets go of the descriptor:
            # closed under a transport, that would be given to the next connection.
            with suppress(OSError):  # closed already, or reset by its peer
                self._connection.shutdown(socket.SHUT_RDWR)
        else:
            self._loop.remove_reader(self._connection)
            self._connection.close()

    def wait_for_first_byte(self, spoke: Callable[["Stranger"], None]) -> None:
        """Call `spoke` once there is something to read. A peer that leaves without a word is forgotten."""

        def look() -> None:
            try:
                if self._connection.recv(1, socket.MSG_PEEK):
                    self._loop.remove_reader(self._connection)
                    spoke(self)
                    return
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                pass  # reset by its peer
            self.drop()

        self._loop.add_reader(self._connection, look)

    def begin(self, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None) -> None:
        """Hand the connection to a protocol, after the TLS handshake if there is a context; not if it is dropped."""
        if self._connection.fileno() < 0:
            return
        self._beginning = self._loop.create_task(self._begin(protocol, context))
        self._beginning.add_done_callback(self._begun)

    async def _begin(self, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None) -> None:
        within_s = None if context is None else HANDSHAKE_WITHIN_S
        with suppress(OSError):  # of a handshake that fails
            self._transport, _ = await self._loop.connect_accepted_socket(
                protocol, self._connection, ssl=context, ssl_handshake_timeout=within_s
            )

    def _begun(self, _: asyncio.Task[None]) -> None:
        if self._transport is None:
            self.release()
            self._connection.close()


class Acceptor:
    """The connections of `listener`, a bound socket, each given to a protocol of its own.

    The protocol releases its stranger once that has shown a token, and when the connection is lost.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[Stranger], asyncio.Protocol],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._silent = ConnectionLimits[Stranger](MOST_SILENT, MOST_SILENT_OF_ADDRESS)
        self._speaking = ConnectionLimits[Stranger](MOST_SPEAKING, MOST_SPEAKING_OF_ADDRESS)
        self._to_begin = deque[Stranger]()
        self._descriptors = descriptors_for_tcp()
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept nobody any more, and drop all strangers."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for stranger in (*self._silent, *self._speaking):
            stranger.drop()

    def _accept(self) -> None:
        if not self._has_descriptor():
            self._make_room()
            return
        for _ in range(_BATCH):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(os.strerror(error.errno))
                    return
                continue  # that connection failed before it was accepted
            connection.setblocking(False)
            stranger = Stranger(connection, counted_address(peer[0]), self._forget)
            self._drop(self._silent.add(stranger, stranger.address))
            stranger.wait_for_first_byte(self._spoke)
            if not self._has_descriptor():
                return

    def _spoke(self, stranger: Stranger) -> None:
        self._silent.discard(stranger, stranger.address)
        self._drop(self._speaking.add(stranger, stranger.address))
        if not self._to_begin:
            self._loop.call_soon(self._begin)
        self._to_begin.append(stranger)

    def _begin(self) -> None:
        for stranger in [self._to_begin.popleft() for _ in range(min(len(self._to_begin), _BATCH))]:
            stranger.begin(partial(self._protocol, stranger), self._context)
        if self._to_begin:
            self._loop.call_soon(self._begin)

    def _forget(self, stranger: Stranger) -> None:
        self._silent.discard(stranger, stranger.address)
        self._speaking.discard(stranger, stranger.address)

    def _has_descriptor(self) -> bool:
        """Check that the descriptor of the next connection would not be one of those kept back. The system gives the
        lowest that is free."""
        try:
            descriptor = os.dup(self._listener.fileno())
        except OSError:
            return False
        os.close(descriptor)
        return descriptor < self._descriptors

    def _make_room(self) -> None:
        """Drop a stranger of those that are more, whose descriptor is free in a later turn of the event loop."""
        stranger = max((self._silent, self._speaking), key=len).pop()
        if stranger is None:
            self._pause("all descriptors but those kept for the unix socket are in use")
        self._drop(stranger)

    def _drop(self, stranger: Stranger | None) -> None:
        if stranger is not None:
            stranger.drop()

    def _pause(self, why: str) -> None:
        _log.warning("no connection over TCP is accepted for %g s: %s", _PAUSE_S, why)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)


def descriptors_for_tcp() -> int:
    """Return the lowest descriptor that no connection over TCP may have: a quarter of the limit is kept back."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - soft // 4
