"""Wake-up of followers: one thread for all readers of the event stream, one for each follower of logs.

Nothing polls: an idle subscriber is a coroutine that sleeps.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from ganger.engine.service import Service
from ganger.errors import BrokenStreamError
from ganger.rest.responses import ndjson

WATCH_TIMEOUT_S: Final = 30.0
"""Time for which the watching thread waits for an event before it checks whether the feed was closed."""
MAX_CHUNKS_AHEAD: Final = 10
"""Chunks of lines that a follower's thread reads ahead of a slow client."""


class StreamFeed:
    """Wakes coroutines when the log has grown. Its thread starts with the first subscriber."""

    def __init__(self, service: Service) -> None:
        """Begin without subscribers."""
        self.closed = False
        self._service = service
        self._seq = 0
        self._has_grown = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._pumps: list[_Pump] = []

    async def wait_beyond(self, seq: int, timeout_s: float) -> bool:
        """Wait until the log has grown beyond `seq`; return False when it has not within `timeout_s`."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._watch, args=(loop,), name="feed", daemon=True)
            self._thread.start()
        try:
            async with asyncio.timeout(timeout_s):
                while self._seq <= seq and not self.closed:
                    await self._has_grown.wait()
        except TimeoutError:
            return False
        return True

    async def follow(self, source: Callable[[], Iterator[Any | None]]) -> AsyncIterator[bytes]:
        """Yield the values of `source()` as NDJSON as they come, read by a thread of their own.

        A None of the source says that nothing more comes at once; it is also a chance to detect a client that has left.
        Raise BrokenStreamError when the server stops before the end: the job may end before the reader finds the next
        server, and it would take what it has for everything.
        """
        pump = _Pump(source, asyncio.get_running_loop())
        self._pumps.append(pump)
        try:
            while (lines := await pump.next()) is not None:
                yield lines
        finally:
            self._pumps.remove(pump)
            pump.close()

    def close(self) -> None:
        """End all streams, because the server is stopping. Called on the event loop."""
        self.closed = True
        self._has_grown.set()
        for pump in self._pumps:
            pump.close()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        seq = 0
        while not self.closed:
            newest = self._service.wait(seq, WATCH_TIMEOUT_S)
            if newest > seq:
                seq = newest
                with suppress(RuntimeError):  # the event loop has ended before this thread
                    loop.call_soon_threadsafe(self._publish, newest)

    def _publish(self, seq: int) -> None:
        self._seq = seq
        if not self.closed:
            self._has_grown.set()
            self._has_grown = asyncio.Event()


class _Pump:
    """Carries lines from a blocking thread to a sleeping coroutine, many at a time."""

    def __init__(self, source: Callable[[], Iterator[Any | None]], loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._loop = loop
        self._ready = asyncio.Event()
        self._room = threading.Condition()
        self._chunks: list[bytes] = []
        self._done = False
        self._closed = False
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="follow", daemon=True).start()

    async def next(self) -> bytes | None:
        """Return what has come since the last call, waiting for something; None at the end of the source.

        Raise BrokenStreamError if it was closed before that.
        """
        while True:
            await self._ready.wait()
            self._ready.clear()
            if self._closed and not self._done:
                raise BrokenStreamError("the server stops")
            with self._room:
                chunks, self._chunks = self._chunks, []
                # Read with the chunks: an end that comes after them may have brought more.
                is_done, error = self._done, self._error
                self._room.notify()
            if chunks:
                self._ready.set()
                return b"".join(chunks)
            if error:
                raise error
            if is_done:
                return None

    def close(self) -> None:
        """End the thread, as nothing is read any more. Called on the event loop."""
        with self._room:
            self._closed = True
            self._room.notify()
        self._ready.set()

    def _run(self) -> None:
        try:
            for chunk in ndjson(self._source()):
                if self._closed:
                    return
                if chunk:
                    self._put(chunk)
            self._done = True
        except Exception as error:  # noqa: BLE001 - it is raised again where it is awaited
            self._error = error
        finally:
            self._wake()

    def _put(self, chunk: bytes) -> None:
        with self._room:
            self._room.wait_for(lambda: self._closed or len(self._chunks) < MAX_CHUNKS_AHEAD)
            self._chunks.append(chunk)
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the event loop has ended before this thread
            self._loop.call_soon_threadsafe(self._ready.set)
