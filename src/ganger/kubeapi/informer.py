"""Cache of one resource that follows the API server and reports each change once.

A list fills the cache, a watch keeps it up to date and is resumed where it broke. When the server no longer has that
resource version, the resource is listed again and the differences are reported, deletions included. A connection that
died silently is detected because servers send a bookmark about once a minute.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Final, Generic, Protocol, TypeVar

from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s, jittered
from ganger.kubeapi.objects import Bookmark, Deleted, Key, ObjectMeta
from ganger.kubeapi.request import WatchEvent
from ganger.kubeapi.resources import EVERYTHING, ListOptions, Resource

WATCH_DURATION_S: Final = 600.0
"""Longest duration of a watch: half of it or more at random, so that watches do not all restart at once."""
WATCH_TIMEOUT_S: Final = 75.0
"""Silence after which a connection counts as dead: servers send a bookmark about each minute."""
SERVED_CHECK_S: Final = 300.0
"""Interval between requests for a resource that the server does not have, such as ResourceClaims or PodGroups."""
REFRESH_S: Final = 0.1
"""Time for which a refresh waits for the watch before it lists the resource again."""
INITIAL_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 10.0
_RELIST_AFTER_FAILURES: Final = 3
"""Server errors in a row after which the resource version itself may be the cause."""

_log = logging.getLogger(__name__)


class HasMetadata(Protocol):
    """An object that can be followed."""

    @property
    def metadata(self) -> ObjectMeta:
        """Identity and version of the object."""


T = TypeVar("T", bound=HasMetadata)
ChangeHandler = Callable[[T | None, T | None], None]
"""Receives an object before (None: added) and after (None: deleted) a change.

