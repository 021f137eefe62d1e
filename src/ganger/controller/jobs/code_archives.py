"""ConfigMaps with the code of jobs: created for pods, and removed when no job has used one for an hour.

Users upload code too (`upload_code`); the GangJobs that use it name it. Known ConfigMaps are listed in one of the
controller's own namespace, so that the next controller finds unused ones, though it may not list ConfigMaps of other
namespaces. A job that was created while its code was removed is reported later by the watch of GangJobs: until the
watch is past the removal, what was removed is held in memory, and restored if needed.
"""

import asyncio
import base64
import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.jobs.conditions import OVER
from ganger.engine.eventlog.job_checkpoint import is_checkpoint
from ganger.gang_jobs import object_names
from ganger.gang_jobs.code_archive import code_digest, is_stored
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ConfigMap, CustomObject, Key, Object
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import CONFIG_MAPS

KEEP_UNUSED_S: Final = 3600.0
"""Time for which unused code stays: the next job with the same code need not upload it again."""
CHECK_INTERVAL_S: Final = 300.0
"""Interval at which usage is checked, where there is code at all."""
RETRY_S: Final = 60.0
REMOVE_AT_ONCE: Final = 32
"""Number removed together: each is held in memory, up to 1.2 MiB, until it is certain that no job needs it."""
INDEX_NAME: Final = "ganger-code"
_INDEX_KEY: Final = "known"
_MAX_INDEXED: Final = 8_000
"""Number of names that fit into one ConfigMap."""
_NAME: Final = re.compile(re.escape(object_names.code_config_map("")) + "[0-9a-f]{16}")

_log = logging.getLogger(__name__)


