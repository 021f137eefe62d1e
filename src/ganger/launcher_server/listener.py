"""Listener for launchers: TCP with TLS for those on other machines, or a unix socket; a connection each (gang, node).

Everything here runs on the event loop. Peers without a token are limited to their first message (`connection`), and
over TCP in number (`acceptor`). Messages of any generation are passed on as they come; the core tells them apart.
"""

import asyncio
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from ganger.launcher_server.acceptor import Acceptor, UnauthenticatedPeer
from ganger.launcher_server.code_pieces import CodePieces, ReadCode
from ganger.launcher_server.connection import Connection, Hello, Listener, TokenOf
from ganger.launcher_server.message_schema import BadMessage

_UNSENT_MS: Final = 30_000
_KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A node that vanishes without closing the connection is detected after 30 s."""


class LauncherListener:
    """Listener that passes messages on to `listener`; `token_of` returns the token of a launcher.

    A launcher of an older generation may still send messages, and is answered on its own connection, but `connection`
    does not return it once its node has a newer one.
    """

    def __init__(self, listener: Listener, token_of: TokenOf) -> None:
        self._listener = listener
        self._token_of = token_of
        self._acceptor: Acceptor | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._unauthenticated: WeakKeyDictionary[Connection, UnauthenticatedPeer] = WeakKeyDictionary()
        self._connections: set[Connection] = set()
        self._newest: dict[tuple[str, str], Connection] = {}
        self._code: CodePieces | None = None

    async def open(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Listen, and return the port, which the system chooses for port 0.

        Raises ValueError without TLS, except at a loopback address, and OSError if it cannot listen there.
        """
        if context is None and not ipaddress.ip_address(host).is_loopback:
            raise ValueError(f"launchers send tokens to {host}: configure a certificate, or listen at 127.0.0.1")
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            self._acceptor = Acceptor(listener, self._protocol, context)
        except OSError:
            listener.close()
            raise
        listens_at: int = listener.getsockname()[1]
        return listens_at

    def serve(self, listener: socket.socket) -> None:
        """Accept launchers at a unix socket, to which only this user may connect."""
        self._serving = asyncio.get_running_loop().create_task(self._serve(listener))

    def serve_code(self, read: ReadCode) -> None:
        """Serve code to launchers that do not find it on their disk."""
        self._code = CodePieces(read)

    def connection(self, gang: str, node: str) -> Connection | None:
        """Return the connection of a gang's launcher on a node; None while it is away."""
        return self._newest.get((gang, node))

    def connections_of(self, gang: str) -> dict[str, Connection]:
        """Return the connections of a gang's launchers by node."""
        return {node: connection for (owner, node), connection in self._newest.items() if owner == gang}

    def close(self) -> None:
        """Close all connections; launchers and ranks continue."""
        self._closed.set()
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.close()

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Connection(self, self._token_of), sock=listener)
        try:
            await self._closed.wait()
        finally:
            server.close()

    def _protocol(self, peer: UnauthenticatedPeer) -> Connection:
        connection = Connection(self, self._token_of)
        self._unauthenticated[connection] = peer
        return connection

    # -- Listener of every connection ---------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Track a new, unauthenticated connection. Once closed, drop it: the launcher must reach the next server."""
        self._connections.add(connection)
        if self._closed.is_set():
            connection.close()
            return
        if connection not in self._unauthenticated:
            return  # a launcher of this machine
        connection.keep_alive(_KEEP_ALIVE, _UNSENT_MS)
        self._listener.connected(connection)

    def launcher_connected(self, connection: Connection, hello: Hello) -> None:
        """Make the connection the launcher's current one, replacing an earlier one."""
        if (peer := self._unauthenticated.get(connection)) is not None:
            peer.release()
        key = (hello.gang, hello.node)
        former = self._newest.get(key)
        former_generation = -1 if former is None or former.hello is None else former.hello.generation
        if hello.generation >= former_generation:
            self._newest[key] = connection
        if former is not None and hello.generation == former_generation:
            former.close()
        self._listener.launcher_connected(connection, hello)

    def code_requested(self, connection: Connection, gang: str, node: str, start: int) -> None:
        """Send code to a launcher, which counts as authenticated. Raises BadMessage where none is served."""
        if self._code is None:
            raise BadMessage("get_code: this server serves no code")
        if (peer := self._unauthenticated.get(connection)) is not None:
            peer.release()
        self._code.requested(connection, gang, node, start)

    def message_received(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        self._listener.message_received(connection, hello, message)

    def message_refused(self, hello: Hello, reason: str) -> None:
        self._listener.message_refused(hello, reason)

    def launcher_disconnected(self, connection: Connection) -> None:
        """Forget a connection; its launcher has ended or will reconnect."""
        self._connections.discard(connection)
        if (peer := self._unauthenticated.pop(connection, None)) is not None:
            peer.release()
        if connection.hello is not None:
            key = (connection.hello.gang, connection.hello.node)
            if self._newest.get(key) is connection:
                del self._newest[key]
        if self._code is not None:
            self._code.disconnected(connection)
        self._listener.launcher_disconnected(connection)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a TLS context with this certificate (PEM, with its chain) for the launchers' HOST; raise OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
