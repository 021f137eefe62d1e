"""The listener for launchers on other machines: TCP under TLS, one connection for each (gang, node).

Built by a backend whose launchers share no disk with the server; everything here runs on the event loop. Who has no
token is let in no further than its first message (`link`), and limited in number (`acceptor`). What a launcher says is
handed on as it comes, of whichever generation it is; the core tells them apart.
"""

import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from ganger.launcher_server.acceptor import Acceptor, Stranger
from ganger.launcher_server.connection import Connection, Hello, Listener, TokenOf

_UNSENT_MS: Final = 30_000
_KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A node that is gone without a word is missed after 30 s."""


class LauncherListener:
    """`listener` hears what comes in; `token_of` says with which token. A launcher of an older generation may still
    talk, and is answered by its own connection, but is not found any more when its node has a newer one."""

    def __init__(self, listener: Listener, token_of: TokenOf) -> None:
        self._listener = listener
        self._token_of = token_of
        self._acceptor: Acceptor | None = None
        self._strangers: WeakKeyDictionary[Connection, Stranger] = WeakKeyDictionary()
        self._all: set[Connection] = set()
        self._newest: dict[tuple[str, str], Connection] = {}

    async def open(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Listen there, and give the port (which the system chooses for port 0). Without TLS only at a loopback
        address: ValueError. OSError when nobody can listen there."""
        if context is None and not ipaddress.ip_address(host).is_loopback:
            raise ValueError(f"launchers show tokens at {host}: give a certificate, or listen at 127.0.0.1")
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

    def connection(self, gang: str, node: str) -> Connection | None:
        """How to talk to the launcher of a gang on a node; None while it is away."""
        return self._newest.get((gang, node))

    def of_gang(self, gang: str) -> dict[str, Connection]:
        """The launchers of a gang that are there, by node."""
        return {node: connection for (whose, node), connection in self._newest.items() if whose == gang}

    def close(self) -> None:
        """Let go of everybody; launchers and ranks run on."""
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self._all):
            connection.close()

    def _protocol(self, stranger: Stranger) -> Connection:
        connection = Connection(self, self._token_of)
        self._strangers[connection] = stranger
        return connection

    # -- as the listener of every connection --------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Somebody is there, who has yet to say who."""
        self._all.add(connection)
        connection.keep_alive(_KEEP_ALIVE, _UNSENT_MS)
        self._listener.connected(connection)

    def greeted(self, connection: Connection, hello: Hello) -> None:
        """A launcher is there, for the first time or again: what it had before is over."""
        self._strangers[connection].release()
        key = (hello.gang, hello.node)
        former = self._newest.get(key)
        known = -1 if former is None or former.hello is None else former.hello.generation
        if hello.generation >= known:
            self._newest[key] = connection
        if former is not None and hello.generation == known:
            former.close()
        self._listener.greeted(connection, hello)

    def heard(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        """A launcher said something."""
        self._listener.heard(connection, hello, message)

    def refused(self, hello: Hello, why: str) -> None:
        """A launcher's message was refused."""
        self._listener.refused(hello, why)

    def parted(self, connection: Connection) -> None:
        """A launcher is gone, or will be back."""
        self._all.discard(connection)
        self._strangers.pop(connection).release()
        if connection.hello is not None:
            key = (connection.hello.gang, connection.hello.node)
            if self._newest.get(key) is connection:
                del self._newest[key]
        self._listener.parted(connection)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS with this certificate (PEM, with those that it is signed by behind it). It must be for the HOST that the
    launchers are told. OSError when a file is none, or they do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
