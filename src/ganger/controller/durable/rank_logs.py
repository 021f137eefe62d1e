"""Logs of ended pods in a durable store: what ranks have written outlives their pods and their nodes.

The log of a pod is copied when it has ended, as its kubelet has it, to
`logs/<namespace>/<job>/<UID of the job>/<pod>.gz`. Its first line is what readers need of the pod. The logs of a job
are deleted with its GangJob, and by retention.
"""

import asyncio
import gzip
import time
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

import msgspec

from ganger.backends.kubernetes.binding import is_over
from ganger.controller.durable.store import Store, StoredFile, StoreError, unpacked
from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_logs import LogUnavailableError
from ganger.kubeapi.objects import CustomObject, Key, ObjectMeta, Pod

FOLDER: Final = "logs"
RETRY_S: Final = 30.0
WORKERS: Final = 4

Pods = Mapping[Key, Pod]
FetchLog = Callable[[Key, str], str]
"""Return the log of a pod with timestamps, since a time; blocks. Raises LogUnavailableError."""


class PodSource(NamedTuple):
    """Live view of the pods; functions that return a GangJob, if it exists, and the log of a pod."""

    pods: Pods
    job_of: Callable[[Key], CustomObject | None]
    fetch: FetchLog


class RankLogs:
    """Copies of the logs of ended pods. Everything but `copies` is called on the event loop.

    Args:
        store: the store.
        source: the pods.
        may_act: returns whether this controller leads.
        failed: called with the error when the store cannot be used.
    """

    def __init__(
        self, store: Store, source: PodSource, may_act: Callable[[], bool], failed: Callable[[StoreError], None]
    ) -> None:
        self._store, self._may_act, self._failed = store, may_act, failed
        self._pods, self._job_of, self._fetch = source
        self._queue: asyncio.Queue[Key | CustomObject] = asyncio.Queue()
        self._usable_at_s = 0.0
        self._seen: set[str] = set()
        """UIDs of ended pods whose log is copied, or will be."""

    async def run(self) -> None:
        """Copy and delete logs until cancelled."""
        for pod in list(self._pods.values()):
            self.pod_changed(None, pod)
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Have the log of a pod copied that has ended."""
        if after is None:
            if before is not None:
                self._seen.discard(before.metadata.uid)
        elif object_names.mark(after) is not None and is_over(after) and after.metadata.uid not in self._seen:
            self._seen.add(after.metadata.uid)
            self._queue.put_nowait(after.metadata.key)

    def job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        """Have the logs of a deleted GangJob deleted."""
        if after is None and before is not None:
            self._queue.put_nowait(before)

    def copies(self, gang: str) -> tuple[dict[Key, Pod], FetchLog]:
        """Return the pods of a job, or of an element, whose logs are copied, and a function that reads these.

        Blocks. Both are empty while the store cannot be used.
        """
        texts, pods = dict[Key, str](), dict[Key, Pod]()
        job = self._job_of(object_names.key_of(gang)) if time.monotonic() >= self._usable_at_s else None
        try:
            for file in self._store.list(_folder(job.metadata)) if job is not None else ():
                pod, text = _decoded(self._store, file)
                if pod is not None:
                    pods[pod.metadata.key], texts[pod.metadata.key] = pod, text
        except StoreError as error:
            self._usable_at_s = time.monotonic() + RETRY_S  # a reader of live logs does not wait for it each time
            self._failed(error)
        return pods, lambda pod, since: "" if since else texts.get(pod, "")

    async def _work(self) -> None:
        while True:
            item = await self._queue.get()
            try:
                if isinstance(item, CustomObject):
                    await asyncio.to_thread(self._delete, item)
                elif (pod := self._pods.get(item)) is not None and self._may_act():
                    await asyncio.to_thread(self._copy, pod)
            except (StoreError, LogUnavailableError) as error:
                if isinstance(error, StoreError):
                    self._failed(error)
                asyncio.get_running_loop().call_later(RETRY_S, self._queue.put_nowait, item)

    def _copy(self, pod: Pod) -> None:
        mark = object_names.mark(pod)
        job = self._job_of(object_names.key_of(mark.gang)) if mark is not None else None
        if job is None:
            return
        name = f"{_folder(job.metadata)}/{pod.metadata.name}.gz"
        if any(file.name == name for file in self._store.list(_folder(job.metadata))):
            return
        about = ObjectMeta(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            uid=pod.metadata.uid,
            labels=pod.metadata.labels,
            annotations=pod.metadata.annotations,
        )
        text = self._fetch(pod.metadata.key, "")
        self._store.put(name, gzip.compress(msgspec.json.encode(about) + b"\n" + text.encode(), mtime=0))

    def _delete(self, job: CustomObject) -> None:
        for file in self._store.list(_folder(job.metadata)):
            self._store.delete(file.name)


def _folder(job: ObjectMeta) -> str:
    return f"{FOLDER}/{job.namespace}/{job.name}/{job.uid}"


def _decoded(store: Store, file: StoredFile) -> tuple[Pod | None, str]:
    """Return the pod and the text of a copy; no pod if it is gone or damaged. Raises StoreError."""
    try:
        about, _, text = unpacked(store, file).partition(b"\n")
        return Pod(metadata=msgspec.json.decode(about, type=ObjectMeta)), text.decode()
    except (ValueError, RecursionError):
        return None, ""


def merged(logs: RankLogs, gang: str, pods: Pods, fetch: FetchLog) -> tuple[Pods, FetchLog]:
    """Return live pods with those of a job whose logs are copied, and a function that reads the logs of both."""
    copies, read_copy = logs.copies(gang)

    def read(pod: Key, since: str) -> str:
        try:
            text = fetch(pod, since) if pod in pods else ""
        except LogUnavailableError:
            if pod not in copies:
                raise
            text = ""  # its node is gone
        return text or (read_copy(pod, since) if pod in copies else "")

    return ChainMap(dict[Key, Pod](), cast("dict[Key, Pod]", pods), copies), read
