"""The blocking link: every request runs on the caller's thread."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Protocol

from ganger.client.local.http import Remote, Request, exchange


class Finder(Protocol):
    """Knows where the server listens."""

    @property
    def socket(self) -> Path | Remote:
        """The socket of the server when it was last looked up, or the server on another machine."""

    def connect(self) -> object:
        """Find the server, and start one if there is none."""

    def bring(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a submission as it is sent, once the server has the code that it names."""

    def came_back(self) -> bool:
        """Wait for a server that restarts or is started in place of one that died; return False if there is none."""


class BlockingLink:
    """A blocking link to the server that a finder found."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    async def connect(self) -> None:
        self._finder.connect()

    async def came_back(self) -> bool:
        return self._finder.came_back()

    async def bring(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._finder.bring(request)

    async def ask(self, request: Request) -> bytes:
        with exchange(self._finder.socket, request) as answer:
            return answer.read()

    async def blocks(self, request: Request) -> AsyncGenerator[bytes, None]:
        with exchange(self._finder.socket, request) as answer:
            for block in answer.blocks():
                yield block

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        with exchange(self._finder.socket, request) as answer:
            for line in answer.lines(deadline):
                yield line
