"""The largest body of a request, and what becomes of a larger one."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from ganger.code.packed_code import MAX_ARCHIVE_BYTES

MAX_BODY_BYTES: Final = 2 << 20
CODE_PATH: Final = "/api/v1/code/"
"""Requests to a path that begins so may have a body of `MAX_ARCHIVE_BYTES`."""
DRAINED_BYTES: Final = 256 << 20
"""Part of an oversized body that is read and discarded, so that its sender gets to read the answer."""


class BodyTooLargeError(BaseException):
    """The body is larger than any request may be.

    It derives from BaseException, because FastAPI answers 400 to an Exception while it reads a body.
    """


def max_body_bytes(scope: Scope) -> int:
    """Return the largest body that a request may have."""
    return MAX_ARCHIVE_BYTES if scope["path"].startswith(CODE_PATH) else MAX_BODY_BYTES


def content_length(scope: Scope) -> int:
    """Return the length of the body by its header; 0 without one."""
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isdecimal() else 0


def expects_continue(scope: Scope) -> bool:
    """Return whether the sender waits for 100 Continue before it sends the body (RFC 9110, section 10.1.1)."""
    return Headers(scope=scope).get("expect", "").lower() == "100-continue"


class Body:
    """The body of a request as it is received, up to the limit."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive, self._max_bytes = receive, max_bytes
        self._bytes = 0
        self._has_more = True

    async def receive(self) -> Message:
        """Return the next message."""
        message = await self._next()
        if self._bytes > self._max_bytes:
            raise BodyTooLargeError
        return message

    async def drain(self) -> None:
        """Read and discard the rest, up to a limit."""
        while self._has_more and self._bytes <= DRAINED_BYTES:
            await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self._has_more = message["type"] == "http.request" and message.get("more_body", False)
        return message
