"""Address of the server: a unix socket, or TLS to `tcp:HOST:PORT` or to the address in a file, `file:PATH`.

`unix:PATH` is a socket that a tunnel forwards to a server on another machine.

Nothing here blocks, except the lookup of a HOST name: it is done once, before anything runs here, or when the file
changes.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

TCP = "tcp:"
FILE = "file:"
TUNNEL = "unix:"
MAX_ADDRESS_BYTES = 300
KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A server whose machine vanishes without closing the connection is detected after 30 s."""
UNSENT_MS = 30_000


class BadServerError(Exception):
    """No server to connect to; the text is one sentence."""


class Server:
    """The server's address; `ca_file` has the certificates that must have signed the server's.

    Raises BadServerError if the address is invalid or unreadable, or the server would not be verified.
    """

    def __init__(self, address: str, ca_file: str | None = None) -> None:
        self.is_remote = address.startswith((TCP, FILE, TUNNEL))
        self._path = None if address.startswith((TCP, FILE)) else address.removeprefix(TUNNEL)
        self._address = address
        self._current = self._host = ""
        self._port = 0
        self._ca_file = ca_file
        self._resolved: tuple[int, tuple[str, int]] | None = None
        if self._path is not None:
            return
        try:
            self._read_address()
        except OSError as error:
            raise BadServerError(f"cannot read the address of the server: {error}") from error
        self._context()

    def dial(self) -> ServerConnection | None:
        """Return a connection that is open or opening; None if there is nothing to connect to now.

        Raises OSError if the name or a file cannot be read, BadServerError if the file has no address.
        """
        if self._path is not None:
            return _dial_path(self._path)
        self._read_address()
        if self._resolved is None:
            self._resolved = _look_up(self._host, self._port)
        family, address = self._resolved
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_MS)
            for option, value in KEEP_ALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            code = connection.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            return ServerConnection(connection, self._context(), self._host)
        except BaseException:
            connection.close()
            raise

    def _read_address(self) -> None:
        """Read the server's current address: a new server may run elsewhere."""
        address = self._address
        if address.startswith(FILE):
            with open(address[len(FILE) :], encoding="utf-8") as file:
                address = TCP + file.read(MAX_ADDRESS_BYTES).strip()
        if address == self._current:
            return
        host, port = _parse_tcp(address)
        if self._ca_file is None and not _is_loopback(host):
            raise BadServerError(
                f"{address} is another machine: set GANGER_CA_FILE to the file with the CA of its certificate"
            )
        self._current, self._host, self._port, self._resolved = address, host, port, None

    def _context(self) -> ssl.SSLContext | None:
        """Return a new TLS context for each connection: the file may have been replaced."""
        if self._ca_file is None:
            return None
        import ssl  # takes as long as all other imports together

        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError) as error:
            raise BadServerError(f"cannot use GANGER_CA_FILE {self._ca_file}: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


class ServerConnection:
    """A connection that is open or opening; until it `is_open`, `wants` is the event to select for."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext | None, name: str) -> None:
        self.is_open = False
        self.wants = selectors.EVENT_WRITE
        self._fd = connection.fileno()
        self._socket = connection
        self._context = context
        self._name = name
        self._tls_socket: ssl.SSLSocket | None = None

    def fileno(self) -> int:
        """Return the descriptor, which never changes."""
        return self._fd

    def proceed(self) -> None:
        """Continue to open the connection; raise OSError if that fails."""
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if self._context is None:
            self.is_open = True
            return
        if self._tls_socket is None:
            self._tls_socket = self._context.wrap_socket(
                self._socket, do_handshake_on_connect=False, server_hostname=self._name
            )
            self._socket = self._tls_socket
        try:
            self._tls_socket.do_handshake()
        except OSError as error:
            self.wants = _event_for(error)
            return
        self.is_open = True

    @property
    def has_more(self) -> bool:
        """True if data was received that the selector does not know of."""
        return self._tls_socket is not None and self._tls_socket.pending() > 0

    def send(self, data: bytes) -> int:
        """Send and return the number of bytes taken; raise BlockingIOError if none now, OSError if disconnected."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            raise
        except OSError as error:
            _event_for(error)
            raise BlockingIOError from None

    def recv(self, max_bytes: int) -> bytes:
        """Receive, b"" at the end; raise BlockingIOError if there is nothing now, OSError if disconnected."""
        try:
            return self._socket.recv(max_bytes)
        except BlockingIOError:
            raise
        except OSError as error:
            _event_for(error)
            raise BlockingIOError from None

    def close(self) -> None:
        self._socket.close()


def _event_for(error: OSError) -> int:
    """Return the event that TLS waits for; raise the error if it is another one."""
    kind = type(error).__name__  # ssl is imported only with TLS
    if kind == "SSLWantReadError":
        return selectors.EVENT_READ
    if kind == "SSLWantWriteError":
        return selectors.EVENT_WRITE
    raise error


def _dial_path(path: str) -> ServerConnection | None:
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None  # too many open files
    try:
        connection.setblocking(False)
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    opened = ServerConnection(connection, None, path)
    opened.is_open = True
    return opened


def _parse_tcp(address: str) -> tuple[str, int]:
    host, _, port = address[len(TCP) :].rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadServerError(f"{address} is not a server address: it must be tcp:HOST:PORT")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    """Return True if the address itself is a loopback address; names are resolved elsewhere."""
    if host == "::1":
        return True
    try:
        return socket.inet_aton(host)[0] == 127 and host.count(".") == 3
    except OSError:
        return False


def _look_up(host: str, port: int) -> tuple[int, tuple[str, int]]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]), int(address[1]))
