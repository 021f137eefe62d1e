"""Durable state of a controller: events and logs of ended ranks are written to its store, and read back by the next.

The controller goes on without the store: what is not written yet stays in the log on its disk, and is written when the
store can be used again. A Warning on the lease, which `ganger doctor --context` reads, a metric, and the log of the
controller say that it cannot. The controller stays ready all the same: jobs and their queries need no store, an unready
leader would be taken from its Service, and a standby, which has the same store, could not do better.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.durable import event_archive, rank_logs
from ganger.controller.durable.event_archive import Begin, EventArchive
from ganger.controller.durable.rank_logs import PodSource, RankLogs, merged
from ganger.controller.durable.store import DirectoryStore, Store, StoredFile, StoreError
from ganger.controller.jobs.conditions import time_of
from ganger.engine.wall_clock import WallClock
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import EVENTS
from ganger.ports import Metric
from ganger.settings import RetentionLimits

SHIP_INTERVAL_S: Final = 10.0
"""Interval at which events are written: a controller that is killed loses the last ones, but no job."""
BEGIN_TIMEOUT_S: Final = 1.0
"""Time for which a new leader waits to learn where the history ends."""
FINISH_S: Final = 1.0
"""Time that the last write may take: the lease is released after it."""
RETENTION_INTERVAL_S: Final = 3600.0
UNAVAILABLE: Final = "StoreUnavailable"
AVAILABLE: Final = "StoreAvailable"
REPEAT_S: Final = 1200.0
"""Interval at which the Warning is written again: the API server deletes Events after an hour."""
_log = logging.getLogger("ganger")


class DurableState:
    """The state of one controller in its store.

    Args:
        store: the store.
        api: client of the API server, for events.
        lease: the controller's lease, on which events are shown.
        may_act: returns whether this controller leads.
    """

    def __init__(self, store: Store, api: ApiClient, lease: ObjectRef[Any], may_act: Callable[[], bool]) -> None:
        self.store = store
        self._api, self._lease, self._may_act = api, lease, may_act
        self._event_loop = asyncio.get_running_loop()
        self._error = ""
        self._is_confirmed = False
        """True once an event says that this leader could use the store: an earlier one may have said that it cannot."""
        self._repeat_at_s = 0.0
        self._closing = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def metrics(self) -> tuple[Metric, ...]:
        """Return whether the store can be used, as far as is known."""
        kind = "directory" if isinstance(self.store, DirectoryStore) else "s3"
        about = "1 if the durable store could be used when it was last needed, else 0."
        return (Metric.by_label("ganger_store_usable", about, "gauge", "kind", {kind: 0.0 if self._error else 1.0}),)

    async def begin(self) -> Begin | None:
        """Return what this controller's numbers follow; None without a history.

        While the store cannot be used that is not known: events are then numbered by the clock, beyond all others.
        """
        try:
            async with asyncio.timeout(BEGIN_TIMEOUT_S):
                return await asyncio.to_thread(event_archive.newest, self.store)
        except TimeoutError:
            self._failed(StoreError("the store does not respond", "check its address"))
        except StoreError as error:
            self._failed(error)
        return Begin(WallClock(0).now_ms(), 0)

    @asynccontextmanager
    async def rank_logs(self, backend: KubernetesBackend) -> AsyncIterator[RankLogs]:
        """Copy the logs of a backend's ended pods for the duration of the context, and have it read them."""
        source = PodSource(backend.pods, backend.job, backend.logs.fetch)
        logs = RankLogs(self.store, source, self._may_act, self.failed)
        backend.logs.with_copies, backend.pod_watcher = partial(merged, logs), logs.pod_changed
        copying = asyncio.create_task(logs.run())
        try:
            yield logs
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)

    async def run(self, database: Path, begin: Begin) -> None:
        """Write the rows of a log until cancelled, and add those of earlier controllers to it."""
        archive = EventArchive(self.store, database, begin)
        imported = False
        try:
            while True:
                is_written = await self._try(archive.ship)
                if is_written and not imported:
                    imported = await self._try(
                        event_archive.import_earlier, self.store, database, archive.first_seq, self._closing
                    )
                    if imported and not self._is_confirmed:
                        self._confirm("the store can be used")
                await asyncio.sleep(SHIP_INTERVAL_S)
        finally:
            self._closing.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_S):
                    await self._try(archive.ship)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def retain(self, limits: RetentionLimits) -> None:
        """Delete what is over its limit until cancelled."""
        while True:
            await asyncio.sleep(RETENTION_INTERVAL_S)
            await self._try(delete_old, self.store, limits, WallClock(0).now_ms())

    def failed(self, error: StoreError) -> None:
        """Note that the store cannot be used; from any thread."""
        self._event_loop.call_soon_threadsafe(self._failed, error)

    async def _try(self, work: Callable[..., Any], *arguments: Any) -> bool:
        """Run something that uses the store on a thread; return whether it succeeded."""
        try:
            await asyncio.to_thread(work, *arguments)
        except StoreError as error:
            self._failed(error)
            return False
        except (sqlite3.Error, ValueError) as error:
            self._failed(StoreError(f"the event log cannot be read: {error}", "ganger doctor"))
            return False
        if self._error:
            self._error = ""
            _log.info("the store can be used again; what was not written is written now")
            self._confirm("the store can be used again")
        return True

    def _confirm(self, message: str) -> None:
        self._is_confirmed = True
        self._tell("Normal", AVAILABLE, message)

    def _failed(self, error: StoreError) -> None:
        is_new = not self._error
        self._error = str(error)
        if is_new:
            _log.warning("the store cannot be used, and is tried again: %s; next: %s", error, error.next)
        if is_new or time.monotonic() >= self._repeat_at_s:
            self._repeat_at_s = time.monotonic() + REPEAT_S
            self._tell(
                "Warning", UNAVAILABLE, f"{error}; jobs go on, and what is not written yet is kept: {error.next}"
            )

    def _tell(self, kind: str, reason: str, message: str) -> None:
        task = asyncio.create_task(self._write_event(kind, reason, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_event(self, kind: str, reason: str, message: str) -> None:
        now, lease = time_of(WallClock(0).now_ms()), self._lease
        about = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "name": lease.name,
            "namespace": lease.namespace,
        }
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{lease.name}.{reason.lower()}", "namespace": lease.namespace},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": PROGRAM.name},
            "reportingComponent": PROGRAM.name,
        }
        try:
            await self._api.apply(EVENTS, event)
        except ApiError as error:
            _log.warning("the event %s cannot be written: %s", reason, error)


def delete_old(store: Store, limits: RetentionLimits, now_ms: int) -> None:
    """Delete files over their limit of age or size, the oldest first. Raises StoreError."""
    for folder, max_age_ms, max_bytes in (
        (rank_logs.FOLDER, limits.logs_ms, limits.logs_bytes),
        (event_archive.FOLDER, limits.events_ms, limits.events_bytes),
    ):
        files = sorted(store.list(folder), key=lambda file: file.written_ms)
        if folder == event_archive.FOLDER:
            files = files[:-1]  # where the next controller begins
        for file in _over_limit(files, max_age_ms, max_bytes, now_ms):
            store.delete(file.name)


def _over_limit(
    files: list[StoredFile], max_age_ms: int | None, max_bytes: int | None, now_ms: int
) -> list[StoredFile]:
    total, over = sum(file.size_bytes for file in files), []
    for file in files:
        is_old = max_age_ms is not None and now_ms - file.written_ms >= max_age_ms
        if is_old or (max_bytes is not None and total > max_bytes):
            over.append(file)
            total -= file.size_bytes
    return over
