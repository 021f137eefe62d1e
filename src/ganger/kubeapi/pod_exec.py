"""The messages of a command that the API server runs in a container: each begins with the number of its stream."""

from collections.abc import AsyncGenerator
from enum import IntEnum
from typing import Final

import aiohttp
import msgspec

from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Status
from ganger.kubeapi.request import Request

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
EXEC_READ_TIMEOUT_S: Final = 60.0
"""Time for which a command may write nothing."""
MAX_ERROR_BYTES: Final = 16 << 10
"""Size of the part of a command's error output that is kept: the end."""


class _Stream(IntEnum):
    STDOUT = 1
    STDERR = 2
    STATUS = 3


class CommandError(Exception):
    """A command that did not end with 0.

    Attributes:
        error_output: the end of what it wrote to stderr.
    """

    def __init__(self, message: str, error_output: str) -> None:
        """Store the parts."""
        super().__init__(message)
        self.error_output = error_output


async def output(request: Request, websocket: aiohttp.ClientWebSocketResponse) -> AsyncGenerator[bytes]:
    """Yield what the command writes to stdout. Raises ApiError and CommandError."""
    status: Status | None = None
    error_output = b""
    async for message in websocket:
        if message.type is aiohttp.WSMsgType.ERROR:
            break
        if message.type is not aiohttp.WSMsgType.BINARY or len(message.data) < 2:
            continue
        data = message.data[1:]
        match message.data[0]:
            case _Stream.STDOUT:
                yield data
            case _Stream.STDERR:
                error_output = (error_output + data)[-MAX_ERROR_BYTES:]
            case _Stream.STATUS:
                status = msgspec.json.decode(data, type=Status)
            case _:  # of a later version
                pass
    if status is None:
        reason = websocket.exception() or f"the connection ended before the command (code {websocket.close_code})"
        raise ApiError(request.description, 0, "NoAnswer", str(reason), is_retryable=True)
    if status.status != "Success":
        raise CommandError(status.message, error_output.decode(errors="replace"))
