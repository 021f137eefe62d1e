"""The ConfigMaps with the code of jobs: put where pods find them, removed when no job has used one for an hour.

Run by `controller.assembly`, on the event loop. People bring code too (`own_code`); it is named by the GangJobs that
use it. What is known to be there is noted in a ConfigMap of the controller's own namespace, so that the next controller
finds what nobody uses any more, though it may list nobody's ConfigMaps. Of a job that came while its code was removed
the watch of GangJobs tells later: until it is past the removal, what was removed is held, and put back if need be."""

import asyncio
import base64
import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.code_archive import named
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.jobs.gang_job_reconciler import OVER
from ganger.engine.eventlog.job_checkpoint import is_piece
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ConfigMap, Custom, Key, Object
from ganger.kubeapi.request import Place
from ganger.kubeapi.resources import CONFIG_MAPS

KEPT_S: Final = 3600.0
"""How long code stays that no live job uses: whoever submits the same again need not bring it again."""
LOOK_S: Final = 300.0
"""How often is looked what is used, where there is code at all."""
AGAIN_S: Final = 60.0
AT_ONCE: Final = 32
"""How many are removed together: each is kept in memory, up to 1.2 MiB, until it is certain that no job wants it."""
NOTE: Final = "ganger-code"
_KNOWN: Final = "known"
_MOST_NOTED: Final = 8_000
"""Names of ConfigMaps that fit into one."""
_NAME: Final = re.compile(re.escape(object_names.code_name("")) + "[0-9a-f]{16}")

_log = logging.getLogger(__name__)


