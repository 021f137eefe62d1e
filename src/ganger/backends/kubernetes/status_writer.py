"""Status writer: the controller's state of each of its objects, written to the object with what users read.

A start is written before a pod of it is created. Only the newest status counts; what it replaced meanwhile is skipped.
Nothing is written unless this controller leads.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ganger.gang_jobs.object_names import key_of
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ApiStruct, CustomObject, Key, Object
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import Resource
from ganger.kubeapi.workqueue import WorkQueue
from ganger.model.job import split_element_id

LAZY_DELAY_S: Final = 10.0
"""Delay of writes that change only a sentence."""
_SENTENCE: Final = ("reason", "message")

_log = logging.getLogger(__name__)


class _WrittenStatus(ApiStruct, frozen=True):
    """Status fields that are read back.

    generation: the generation that starts.
    starts: of an array, those of its elements (`3:1 7:2`).
    reason, message: why the job waits, or ended.
    """

    generation: int = 0
    starts: str = ""
    reason: str | None = None
    message: str = ""

    def includes(self, start: "_Start") -> bool:
        """Return whether that start is written."""
        index, generation = start
        if index is None:
            return self.generation >= generation
        starts = (item.split(":") for item in self.starts.split())
        return any(int(element) == index and int(started) >= generation for element, started in starts)


_Start = tuple[int | None, int]
"""Index of an element (None for a job that is not an array), and the generation."""


class StatusWriter:
    """Writes the status of the resource's `objects` while `run` runs."""

    def __init__(
        self,
        api: ApiClient,
        resource: Resource[CustomObject],
        objects: Mapping[Key, CustomObject],
        may_act: Callable[[], bool],
    ) -> None:
        self._api, self._resource, self._objects, self._may_act = api, resource, objects, may_act
        self._pending: dict[Key, Object] = {}
        self._written: dict[Key, _WrittenStatus] = {}
        self._first_unwritten: dict[Key, int] = {}
        """First event of which something is not written yet."""
        self._waiting: dict[Key, list[tuple[_Start, asyncio.Future[None]]]] = {}
        self._queue = WorkQueue(self._write, workers=64)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._queue.run()

    def update(self, key: Key, status: Object, *, after_s: float = 0.0) -> None:
        """Set fields of an object's status after a delay, or earlier with whatever else is written of it."""
        self._pending[key] = self._pending.get(key, {}) | status
        if "seq" in status:
            self._first_unwritten.setdefault(key, status["seq"])
        if after_s:
            self._queue.add_after(key, after_s)
        else:
            self._queue.add(key)

    async def wait_until_written(self, gang: str, generation: int) -> None:
        """Wait until the object says that this generation starts. Raises KeyError if the object was deleted."""
        key, element = key_of(gang), split_element_id(gang)
        known, start = self._objects.get(key), (element[1] if element else None, generation)
        if known is None:
            raise KeyError(key)
        if self._written_status(key, known).includes(start) or _read(known).includes(start):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((start, done))
        await done

    def has_unwritten(self, seq: int) -> bool:
        """Return whether something of an event up to `seq` is not written yet."""
        return any(first <= seq for first in self._first_unwritten.values())

    async def flush(self) -> None:
        """Write everything pending now. Raises ApiError."""
        for key in list(self._pending):
            await self._write(key)

    def forget(self, key: Key) -> None:
        """Forget a deleted object."""
        self._pending.pop(key, None)
        self._first_unwritten.pop(key, None)
        self._written.pop(key, None)
        for _, done in self._waiting.pop(key, []):
            if not done.done():
                done.set_exception(KeyError(key))

    async def _write(self, key: Key) -> None:
        """Write the newest status. Raises ApiError to be retried."""
        status = self._pending.get(key)
        known = self._objects.get(key)
        if status is None or not self._may_act():
            return
        if known is None:
            self.forget(key)
            return
        before = self._written_status(key, known)
        if tuple(status) == _SENTENCE and (status["reason"], status["message"]) == (before.reason, before.message):
            del self._pending[key]  # it has changed to and fro meanwhile
            return
        ref = ObjectRef(self._resource, key.namespace, key.name, "status")
        # The UID keeps the status from an object that was created again under the name.
        body = {"metadata": {"uid": known.metadata.uid}, "status": status}
        try:
            await self._api.merge(ref, body)
        except ApiError as error:
            if error.missing or error.conflict:
                self.forget(key)
                return
            raise
        _log.debug("wrote the status of %s %s/%s: %s", self._resource.plural, *key, ", ".join(status))
        if self._pending.get(key) is status:
            del self._pending[key]
            self._first_unwritten.pop(key, None)
        elif key in self._first_unwritten and "seq" in status:
            self._first_unwritten[key] = status["seq"] + 1
        self._written[key] = written = _WrittenStatus(
            generation=max(before.generation, int(status.get("generation") or 0)),
            starts=before.starts if status.get("starts") is None else status["starts"],
            reason=status.get("reason", before.reason),
            message=status.get("message", before.message) or "",
        )
        waiting = []
        for start, done in self._waiting.pop(key, []):
            if written.includes(start) and not done.done():
                done.set_result(None)
            else:
                waiting.append((start, done))
        if waiting:
            self._waiting[key] = waiting

    def _written_status(self, key: Key, known: CustomObject) -> _WrittenStatus:
        """Return what this controller has written last of an object, or else what an earlier one has."""
        return self._written.get(key) or _read(known)


def _read(item: CustomObject) -> _WrittenStatus:
    return msgspec.json.decode(item.status, type=_WrittenStatus | None) or _WrittenStatus()
