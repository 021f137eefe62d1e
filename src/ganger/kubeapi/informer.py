"""A store of one resource that follows the server: what is there, and who is told of each change, once.

Run by the backend, one for each resource. A list begins it; a watch keeps it up to date, and is taken up again where it
broke. Where the server does not know that place any more, it is listed again, and told is what differs, the objects
that are gone included. A connection that has died without a word is noticed because servers say each minute that
nothing has happened.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Final, Generic, Protocol, TypeVar

from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import pause_s
from ganger.kubeapi.objects import Bookmark, Deleted, Key, Meta
from ganger.kubeapi.request import News
from ganger.kubeapi.resources import EVERYTHING, Resource, Selection

LASTS_S: Final = (300.0, 600.0)
"""Between how many seconds a watch is asked to last: by chance, so that they do not all begin anew at once."""
SILENT_S: Final = 75.0
"""After how long without a word a connection counts as dead: servers mostly send a bookmark about each minute."""
FIRST_PAUSE_S: Final = 0.2
MOST_PAUSE_S: Final = 10.0
_LISTED_AGAIN_AFTER: Final = 3
"""Failures of the server's own in a row, after which the place where we are may be what it cannot bear."""

_log = logging.getLogger(__name__)


class Stored(Protocol):
    """What can be followed."""

    @property
    def metadata(self) -> Meta:
        """Which object it is, and of which version."""


T = TypeVar("T", bound=Stored)
Changed = Callable[[T | None, T | None], None]
"""Told what an object was (None: it is new) and is (None: it is gone). An object that was deleted and made again under
its name is told as gone first. Called on the event loop, when the store has it already; what it raises ends `run`."""


class Informer(Generic[T]):
    """The objects of a resource, as they were at most `lag_s` seconds ago. Nothing is known before `synced` is set."""

    def __init__(self, api: Api, resource: Resource[T], changed: Changed[T], which: Selection = EVERYTHING) -> None:
        self._api = api
        self._resource = resource
        self._which = which
        self._changed = changed
        self._objects: dict[Key, T] = {}
        self._version = 0
        """Up to where everything was told; 0 when that is nowhere."""
        self.heard_s = float("-inf")
        """When the server said something last, by the event loop's clock."""
        self._failures = 0
        self._said = ""
        self.synced = asyncio.Event()
        self._word = asyncio.Event()
        self.trouble: ApiError | None = None
        """Why nothing can be heard at present."""

    @property
    def objects(self) -> Mapping[Key, T]:
        """What there is."""
        return self._objects

    @property
    def lag_s(self) -> float:
        """For how long the server has said nothing; infinite before it has said everything once."""
        return asyncio.get_running_loop().time() - self.heard_s

    async def caught_up(self, namespace: str) -> None:
        """Come back when everything has been told that had happened in a namespace before this was asked: at the latest
        with the next word of a server that says each minute that nothing has happened. Raises ApiError."""
        version = await self._api.version(self._resource, namespace)
        while self._version < version:
            self._word.clear()
            await self._word.wait()

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            self._failures += 1
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                self._failed(error)
            if self._failures:
                await asyncio.sleep(pause_s(self._failures, FIRST_PAUSE_S, MOST_PAUSE_S))

    async def _list(self) -> None:
        version, listed = 0, dict[Key, T]()
        async with aclosing(self._api.pages(self._resource, self._which)) as pages:
            async for page in pages:
                listed.update((each.metadata.key, each) for each in page.items or ())
                version = int(page.metadata.resource_version)
        for key in [key for key in self._objects if key not in listed]:
            self._drop(key)
        for key, found in listed.items():
            self._put(key, found)
        self._version = version
        self._heard()
        self.synced.set()

    async def _watch(self) -> None:
        watch = self._api.watch(
            self._resource, self._which, str(self._version), lasts_s=random.uniform(*LASTS_S), silent_s=SILENT_S
        )
        async with aclosing(watch) as told:
            await anext(told)
            # Of a resource that is quiet, servers may say nothing: that they take the question again is news enough.
            self._heard()
            async for news in told:
                self._take(news)
                self._heard()
                # Not so before: a server whose watches break at once would be asked for one after the other.
                self._failures, self._said = 0, ""

    def _take(self, news: News[T]) -> None:
        version = int(news.object.metadata.resource_version)
        if isinstance(news, Bookmark):
            if version < self._version:
                # Its data are older than what it has told: they were put back from a copy.
                raise ApiError(f"watch {self._resource.plural}", HTTPStatus.GONE, "Expired", "versions went backwards")
        elif version <= self._version:
            return  # told before: within one resource, events come in the order of their versions
        elif isinstance(news, Deleted):
            self._drop(news.object.metadata.key)
        else:
            self._put(news.object.metadata.key, news.object)
        self._version = version

    def _put(self, key: Key, found: T) -> None:
        known = self._objects.get(key)
        if known is not None and known.metadata.uid != found.metadata.uid:
            self._drop(key)
            known = None
        if known is None or known.metadata.resource_version != found.metadata.resource_version:
            self._objects[key] = found
            self._changed(known, found)

    def _drop(self, key: Key) -> None:
        if (known := self._objects.pop(key, None)) is not None:
            self._changed(known, None)

    def _heard(self) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        self.trouble = None
        self._word.set()

    def _failed(self, error: ApiError) -> None:
        self._failures = max(self._failures, 1)
        if error.expired:
            self._version = 0
            return  # nothing is wrong: it has only been away for long
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self._failures >= _LISTED_AGAIN_AFTER:
            self._version = 0
        self.trouble = error
        # That a connection breaks, and the next one does not, is how connections are.
        if self._failures > 1 and self._said != (said := str(error)):
            self._said = said
            remedy = error.remedy
            if error.missing and error.setup:
                remedy = f"the cluster lacks that definition: `{error.setup}` makes it"
            whole = f"{said}; {remedy}" if remedy else said
            _log.warning("%s; trying again until it works, which is not said each time", whole)