class CodeArchives:
    """All code in a cluster. `namespace` is the controller's own; `may_act` returns whether it leads."""

    def __init__(self, api: ApiClient, namespace: str, backend: KubernetesBackend, may_act: Callable[[], bool]) -> None:
        self._api, self._backend, self._may_act = api, backend, may_act
        self._index = ObjectRef(CONFIG_MAPS, namespace, INDEX_NAME)
        self._index_text: str | None = None
        """Content of the index; None before it was read."""
        self._known: dict[Key, float] = {}
        """Known ConfigMaps, and when each was last seen in use."""
        self._code_of_job: dict[Key, Key] = {}
        """Code of GangJobs that do not name it themselves, because it was fetched for them."""
        self._ignored_namespaces: frozenset[str] = frozenset()
        self._created: set[Key] = set()
        """ConfigMaps that need not be created again."""
        self._held: dict[Key, ConfigMap] = {}
        """Archives that were removed, or are being removed, and may have to be restored."""
        self._create_lock = asyncio.Lock()
        self._wakeup = asyncio.Event()
        self._logged = ""

    def restore(self, live: Mapping[Key, str], ignored: Collection[str]) -> None:
        """Restore the code hashes of live jobs. In the `ignored` namespaces it is not known what is used."""
        self._ignored_namespaces = frozenset(ignored)
        for job, digest in live.items():
            self._set_code(job, digest)

    def job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        """Handle a change of a GangJob. The code of a new one is in use from now on, however short it lives."""
        if before is None and after is not None and not is_over(after):
            digest = _object_digest(after)
            if digest is not None:
                self._mark_used(_key(after.metadata.key, digest))

    async def put(self, job: Key, digest: str, archive: bytes) -> None:
        """Create the ConfigMap with a job's code, by its hash. Raises ApiError."""
        key = self._set_code(job, digest)
        async with self._create_lock:
            if key not in self._created:
                await self._api.apply(
                    CONFIG_MAPS, _archive_object(key, {object_names.ARCHIVE: base64.b64encode(archive).decode()})
                )
                self._created.add(key)

    async def run(self) -> None:
        """Remove unused code until cancelled."""
        while True:
            self._wakeup.clear()
            try:
                await self._remove_unused()
            except ApiError as error:
                self._log_once(error)
                wait_s: float | None = RETRY_S
            else:
                self._logged = ""
                wait_s = CHECK_INTERVAL_S if self._known else None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), wait_s)

    # -- removal -------------------------------------------------------------------------------------------------------

    async def _remove_unused(self) -> None:
        if self._index_text is None:
            await self._read_index()
        used = self._used()
        now_s = asyncio.get_running_loop().time()
        self._code_of_job = {job: key for job, key in self._code_of_job.items() if key in used}
        self._known |= dict.fromkeys(used, now_s)
        await self._write_index()
        if not self._held:
            unused = (
                (key, used_s)
                for key, used_s in self._known.items()
                if now_s >= used_s + KEEP_UNUSED_S and key.namespace not in self._ignored_namespaces
            )
            for key, used_s in list(islice(unused, REMOVE_AT_ONCE)):
                async with self._create_lock:
                    await self._remove(key, used_s)
        if self._held:
            await self._restore_used()
            self._wakeup.set()  # there may be more to remove

    async def _remove(self, key: Key, used_s: float) -> None:
        """Delete one that was last used at that time, if it is unchanged; hold its content."""
        if not self._may_act():
            return
        try:
            # An empty patch returns the object: no permission to read ConfigMaps is needed.
            current = await self._api.merge(ObjectRef(CONFIG_MAPS, *key), {})
        except ApiError as error:
            if not error.missing:
                raise
            self._forget(key)
            return
        if self._known[key] != used_s:
            return  # a job uses it again
        self._held[key] = current
        try:
            await self._api.delete(CONFIG_MAPS, current.metadata, unchanged=True)
        except ApiError as error:
            if not error.conflict:
                raise
            del self._held[key]  # it was replaced, or changed by another client
            self._mark_used(key)
        else:
            self._forget(key)

    async def _restore_used(self) -> None:
        """Restore what is in use after all."""
        for namespace in {key.namespace for key in self._held}:
            await self._backend.wait_until_current(namespace)
        used = self._used()
        for key, held in list(self._held.items()):
            if key in used:
                try:
                    await self._api.create(CONFIG_MAPS, _archive_object(key, held.binary_data))
                except ApiError as error:
                    if not error.conflict:
                        raise  # if it exists, the job's creator has uploaded it
                self._mark_used(key)
            del self._held[key]
        await self._write_index()

    def _used(self) -> set[Key]:
        """Return which of the known and held ConfigMaps live jobs use."""
        candidates, used = self._known.keys() | self._held.keys(), set[Key]()
        for job in self._backend.jobs if candidates else ():
            digest = _object_digest(job)
            key = _key(job.metadata.key, digest) if digest else self._code_of_job.get(job.metadata.key)
            if key in candidates and key not in used and not is_over(job):
                used.add(key)
        return used

    def _set_code(self, job: Key, digest: str) -> Key:
        key = self._code_of_job[job] = _key(job, digest)
        self._mark_used(key)
        return key

    def _mark_used(self, key: Key) -> None:
        if key not in self._known:
            self._wakeup.set()
        self._known[key] = asyncio.get_running_loop().time()

    def _forget(self, key: Key) -> None:
        self._known.pop(key, None)
        self._created.discard(key)

    # -- index ---------------------------------------------------------------------------------------------------------

    async def _read_index(self) -> None:
        try:
            self._index_text = (await self._api.merge(self._index, {})).data.get(_INDEX_KEY, "")
        except ApiError as error:
            if not error.missing:
                raise
            self._index_text = ""
        for line in self._index_text.splitlines():
            namespace, _, name = line.partition("/")
            if _NAME.fullmatch(name):
                self._known.setdefault(Key(namespace, name), asyncio.get_running_loop().time())

    async def _write_index(self) -> None:
        text = "\n".join(sorted("/".join(key) for key in list(self._known)[-_MAX_INDEXED:]))
        if text != self._index_text:
            await self._api.apply(
                CONFIG_MAPS, _config_map(Key(self._index.namespace, INDEX_NAME), data={_INDEX_KEY: text})
            )
            self._index_text = text

    def _log_once(self, error: ApiError) -> None:
        if self._logged != (message := str(error)):
            self._logged = message
            remedy = f"; {error.remedy}" if error.remedy else ""
            _log.warning("unused code is not removed: %s%s", message, remedy)


def is_over(job: CustomObject) -> bool:
    """Return whether a GangJob has ended.

    Its phase may have been written by hand: the record decides whether the job is live.
    """
    status: dict[str, Any] = msgspec.json.decode(job.status) or {}
    return status.get("phase") in OVER and not is_checkpoint(status.get("record") or "")


def _object_digest(job: CustomObject) -> str | None:
    """Return the hash of a job's code if it names some that is in a ConfigMap."""
    return None if is_stored(job.metadata) else code_digest(job.metadata)


def _key(job: Key, digest: str) -> Key:
    return Key(job.namespace, object_names.code_config_map(digest))


def _archive_object(key: Key, content: Mapping[str, str]) -> Object:
    return _config_map(key, immutable=True, binaryData=content)


def _config_map(key: Key, **content: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": key._asdict(), **content}
