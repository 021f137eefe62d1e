"""Status of queues: jobs, GPUs in use, the fair share, and the recorded usage (`usage`) for a successor.

Nothing is read while nothing happens, and the amount written does not depend on the number of jobs: figures of a queue
at most every 10 s, its usage at most once a minute, and once more at the end.

Usage is written only when the objects of all jobs have the events that it was counted from: for a job whose object
still says that it runs, a successor would count the end again.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from ganger.controller.policy.queue_usage import Usage, encode, usage_of
from ganger.engine.loop import Loop
from ganger.engine.query.listing_rows import queue_rows
from ganger.kubeapi.api_error import ApiError

COLLECT_S: Final = 1.0
"""Time for which events are collected before they are written."""
REPORT_INTERVAL_S: Final = 10.0
"""Minimum time between two reports."""
USAGE_INTERVAL_S: Final = 60.0
"""Minimum time between two writes of a queue's usage."""
END_TIMEOUT_S: Final = 5.0
POLL_INTERVAL_S: Final = 0.1
"""Interval at which jobs' objects are checked to be up to date."""

Figures = dict[str, Any]


class ReportTrigger:
    """Wakes a reporter when there is something to report; the log and the policy reconciler notify it.

    Attributes:
        written_seq: up to this event everything was given to the objects of jobs.
        wakeup: set when a report is due.
    """

    def __init__(self) -> None:
        self.written_seq = 0
        self.wakeup = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()

    def on_written(self, seq: int, has_jobs: bool) -> None:  # noqa: FBT001 - the log's callback
        """Note that objects have everything up to an event, and whether a job had changed; from any thread."""
        self._event_loop.call_soon_threadsafe(self._on_written, seq, has_jobs)

    def notify(self) -> None:
        """Report soon: the usage of a queue may be kept on another object from now on."""
        self.wakeup.set()

    def _on_written(self, seq: int, has_jobs: bool) -> None:  # noqa: FBT001
        self.written_seq = seq
        if has_jobs:
            self.wakeup.set()


class QueueStatusWriter(Protocol):
    """Writes the status of queues: `PolicyReconciler`."""

    @property
    def trigger(self) -> ReportTrigger:
        """Trigger of reports, which is notified when a queue's usage may belong to another object."""
        ...

    async def write(self, statuses: Mapping[str, Figures]) -> None:
        """Set fields in the status of each queue."""
        ...

    def queues_with_status(self) -> frozenset[str]:
        """Return the queues with a status."""
        ...

    async def flush(self) -> None:
        """Wait until everything is written."""
        ...


class QueueStatusReporter:
    """Writes the figures and usage of queues.

    Args:
        loop: the scheduling loop.
        writer: where the figures are written.
        recorded: the usage with which the state began, by queue.
        has_unwritten: returns whether something of an event up to one is not written yet to the object of a job.
    """

    def __init__(
        self,
        loop: Loop,
        writer: QueueStatusWriter,
        recorded: Mapping[str, Usage],
        has_unwritten: Callable[[int], bool],
    ) -> None:
        self._loop, self._writer, self._has_unwritten, self._trigger = loop, writer, has_unwritten, writer.trigger
        self._recorded = {name: usage.figures for name, usage in recorded.items()}
        self._recorded_s: dict[str, float] = {}
        self._event_loop = asyncio.get_running_loop()

    async def end(self) -> None:
        """Report the current state and wait until it is written, or cannot be. Called after `run`."""
        with suppress(TimeoutError, ApiError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._report(usage_s=0.0, within_s=END_TIMEOUT_S / 2)
                await self._writer.flush()

    async def run(self) -> None:
        """Report changes until cancelled."""
        has_delayed = False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._trigger.wakeup.wait(), REPORT_INTERVAL_S if has_delayed else None)
            await asyncio.sleep(COLLECT_S)
            self._trigger.wakeup.clear()
            has_delayed = await self._report(USAGE_INTERVAL_S, REPORT_INTERVAL_S)
            await asyncio.sleep(REPORT_INTERVAL_S)

    async def _report(self, usage_s: float, within_s: float) -> bool:
        """Report the current state. Return whether usage is still to be written."""
        figures, usage, seq = await asyncio.to_thread(self._collect, self._writer.queues_with_status())
        await self._writer.write(figures)
        now_s, has_delayed = self._event_loop.time(), False
        if self._recorded.keys() - usage.keys():
            usage_s = 0.0  # the usage of a deleted queue is recorded only with its parent's
        due = dict[str, Usage]()
        for name, of_queue in usage.items():
            if self._recorded.get(name) == of_queue.figures:
                continue
            if now_s - self._recorded_s.get(name, -usage_s) >= usage_s:
                due[name] = of_queue
            else:
                has_delayed = True
        if not due or not await self._wait_until_written(seq, within_s):
            return has_delayed or bool(due)
        await self._writer.write({name: {"usage": encode(of_queue)} for name, of_queue in due.items()})
        self._recorded = {name: figures for name, figures in self._recorded.items() if name in usage}
        for name, of_queue in due.items():
            self._recorded[name], self._recorded_s[name] = of_queue.figures, now_s
        return has_delayed

    async def _wait_until_written(self, seq: int, within_s: float) -> bool:
        """Return whether jobs' objects have everything up to an event, within some seconds."""
        until_s = self._event_loop.time() + within_s
        while self._trigger.written_seq < seq or self._has_unwritten(seq):
            if self._event_loop.time() > until_s:
                return False
            await asyncio.sleep(POLL_INTERVAL_S)
        return True

    def _collect(self, queues: frozenset[str]) -> tuple[dict[str, Figures], dict[str, Usage], int]:
        with self._loop.view() as state:
            rows, usage, seq = queue_rows(state), usage_of(state, queues), state.seq
        figures: dict[str, Figures] = {
            row.name: {
                "pending": row.pending,
                "running": row.running,
                "gpus": int(row.used["gpus"]),
                "fairShare": row.fair_gpus,
            }
            for row in rows
        }
        return figures, usage, seq
