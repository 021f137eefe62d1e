"""How the server is reached: at the path of a unix socket, or over TLS at `tcp:HOST:PORT` or at what a file says,
`file:PATH`. Used by `main` and `link`.

Nothing here waits, but for the address of a HOST that is a name: it is looked up once, before anything runs here, or
when the file has another.
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
LONGEST_ADDRESS_BYTES = 300
KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A server whose machine is gone without a word is missed after 30 s."""
UNSENT_MS = 30_000


class BadServerError(Exception):
    """No server to connect to; the text is one sentence."""


class Server:
    """Where the server is. `ca_file` has the certificates of whom its own must be signed by. BadServerError when the
    address is none, or cannot be read, or the server could be anybody."""

    def __init__(self, address: str, ca_file: str | None = None) -> None:
        self.is_remote = address.startswith((TCP, FILE))
        self._said = address
        self._now = self._host = ""
        self._port = 0
        self._ca_file = ca_file
        self._found: tuple[int, tuple[str, int]] | None = None
        if not self.is_remote:
            return
        try:
            self._turn()
        except OSError as error:
            raise BadServerError(f"the address of the server cannot be read: {error}") from error
        self._context()

    def dial(self) -> Line | None:
        """A connection that is open or will be; None when there is nothing to connect to now. OSError when the name or
        a file cannot be read, BadServerError when the file has no address."""
        if not self.is_remote:
            return _dial_path(self._said)
        self._turn()
        if self._found is None:
            self._found = _look_up(self._host, self._port)
        family, where = self._found
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_MS)
            for option, value in KEEP_ALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            code = connection.connect_ex(where)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            return Line(connection, self._context(), self._host)
        except BaseException:
            connection.close()
            raise

    def _turn(self) -> None:
        """To where the server is now: another one may have come, elsewhere."""
        address = self._said
        if address.startswith(FILE):
            with open(address[len(FILE) :], encoding="utf-8") as file:
                address = TCP + file.read(LONGEST_ADDRESS_BYTES).strip()
        if address == self._now:
            return
        host, port = _split(address)
        if self._ca_file is None and not _is_loopback(host):
            raise BadServerError(
                f"{address} is another machine: GANGER_CA_FILE must name the file that its certificate is checked by"
            )
        self._now, self._host, self._port, self._found = address, host, port, None

    def _context(self) -> ssl.SSLContext | None:
        """Made anew for each connection: the file may have been replaced."""
        if self._ca_file is None:
            return None
        import ssl  # costs as much as all the rest

        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError) as error:
            raise BadServerError(f"GANGER_CA_FILE {self._ca_file} cannot be used: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


class Line:
    """A connection on its way. `wants` is what the selector is to wait for until it `is_open`."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext | None, name: str) -> None:
        self.is_open = False
        self.wants = selectors.EVENT_WRITE
        self._fd = connection.fileno()
        self._socket = connection
        self._context = context
        self._name = name
        self._secure: ssl.SSLSocket | None = None

    def fileno(self) -> int:
        """The same for as long as it lives."""
        return self._fd

    def proceed(self) -> None:
        """Go on with opening it. OSError when that fails."""
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if self._context is None:
            self.is_open = True
            return
        if self._secure is None:
            self._secure = self._context.wrap_socket(
                self._socket, do_handshake_on_connect=False, server_hostname=self._name
            )
            self._socket = self._secure
        try:
            self._secure.do_handshake()
        except OSError as error:
            self.wants = _wanted(error)
            return
        self.is_open = True

    @property
    def has_more(self) -> bool:
        """Whether something was received that the selector does not know of."""
        return self._secure is not None and self._secure.pending() > 0

    def send(self, data: bytes) -> int:
        """Bytes that were taken. BlockingIOError when none can be now, OSError when it is gone."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            raise
        except OSError as error:
            _wanted(error)
            raise BlockingIOError from None

    def recv(self, most: int) -> bytes:
        """Empty at the end. BlockingIOError when there is nothing now, OSError when it is gone."""
        try:
            return self._socket.recv(most)
        except BlockingIOError:
            raise
        except OSError as error:
            _wanted(error)
            raise BlockingIOError from None

    def close(self) -> None:
        self._socket.close()


def _wanted(error: OSError) -> int:
    """What TLS waits for; the error itself when that is not what it says."""
    kind = type(error).__name__  # without TLS nothing of it is imported
    if kind == "SSLWantReadError":
        return selectors.EVENT_READ
    if kind == "SSLWantWriteError":
        return selectors.EVENT_WRITE
    raise error


def _dial_path(path: str) -> Line | None:
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
    line = Line(connection, None, path)
    line.is_open = True
    return line


def _split(address: str) -> tuple[str, int]:
    host, _, port = address[len(TCP) :].rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadServerError(f"{address} is no address of a server: it must be tcp:HOST:PORT")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    """By the address alone: what a name stands for, others decide."""
    if host == "::1":
        return True
    try:
        return socket.inet_aton(host)[0] == 127 and host.count(".") == 3
    except OSError:
        return False


def _look_up(host: str, port: int) -> tuple[int, tuple[str, int]]:
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(where[0]), int(where[1]))
