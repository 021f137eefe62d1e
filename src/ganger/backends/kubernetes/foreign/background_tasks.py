"""Work of the foreign pods that nothing waits for: it runs until it is done, or until all of it is cancelled."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ganger.backends.kubernetes.binding import NotLeadingError

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks in the background. A failure is logged, except where another controller leads by now."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run something until `close`."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def close(self) -> None:
        """Cancel what still runs."""
        for task in self._tasks:
            task.cancel()

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotLeadingError):
            _log.error("foreign pods: a task failed", exc_info=error)