An object that was deleted and created again under its name is reported as deleted first. Called on the event loop,
after the cache is updated; an exception is logged, and later changes are reported from what the cache has.
"""


class Informer(Generic[T]):
    """Cache of a resource's objects, at most `lag_s` seconds old. It is empty before `synced` is set."""

    def __init__(
        self,
        api: ApiClient,
        resource: Resource[T],
        on_change: ChangeHandler[T],
        options: ListOptions = EVERYTHING,
    ) -> None:
        self._api = api
        self.resource = resource
        self._options = options
        self._on_change = on_change
        self._objects: dict[Key, T] = {}
        self._version = 0
        """Resource version up to which changes were reported; 0 if a list is needed."""
        self.last_event_s = float("-inf")
        """Time of the server's last message, by the event loop's clock."""
        self._failures = 0
        self._logged = ""
        self._unhandled: dict[Key, str] = {}
        """The last error of the handler for each object of the cache for which it failed."""
        self._is_followed = False
        self._watching: asyncio.Timeout | None = None
        """The watch that is open; its time ends when the resource is to be listed again."""
        self.synced = asyncio.Event()
        self._message_received = asyncio.Event()
        self.last_error: ApiError | None = None
        """Reason for which the server cannot be followed at present."""

    @property
    def objects(self) -> Mapping[Key, T]:
        """Live view of the cached objects."""
        return self._objects

    @property
    def lag_s(self) -> float:
        """Time since the server's last message; infinite before the first list is complete."""
        return asyncio.get_running_loop().time() - self.last_event_s

    async def wait_until_current(self, namespace: str) -> None:
        """Wait until every change in a namespace from before this call has been reported. Raises ApiError.

        At the latest this is the server's next bookmark, about a minute.
        """
        await self._wait_for(await self._api.list_version(self.resource, namespace))

    async def refresh(self) -> None:
        """Have every change from before this call reported, without waiting for a bookmark.

        A busy resource has an event soon; a quiet one is listed again. Retries until the server responds. A resource
        that is not followed has nothing to report.
        """
        failures, version = 0, None
        while self._is_followed and (version is None or self._version < version):
            try:
                version = version or await self._api.list_version(self.resource, "")
            except ApiError as error:
                failures += 1
                self._failed(error)
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))
                continue
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._wait_for(version)
            except TimeoutError:
                if self._watching is not None:
                    self._watching.reschedule(asyncio.get_running_loop().time())

    async def _wait_for(self, version: int) -> None:
        while self._version < version:
            self._message_received.clear()
            await self._message_received.wait()

    async def run(self) -> None:
        """Follow the resource until cancelled."""
        self._is_followed = True
        while True:
            self._failures += 1
            try:
                if not self._version:
                    await self._list()
                async with asyncio.timeout(None) as self._watching:
                    await self._watch()
            except TimeoutError:
                self._version = self._failures = 0  # a refresh needs a new list
            except ApiError as error:
                self._failed(error)
            finally:
                self._watching = None
            if self._failures:
                await asyncio.sleep(backoff_s(self._failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))

    async def run_where_served(self) -> None:
        """Follow a resource that not every server has until cancelled; check for it from time to time."""
        failures, resource = 0, self.resource
        while True:
            try:
                if resource.plural in await self._api.list_resources(resource.group, resource.version):
                    await self.run()
            except ApiError as error:
                failures += 1
                _log.warning("cannot find out whether the server has %s: %s", resource.plural, error)
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))
            else:
                self.synced.set()
                await asyncio.sleep(SERVED_CHECK_S)

    async def _list(self) -> None:
        version, listed = 0, dict[Key, T]()
        async with aclosing(self._api.pages(self.resource, self._options)) as pages:
            async for page in pages:
                listed.update((item.metadata.key, item) for item in page.items or ())
                version = int(page.metadata.resource_version)
        for key in [key for key in self._objects if key not in listed]:
            self._drop(key)
        for key, item in listed.items():
            self._put(key, item)
        self._version = version
        self._note_message()
        self.synced.set()

    async def _watch(self) -> None:
        watch = self._api.watch(
            self.resource,
            self._options,
            str(self._version),
            timeout_s=jittered(WATCH_DURATION_S),
            read_timeout_s=WATCH_TIMEOUT_S,
        )
        async with aclosing(watch) as events:
            await anext(events)
            # Servers may send nothing about a quiet resource: that they accept the watch again shows that they are
            # there.
            self._note_message()
            async for event in events:
                self._handle(event)
                self._note_message()
                # Not before an event: a server whose watches break at once would get one after the other.
                self._failures, self._logged = 0, ""

    def _handle(self, event: WatchEvent[T]) -> None:
        version = int(event.object.metadata.resource_version)
        if isinstance(event, Bookmark):
            if version < self._version:
                # The server's data were restored from an older backup.
                raise ApiError(f"watch {self.resource.plural}", HTTPStatus.GONE, "Expired", "versions went backwards")
        elif version <= self._version:
            return  # reported before: within one resource, events come in the order of their versions
        elif isinstance(event, Deleted):
            self._drop(event.object.metadata.key)
        else:
            self._put(event.object.metadata.key, event.object)
        self._version = version

    def _put(self, key: Key, current: T) -> None:
        known = self._objects.get(key)
        if known is not None and known.metadata.uid != current.metadata.uid:
            self._drop(key)
            known = None
        if known is None or known.metadata.resource_version != current.metadata.resource_version:
            self._objects[key] = current
            self._report(key, known, current)

    def _drop(self, key: Key) -> None:
        if (known := self._objects.pop(key, None)) is not None:
            self._report(key, known, None)
            self._unhandled.pop(key, None)

    def _report(self, key: Key, before: T | None, after: T | None) -> None:
        """Report a change. A handler that fails for one object must not keep the changes of all others from it."""
        try:
            self._on_change(before, after)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the object
            if self._unhandled.get(key) != (text := repr(error)):
                self._unhandled[key] = text
                name = "/".join(filter(None, key))
                _log.exception(
                    "a change of %s %s could not be handled and is skipped, logged once", self.resource.plural, name
                )

    def _note_message(self) -> None:
        self.last_event_s = asyncio.get_running_loop().time()
        self.last_error = None
        self._message_received.set()

    def _failed(self, error: ApiError) -> None:
        self._failures = max(self._failures, 1)
        if error.expired:
            self._version = 0
            return  # not a fault: the client was away for long
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self._failures >= _RELIST_AFTER_FAILURES:
            self._version = 0
        self.last_error = error
        # A single broken connection is normal and not logged.
        if self._failures > 1 and self._logged != (message := str(error)):
            self._logged = message
            remedy = error.remedy
            if error.missing and error.setup:
                remedy = f"the cluster lacks that definition: `{error.setup}` creates it"
            _log.warning("%s%s; retrying until it works, logged once", message, f"; {remedy}" if remedy else "")
