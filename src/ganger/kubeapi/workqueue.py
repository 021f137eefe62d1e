"""Work by key: each key by one at a time, however often it was asked for meanwhile, and again when it fails.

Used by the backend, whose keys are the objects that must be brought to where they should be. What is added while a key
is being worked on is done once more afterwards: it may have come too late to be seen.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import pause_s

WORKERS: Final = 16
"""How many keys are worked on at once."""
FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 60.0

K = TypeVar("K")

_log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """Calls `do` for each key that is added, in the order they are added. Everything is called on the event loop."""

    def __init__(self, do: Callable[[K], Awaitable[None]], workers: int = WORKERS) -> None:
        self._do = do
        self._workers = workers
        self._waiting: dict[K, None] = {}
        self._under_way: set[K] = set()
        self._again: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._news = asyncio.Event()
        self._ended = False

    def __len__(self) -> int:
        """How many keys wait: for their turn, for what is done of them already, or until they are tried again."""
        return len(self._waiting) + len(self._again) + len(self._later)

    def add(self, key: K) -> None:
        """Work on it, as soon as may be."""
        if (timer := self._later.pop(key, None)) is not None:
            timer.cancel()
        if key in self._under_way:
            self._again.add(key)
        else:
            self._waiting[key] = None
            self._news.set()

    def add_later(self, key: K, after_s: float) -> None:
        """Work on it in a while; sooner if it is added sooner, or was already."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + after_s
        if key in self._waiting or key in self._again:
            return
        if (timer := self._later.get(key)) is not None:
            if timer.when() <= at_s:
                return
            timer.cancel()
        self._later[key] = loop.call_at(at_s, self.add, key)

    async def run(self) -> None:
        """Work, until `end`. Cancelled, it breaks off what is under way."""
        try:
            async with asyncio.TaskGroup() as group:
                while not self._ended:
                    while self._waiting and len(self._under_way) < self._workers:
                        key = next(iter(self._waiting))
                        del self._waiting[key]
                        self._under_way.add(key)
                        group.create_task(self._once(key))
                    await self._news.wait()
                    self._news.clear()
        finally:
            self.end()

    def end(self) -> None:
        """Begin nothing any more: `run` returns when what is under way is done. What waits is left."""
        self._ended = True
        self._news.set()
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()

    async def _once(self, key: K) -> None:
        try:
            await self._do(key)
        except Exception as error:  # noqa: BLE001  # whatever it is, the other keys are not to suffer
            self._failed(key, error)
        else:
            self._failures.pop(key, None)
        finally:
            self._under_way.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            self._news.set()

    def _failed(self, key: K, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = pause_s(failures, FIRST_PAUSE_S, MOST_PAUSE_S)
        # What the server refuses says all there is to say; anything else is a fault of ours.
        ours = None if isinstance(error, ApiError) else error
        remedy = f"; {error.remedy}" if isinstance(error, ApiError) and error.remedy else ""
        _log.warning("%s: %s%s; again in %.1f s", key, error, remedy, pause, exc_info=ours)
        if not self._ended:
            self.add_later(key, pause)
