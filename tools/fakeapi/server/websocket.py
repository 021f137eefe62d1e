"""WebSockets (RFC 6455), as far as a client that only listens needs them: a handshake, and messages to it."""

import base64
import hashlib
from collections.abc import Iterable

from tools.fakeapi.server.http import Request

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, CLOSE = 0x82, 0x88
"""First bytes of unfragmented messages."""


def send_messages(request: Request, messages: Iterable[bytes]) -> None:
    """Answer a request for a WebSocket, send the messages, and close it."""
    digest = hashlib.sha1(f"{request.headers['sec-websocket-key']}{GUID}".encode(), usedforsecurity=False).digest()
    protocol = request.headers["sec-websocket-protocol"].partition(",")[0]
    handshake = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    )
    frames = [_frame(BINARY, message) for message in messages]
    request.connection.send([handshake.encode(), *frames, _frame(CLOSE, (1000).to_bytes(2, "big"))])
    request.connection.close()


def _frame(first: int, data: bytes) -> bytes:
    if len(data) < 126:
        return bytes((first, len(data))) + data
    if len(data) < 1 << 16:
        return bytes((first, 126)) + len(data).to_bytes(2, "big") + data
    return bytes((first, 127)) + len(data).to_bytes(8, "big") + data
