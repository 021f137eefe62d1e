"""HTTP/1.1 for clients of the API: one connection, its requests in sequence, responses and streams.

There is no task per request: a response is written while its request is read, which makes thousands of binds a second
cheap.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

PHRASES = {status.value: status.phrase for status in HTTPStatus}
MAX_BODY_BYTES = 3 * 1024 * 1024


class Request:
    """One request; header names are lower case."""

    __slots__ = ("body", "connection", "headers", "method", "parameters", "path", "query")

    def __init__(
        self, connection: "Connection", method: str, target: str, headers: dict[str, str], body: bytes
    ) -> None:
        path, _, query = target.partition("?")
        self.connection, self.method, self.headers, self.body = connection, method, headers, body
        self.path = unquote(path) if "%" in path else path
        self.parameters = parse_qsl(query, keep_blank_values=True) if query else []
        self.query = dict(self.parameters)


class Connection(asyncio.Protocol):
    """One connection. frozen: half-open, nothing is read or written any more although it stays up."""

    def __init__(
        self,
        handle: Callable[[Request], None],
        on_open: Callable[["Connection"], None],
        on_close: Callable[["Connection"], None],
    ) -> None:
        self._handle, self._on_open, self._on_close = handle, on_open, on_close
        self._buffer = bytearray()
        self._busy = False
        self._closing = False
        self._transport: asyncio.Transport | None = None
        self.paused = self.frozen = False
        self.resume: Callable[[], None] | None = None

    # -- called by asyncio ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if self.frozen:
            return
        self._buffer += data
        self._handle_requests()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_close(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.resume:
            self.resume()

    # -- called by the server ------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self.frozen

    def answer(self, code: int, body: bytes, headers: str = "", content_type: str = "application/json") -> None:
        """Send a whole response; then the next request is read."""
        self.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n%s"
            % (code, PHRASES[code].encode(), content_type.encode(), len(body), headers.encode(), body)
        )
        self._finish_response()

    def start_stream(self) -> None:
        """Begin a chunked response."""
        self.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")

    def send(self, parts: list[bytes]) -> None:
        if self.open and self._transport:
            self._transport.writelines(parts)

    def end(self) -> None:
        """End the stream."""
        self.write(b"0\r\n\r\n")
        self.resume = None
        self._finish_response()

    def close(self) -> None:
        """Close the connection when everything is sent."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection: what was not sent is lost."""
        if self._transport:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        if self.open and self._transport:
            self._transport.write(data)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _finish_response(self) -> None:
        self._busy = False
        if self._closing and self._transport:
            self._transport.close()
        elif self._buffer:
            asyncio.get_running_loop().call_soon(self._handle_requests)

    def _handle_requests(self) -> None:
        while not self._busy and self.open:
            request = self._next_request()
            if request is None:
                return
            self._busy = True
            self._handle(request)

    def _next_request(self) -> Request | None:
        """Return the next complete request."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        if length > MAX_BODY_BYTES or "transfer-encoding" in headers:
            self._closing = True
            self.answer(413, b"a body needs a Content-Length of at most 3 MiB", content_type="text/plain")
            return None
        start = end + 4
        if len(self._buffer) < start + length:
            if headers.get("expect") == "100-continue" and len(self._buffer) == start:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        self._closing = headers.get("connection", "").lower() == "close"
        method, target, _ = first.split(" ", 2)
        return Request(self, method, target, headers, body)
