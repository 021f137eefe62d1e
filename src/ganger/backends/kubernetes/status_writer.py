"""What the controller knows of each object of ganger's, written to it: the piece of the state that it is, and what
people read.

Fed by `wiring` after each round; asked by `placing`, which waits until a start is written before a pod of it is made.
The newest that is to be written counts: what came meanwhile is passed over. Nothing is written unless we lead.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ganger.backends.kubernetes.object_names import key_of
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Custom, Fields, Key, Object
from ganger.kubeapi.request import Place
from ganger.kubeapi.resources import Resource
from ganger.kubeapi.workqueue import WorkQueue
from ganger.model.job import array_of

CALM_S: Final = 10.0
"""At least so long between two writes of an object that say nothing new but a sentence."""


class _Told(Fields, frozen=True):
    """Of a status what is read back: which generation starts; of an array, of which elements which: `3:1 7:2`."""

    generation: int = 0
    starts: str = ""

    def says(self, start: "_Start") -> bool:
        """Whether that start is there."""
        index, generation = start
        if index is None:
            return self.generation >= generation
        there = (each.split(":") for each in self.starts.split())
        return any(int(of) == index and int(found) >= generation for of, found in there)


_Start = tuple[int | None, int]
"""Of which element, None of a job that is no array; and which generation."""


class StatusWriter:
    """`objects` are those of the resource that there are. `run` must run for anything to be written."""

    def __init__(
        self, api: Api, resource: Resource[Custom], objects: Mapping[Key, Custom], may_act: Callable[[], bool]
    ) -> None:
        self._api, self._resource, self._objects, self._may_act = api, resource, objects, may_act
        self._wanted: dict[Key, Object] = {}
        self._written: dict[Key, _Told] = {}
        self._owed: dict[Key, int] = {}
        """The first event of which something is not written yet."""
        self._waiting: dict[Key, list[tuple[_Start, asyncio.Future[None]]]] = {}
        self._work = WorkQueue(self._write, workers=64)

    async def run(self) -> None:
        """Write what is wanted, until cancelled."""
        await self._work.run()

    def want(self, key: Key, status: Object, *, soon: bool = True) -> None:
        """Have these fields of an object's status be so; not `soon`: when it is convenient."""
        self._wanted[key] = self._wanted.get(key, {}) | status
        if "seq" in status:
            self._owed.setdefault(key, status["seq"])
        if soon:
            self._work.add(key)
        else:
            self._work.add_later(key, CALM_S)

    async def written(self, gang: str, generation: int) -> None:
        """Come back when the object says that this generation starts. KeyError: there is no such object any more."""
        key, element = key_of(gang), array_of(gang)
        known, start = self._objects.get(key), (element[1] if element else None, generation)
        if known is None:
            raise KeyError(key)
        # Whoever led before us may have written it.
        told = msgspec.json.decode(known.status, type=_Told | None) or _Told()
        if told.says(start) or self._written.get(key, told).says(start):
            return
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((start, answer))
        await answer

    def owes(self, seq: int) -> bool:
        """Whether of an event up to that one something is still to be written."""
        return any(first <= seq for first in self._owed.values())

    async def flush(self) -> None:
        """Write all that is wanted by now. Raises ApiError."""
        for key in list(self._wanted):
            await self._write(key)

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._wanted.pop(key, None)
        self._owed.pop(key, None)
        self._written.pop(key, None)
        for _, answer in self._waiting.pop(key, []):
            if not answer.done():
                answer.set_exception(KeyError(key))

    async def _write(self, key: Key) -> None:
        """Write the newest. Raises ApiError when it is to be tried again."""
        wanted = self._wanted.get(key)
        known = self._objects.get(key)
        if wanted is None or not self._may_act():
            return
        if known is None:
            self.forget(key)
            return
        place = Place(self._resource, key.namespace, key.name, "status")
        # The uid keeps a status from an object that was made again under its name.
        body = {"metadata": {"uid": known.metadata.uid}, "status": wanted}
        try:
            await self._api.merge(place, body)
        except ApiError as error:
            if error.missing or error.conflict:
                self.forget(key)
                return
            raise
        if self._wanted.get(key) is wanted:
            del self._wanted[key]
            self._owed.pop(key, None)
        elif key in self._owed and "seq" in wanted:
            self._owed[key] = wanted["seq"] + 1
        before = self._written.get(key, _Told())
        number, starts = max(before.generation, int(wanted.get("generation") or 0)), wanted.get("starts")
        self._written[key] = now = _Told(number, before.starts if starts is None else starts)
        left = []
        for start, answer in self._waiting.pop(key, []):
            if now.says(start) and not answer.done():
                answer.set_result(None)
            else:
                left.append((start, answer))
        if left:
            self._waiting[key] = left
