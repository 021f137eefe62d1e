"""The link that blocks: every request on the caller's own thread. Used by `client`, and by the SDK without asyncio."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Protocol

from ganger.client.local.http import Request, exchange


class Finder(Protocol):
    """Who knows where the server listens."""

    @property
    def socket(self) -> Path:
        """Where it did when it was looked for last."""

    def connect(self) -> object:
        """Find the server; start one if there is none."""

    def came_back(self) -> bool:
        """Wait for a server that restarts; False when there is none any more."""


class BlockingLink:
    """A way to the server that a finder found (`talk.Link`)."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    async def connect(self) -> None:
        self._finder.connect()

    async def came_back(self) -> bool:
        return self._finder.came_back()

    async def ask(self, request: Request) -> bytes:
        with exchange(self._finder.socket, request) as answer:
            return answer.read()

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        with exchange(self._finder.socket, request) as answer:
            for line in answer.lines(deadline):
                yield line
