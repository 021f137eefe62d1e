"""Code that launchers fetch over their authenticated connection, piece by piece, before they send `hello`.

Each piece is asked for once the one before has arrived, and refused before that: a launcher that does not read costs
the memory of two pieces at most, one here and one in TLS. Everything here runs on the event loop, except for the
source.
"""

import asyncio
import base64
from collections.abc import Callable
from typing import Final, NamedTuple

from ganger.launcher_server.connection import Connection
from ganger.launcher_server.message_schema import BadMessage

PIECE_BYTES: Final = 256 << 10
MAX_AT_ONCE: Final = 2
"""Maximum number of pieces that are read at one time."""


class CodePiece(NamedTuple):
    """Part of an archive, and the size of all of it."""

    content: bytes
    size_bytes: int


class NoCodeError(Exception):
    """There is no such code, and will be none; the text is one sentence."""


ReadCode = Callable[[str, int, int], CodePiece | None]
"""Return the code of a gang from a byte on, at most so many; None if it cannot be read now.

Blocks. Raises NoCodeError.
"""


class CodePieces:
    """Answers requests for code; one connection of each launcher is answered, the newest."""

    def __init__(self, read: ReadCode) -> None:
        self._read = read
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._newest: dict[tuple[str, str], Connection] = {}
        self._launchers: dict[Connection, tuple[str, str]] = {}
        self._answering: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def requested(self, connection: Connection, gang: str, node: str, start: int) -> None:
        """Send a piece; drop the connection if it cannot be read now: the launcher asks again later.

        Raises BadMessage for a request before the answer to the one before has been sent.
        """
        # A first request may come in one read with the end of the TLS handshake, when the server's session tickets are
        # unsent: they are no piece. On a busy machine it always does.
        if connection in self._answering or (connection in self._launchers and connection.has_unsent):
            raise BadMessage(f"get_code: {gang} on {node} asks for a piece before it has the one before")
        former = self._newest.get((gang, node))
        self._newest[gang, node], self._launchers[connection] = connection, (gang, node)
        if former is not None and former is not connection:
            former.close()
        self._answering.add(connection)
        task = asyncio.create_task(self._send(connection, gang, start))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        launcher = self._launchers.pop(connection, None)
        if launcher is not None and self._newest.get(launcher) is connection:
            del self._newest[launcher]

    async def _send(self, connection: Connection, gang: str, start: int) -> None:
        try:
            async with self._slots:
                if connection not in self._launchers:
                    return  # it is gone
                piece = await asyncio.to_thread(self._read, gang, start, PIECE_BYTES)
        except NoCodeError as error:
            connection.send("no_code", detail=str(error))
            return
        finally:
            self._answering.discard(connection)
        if piece is None:
            connection.close()
        else:
            data = base64.b64encode(piece.content).decode()
            connection.send("code", start=start, data=data, end=piece.size_bytes)
