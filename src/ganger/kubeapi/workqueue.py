"""Queue of keys with rate-limited retries, as in client-go: no key is processed by two workers at once.

A key that is added while it is processed is processed once more afterwards: the change may have come too late to be
taken into account.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s

WORKERS: Final = 16
"""Keys processed at once."""
INITIAL_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 60.0

K = TypeVar("K")

_log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """Runs `reconcile` for each added key, in the order of addition. All calls are on the event loop."""

    def __init__(self, reconcile: Callable[[K], Awaitable[None]], workers: int = WORKERS) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._waiting: dict[K, None] = {}
        self._processing: set[K] = set()
        self._dirty: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wakeup = asyncio.Event()
        self._shut_down = False

    def __len__(self) -> int:
        """Return the number of keys that wait: in the queue, for their current run to end, or for a retry."""
        return len(self._waiting) + len(self._dirty) + len(self._timers)

    def add(self, key: K) -> None:
        """Queue a key now."""
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if key in self._processing:
            self._dirty.add(key)
        else:
            self._waiting[key] = None
            self._wakeup.set()

    def add_after(self, key: K, after_s: float) -> None:
        """Queue a key after a delay, or earlier if it is queued or due earlier."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + after_s
        if key in self._waiting or key in self._dirty:
            return
        if (timer := self._timers.get(key)) is not None:
            if timer.when() <= due_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due_s, self.add, key)

    async def run(self) -> None:
        """Process keys until `end`. If cancelled, cancel what is in progress."""
        try:
            async with asyncio.TaskGroup() as group:
                while not self._shut_down:
                    while self._waiting and len(self._processing) < self._workers:
                        key = next(iter(self._waiting))
                        del self._waiting[key]
                        self._processing.add(key)
                        group.create_task(self._process(key))
                    await self._wakeup.wait()
                    self._wakeup.clear()
        finally:
            self.shut_down()

    def shut_down(self) -> None:
        """Start nothing more: `run` returns when what is in progress is done; what waits is dropped."""
        self._shut_down = True
        self._wakeup.set()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _process(self, key: K) -> None:
        try:
            await self._reconcile(key)
        except Exception as error:  # noqa: BLE001  # an error of one key must not stop the others
            self._retry_later(key, error)
        else:
            self._failures.pop(key, None)
        finally:
            self._processing.discard(key)
            if key in self._dirty:
                self._dirty.discard(key)
                self.add(key)
            self._wakeup.set()

    def _retry_later(self, key: K, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S)
        # An API error explains itself; any other is a bug and needs its traceback.
        traceback = None if isinstance(error, ApiError) else error
        remedy = f"; {error.remedy}" if isinstance(error, ApiError) and error.remedy else ""
        _log.warning("%s: %s%s; retrying in %.1f s", key, error, remedy, pause, exc_info=traceback)
        if not self._shut_down:
            self.add_after(key, pause)
