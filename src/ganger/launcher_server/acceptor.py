"""Acceptor of TCP connections that limits unauthenticated peers before reading anything from them.

Everything here runs on the event loop. A connection is silent until its first byte: until then it costs one descriptor,
and neither TLS nor a protocol is started for it. Silent connections and those that have sent something are limited
separately, so that silence, which costs its sender nothing, takes no slot from a launcher in its handshake.
"""

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

MAX_SILENT: Final = 512
MAX_SILENT_OF_ADDRESS: Final = 256
MAX_SPEAKING: Final = 1_024
MAX_SPEAKING_OF_ADDRESS: Final = 512
"""This many launchers of one address reconnect at once when a controller restarts, and none must lose its slot."""
TOKEN_TIMEOUT_S: Final = 30.0
"""Time between the acceptance of a connection and its token."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
_BACKLOG: Final = 1_024
_BATCH: Final = 16
"""Connections accepted, and started, per iteration of the event loop.

So a new connection's first byte is read before the next ones can push it out, and other sockets of the server are
served between the handshakes of many.
"""
_PAUSE_S: Final = 1.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class UnauthenticatedPeer:
    """A connection from its acceptance until it has presented a token; `address` is the one it counts for."""

    def __init__(
        self, connection: socket.socket, address: str, forget: Callable[["UnauthenticatedPeer"], None]
    ) -> None:
        self.address = address
        self._connection = connection
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(TOKEN_TIMEOUT_S, self.drop)
        self._handshake: asyncio.Task[None] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def release(self) -> None:
        """Stop counting the connection: it has presented a token, or is closed."""
        self._deadline.cancel()
        self._forget(self)

    def drop(self) -> None:
        """Close the connection at once."""
        self.release()
        if self._transport is not None:
            self._transport.abort()
        elif self._handshake is not None:
            # Its handshake, or the transport that it has just become, ends by itself and closes the descriptor: closed
            # under a transport, the descriptor would be reused for the next connection.
            with suppress(OSError):  # closed already, or reset by the other end
                self._connection.shutdown(socket.SHUT_RDWR)
        else:
            self._loop.remove_reader(self._connection)
            self._connection.close()

    def wait_for_first_byte(self, on_first_byte: Callable[["UnauthenticatedPeer"], None]) -> None:
        """Call `on_first_byte` once there is something to read; forget a peer that disconnects before that."""

        def peek() -> None:
            try:
                if self._connection.recv(1, socket.MSG_PEEK):
                    self._loop.remove_reader(self._connection)
                    on_first_byte(self)
                    return
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                pass  # reset by the other end
            self.drop()

        self._loop.add_reader(self._connection, peek)

    def start(self, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None) -> None:
        """Pass the connection to a protocol, after the TLS handshake if there is a context; not if it was dropped."""
        if self._connection.fileno() < 0:
            return
        self._handshake = self._loop.create_task(self._start(protocol, context))
        self._handshake.add_done_callback(self._on_handshake_end)

    async def _start(self, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None) -> None:
        timeout_s = None if context is None else HANDSHAKE_TIMEOUT_S
        with suppress(OSError):  # the handshake failed
            self._transport, _ = await self._loop.connect_accepted_socket(
                protocol, self._connection, ssl=context, ssl_handshake_timeout=timeout_s
            )

    def _on_handshake_end(self, _: asyncio.Task[None]) -> None:
        if self._transport is None:
            self.release()
            self._connection.close()


class Acceptor:
    """The connections of `listener`, a bound socket, each passed to a protocol of its own.

    The protocol releases its peer once that has presented a token, and when the connection is lost.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[UnauthenticatedPeer], asyncio.Protocol],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._silent = ConnectionLimits[UnauthenticatedPeer](MAX_SILENT, MAX_SILENT_OF_ADDRESS)
        self._speaking = ConnectionLimits[UnauthenticatedPeer](MAX_SPEAKING, MAX_SPEAKING_OF_ADDRESS)
        self._to_start = deque[UnauthenticatedPeer]()
        self._max_descriptor = descriptors_for_tcp()
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stop accepting, and drop all peers."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for peer in (*self._silent, *self._speaking):
            peer.drop()

    def _accept(self) -> None:
        if not self._has_descriptor():
            self._make_room()
            return
        for _ in range(_BATCH):
            try:
                connection, name = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(os.strerror(error.errno))
                    return
                continue  # that connection failed before it was accepted
            connection.setblocking(False)
            peer = UnauthenticatedPeer(connection, counted_address(name[0]), self._forget)
            self._drop(self._silent.add(peer, peer.address))
            peer.wait_for_first_byte(self._on_first_byte)
            if not self._has_descriptor():
                return

    def _on_first_byte(self, peer: UnauthenticatedPeer) -> None:
        self._silent.discard(peer, peer.address)
        self._drop(self._speaking.add(peer, peer.address))
        if not self._to_start:
            self._loop.call_soon(self._start_batch)
        self._to_start.append(peer)

    def _start_batch(self) -> None:
        for peer in [self._to_start.popleft() for _ in range(min(len(self._to_start), _BATCH))]:
            peer.start(partial(self._protocol, peer), self._context)
        if self._to_start:
            self._loop.call_soon(self._start_batch)

    def _forget(self, peer: UnauthenticatedPeer) -> None:
        self._silent.discard(peer, peer.address)
        self._speaking.discard(peer, peer.address)

    def _has_descriptor(self) -> bool:
        """Return True if the next connection, which gets the lowest free descriptor, would not take a reserved one."""
        try:
            descriptor = os.dup(self._listener.fileno())
        except OSError:
            return False
        os.close(descriptor)
        return descriptor < self._max_descriptor

    def _make_room(self) -> None:
        """Drop a peer from the larger group; its descriptor is free in a later iteration of the event loop."""
        peer = max((self._silent, self._speaking), key=len).pop()
        if peer is None:
            self._pause("all descriptors except those reserved for the unix socket are in use")
        self._drop(peer)

    def _drop(self, peer: UnauthenticatedPeer | None) -> None:
        if peer is not None:
            peer.drop()

    def _pause(self, reason: str) -> None:
        _log.warning("no TCP connections are accepted for %g s: %s", _PAUSE_S, reason)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)


def descriptors_for_tcp() -> int:
    """Return the lowest descriptor that no TCP connection may have: a quarter of the limit is reserved."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - soft // 4