class Archives:
    """All code in a cluster. `namespace` is the controller's own; `may_act`: whether it leads."""

    def __init__(self, api: Api, namespace: str, backend: KubernetesBackend, may_act: Callable[[], bool]) -> None:
        self._api, self._backend, self._may_act = api, backend, may_act
        self._note = Place(CONFIG_MAPS, namespace, NOTE)
        self._noted: str | None = None
        """What the note says; None before it was read."""
        self._known: dict[Key, float] = {}
        """What is there as far as is known, and when it was last seen to be used."""
        self._of: dict[Key, Key] = {}
        """The code of GangJobs that do not name it themselves, because it was fetched for them."""
        self._alone: frozenset[str] = frozenset()
        self._there: set[Key] = set()
        """What need not be put again."""
        self._held: dict[Key, ConfigMap] = {}
        """What was removed, or is being removed, and may have to be put back."""
        self._putting = asyncio.Lock()
        self._news = asyncio.Event()
        self._said = ""

    def know(self, live: Mapping[Key, str], alone: Collection[str]) -> None:
        """The hash of their code that these live jobs have; in the namespaces that are to be left `alone`, nobody knows
        what is used."""
        self._alone = frozenset(alone)
        for job, digest in live.items():
            self._use(job, digest)

    def heard(self, before: Custom | None, now: Custom | None) -> None:
        """A GangJob came, changed, or is gone. What one names that came is used from now on, however short it stays."""
        if before is None and now is not None and (digest := named(now.metadata)) and not _is_over(now):
            self._see(_key(now.metadata.key, digest))

    async def put(self, job: Key, digest: str, archive: bytes) -> None:
        """Have the code of a job there, by its hash. Raises ApiError."""
        key = self._use(job, digest)
        async with self._putting:
            if key not in self._there:
                await self._api.apply(
                    CONFIG_MAPS, _body(key, {object_names.ARCHIVE: base64.b64encode(archive).decode()})
                )
                self._there.add(key)

    async def run(self) -> None:
        """Remove what nobody uses any more, until cancelled."""
        while True:
            self._news.clear()
            try:
                await self._turn()
            except ApiError as error:
                self._failed(error)
                wait_s: float | None = AGAIN_S
            else:
                self._said = ""
                wait_s = LOOK_S if self._known else None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)

    # -- parts --------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        if self._noted is None:
            await self._read()
        used = self._used()
        now_s = asyncio.get_running_loop().time()
        self._of = {job: key for job, key in self._of.items() if key in used}
        self._known |= dict.fromkeys(used, now_s)
        await self._write()
        if not self._held:
            left = (each for each in self._known.items() if now_s >= each[1] + KEPT_S)
            for key, used_s in [each for each in left if each[0].namespace not in self._alone][:AT_ONCE]:
                async with self._putting:
                    await self._remove(key, used_s)
        if self._held:
            await self._settle()
            self._news.set()  # there may be more of them

    async def _remove(self, key: Key, used_s: float) -> None:
        """Take one away that was last used then, if it is as it was; what it was is held."""
        if not self._may_act():
            return
        try:
            # A patch that changes nothing says what there is: no right to read ConfigMaps is needed.
            found = await self._api.merge(Place(CONFIG_MAPS, *key), {})
        except ApiError as error:
            if not error.missing:
                raise
            self._gone(key)
            return
        if self._known[key] != used_s:
            return  # a job has come
        self._held[key] = found
        try:
            await self._api.delete(CONFIG_MAPS, found.metadata, unchanged=True)
        except ApiError as error:
            if not error.conflict:
                raise
            del self._held[key]  # it is another by now, or somebody else's business
            self._see(key)
        else:
            self._gone(key)

    async def _settle(self) -> None:
        """Put back what is used after all."""
        for namespace in {key.namespace for key in self._held}:
            await self._backend.caught_up(namespace)
        used = self._used()
        for key, held in list(self._held.items()):
            if key in used:
                try:
                    await self._api.create(CONFIG_MAPS, _body(key, held.binary_data))
                except ApiError as error:
                    if not error.conflict:
                        raise  # if it is there, whoever submits the job has brought it
                self._see(key)
            del self._held[key]
        await self._write()

    def _used(self) -> set[Key]:
        """Of what is known, what live jobs use, and those that are yet to be taken."""
        asked, found = self._known.keys() | self._held.keys(), set[Key]()
        for job in self._backend.jobs if asked else ():
            digest = named(job.metadata)
            key = _key(job.metadata.key, digest) if digest else self._of.get(job.metadata.key)
            if key in asked and key not in found and not _is_over(job):
                found.add(key)
        return found

    def _use(self, job: Key, digest: str) -> Key:
        key = self._of[job] = _key(job, digest)
        self._see(key)
        return key

    def _see(self, key: Key) -> None:
        if key not in self._known:
            self._news.set()
        self._known[key] = asyncio.get_running_loop().time()

    def _gone(self, key: Key) -> None:
        self._known.pop(key, None)
        self._there.discard(key)

    # -- the note -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            self._noted = (await self._api.merge(self._note, {})).data.get(_KNOWN, "")
        except ApiError as error:
            if not error.missing:
                raise
            self._noted = ""
        for line in self._noted.splitlines():
            namespace, _, name = line.partition("/")
            if _NAME.fullmatch(name):
                self._known.setdefault(Key(namespace, name), asyncio.get_running_loop().time())

    async def _write(self) -> None:
        text = "\n".join(sorted("/".join(key) for key in list(self._known)[-_MOST_NOTED:]))
        if text != self._noted:
            await self._api.apply(CONFIG_MAPS, _object(Key(self._note.namespace, NOTE), data={_KNOWN: text}))
            self._noted = text

    def _failed(self, error: ApiError) -> None:
        if self._said != (said := str(error)):
            self._said = said
            remedy = f"; {error.remedy}" if error.remedy else ""
            _log.warning("code that no job uses any more is not removed: %s%s", said, remedy)


def _is_over(job: Custom) -> bool:
    """Whether it has ended. A phase may have been written by hand: the record says whether the job lives."""
    told: dict[str, Any] = msgspec.json.decode(job.status) or {}
    return told.get("phase") in OVER and not is_piece(told.get("record") or "")


def _key(job: Key, digest: str) -> Key:
    return Key(job.namespace, object_names.code_name(digest))


def _body(key: Key, content: Mapping[str, str]) -> Object:
    return _object(key, immutable=True, binaryData=content)


def _object(key: Key, **content: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": key._asdict(), **content}
