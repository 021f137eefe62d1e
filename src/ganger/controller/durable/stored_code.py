"""Code of jobs in the durable store: archives that do not fit into an object.

Users send them to the controller, which verifies the hash, or it fetches them from the repository of a job; launchers
receive them from it (`code_pieces`). A GangJob names in its annotations what was sent for it; the hash of what was
fetched for it is in its record, and `codeLocation` in its status says that it is here.

An archive belongs to a namespace: a hash, which many may read, does not give access to the code of another namespace.
What no job has used for an hour is removed, and earlier where room is needed, the least recently used first. A
namespace may have a quarter of all; the last quarter takes the first archive of a namespace alone, so that a few
namespaces with much code in use keep no other from running jobs.
"""

import asyncio
import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Final

import msgspec

from ganger.code.packed_code import MAX_ARCHIVE_BYTES
from ganger.controller.durable.open_archives import OpenArchives
from ganger.controller.durable.store import Store, StoredFile, StoreError
from ganger.controller.jobs.code_archives import CHECK_INTERVAL_S, KEEP_UNUSED_S, is_over
from ganger.engine.submit.received_code import ReceivedCode
from ganger.errors import RequestError, write_error
from ganger.gang_jobs import object_names
from ganger.gang_jobs.code_archive import CODE_ALTERNATIVES, MAX_BYTES, code_digest, is_stored
from ganger.kubeapi.objects import CustomObject, Key
from ganger.launcher_server.code_pieces import CodePiece, NoCodeError

FOLDER: Final = "code"
MAX_STORED_BYTES: Final = 16 << 30
"""Size of all archives together: every user who may query the controller may send some."""
MAX_OF_NAMESPACE_BYTES: Final = MAX_STORED_BYTES // 4
"""Size of the archives of one namespace."""
MAX_OF_SHARED_BYTES: Final = MAX_STORED_BYTES - MAX_OF_NAMESPACE_BYTES
"""Size up to which a namespace that has code in use may add more."""
EXPECTED_S: Final = 600.0
"""Time for which an archive stays, even where room is needed: the job that it was sent for is about to name it."""


class StoredCode(ReceivedCode):
    """The archives in a store.

    Args:
        folder: directory for archives on their way, and for those that launchers are receiving.
        store: the store; None without one.
        job_of: returns a GangJob, if it exists.
        failed: called with the error when the store cannot be used; from any thread.
    """

    def __init__(
        self,
        folder: Path,
        store: Store | None,
        job_of: Callable[[Key], CustomObject | None],
        failed: Callable[[StoreError], None],
    ) -> None:
        super().__init__(folder)
        self._folder, self._archives, self._job_of, self._failed = folder, store, job_of, failed
        self._upload_lock, self._read_lock = threading.Lock(), threading.Lock()
        """Held while a whole archive may be in memory, on its way to the store or from it."""
        self._removal_lock = threading.Lock()
        self._open = OpenArchives(folder)
        self._used_s = dict[str, float]()
        """Time at which each archive was last seen in use, or first seen at all."""
        self._used_by = dict[Key, str]()
        """Archives of live jobs; changed on the event loop alone."""
        self._users = dict[str, set[Key]]()
        """Live jobs by archive."""
        self.fetched = dict[Key, str]()
        """Hashes of archives that were fetched for jobs that have not ended."""

    @property
    def max_archive_bytes(self) -> int:
        """Maximum size of an archive: without a store, what fits into an object."""
        return MAX_BYTES if self._archives is None else MAX_ARCHIVE_BYTES

    def restore(self, live: Mapping[Key, str]) -> dict[Key, str]:
        """Restore what was fetched for live jobs, from their code hashes; return the hashes of the others."""
        others = dict[Key, str]()
        for key, digest in live.items():
            job = self._job_of(key)
            status = (msgspec.json.decode(job.status) or {}) if job is not None else {}
            if status.get(object_names.CODE_LOCATION_FIELD) == object_names.IN_STORE:
                self.set_fetched(key, digest)
            else:
                others[key] = digest
        return others

    def set_fetched(self, job: Key, digest: str | None) -> None:
        """Note which archive was fetched for a GangJob; None if that is in an object."""
        if digest is None:
            self.fetched.pop(job, None)
        else:
            self.fetched[job] = digest
            self._set_used(job, _name(job.namespace, digest))

    def job_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        """Handle a GangJob that was added, changed or deleted."""
        job = after or before
        if job is None:
            return
        key = job.metadata.key
        if after is None or (not is_stored(after.metadata) and key not in self.fetched) or is_over(after):
            self.fetched.pop(key, None)
            self._set_used(key, None)
        else:
            digest = self._digest_of(after)
            self._set_used(key, _name(key.namespace, digest) if digest is not None else None)

    def _set_used(self, job: Key, name: str | None) -> None:
        """Note which archive a job uses; None once it uses none."""
        before = self._used_by.pop(job, None)
        if before is not None and before != name:
            self._used_s[before] = time.monotonic()
            self._users[before].discard(job)
            if not self._users[before]:
                del self._users[before]
        if name is not None:
            self._used_by[job] = name
            self._users.setdefault(name, set()).add(job)

    def _digest_of(self, job: CustomObject) -> str | None:
        """Return the hash of a job's archive in the store; None without one."""
        return code_digest(job.metadata) if is_stored(job.metadata) else self.fetched.get(job.metadata.key)

    def has(self, digest: str, namespace: str) -> bool:
        """Return whether a namespace has this archive, which then counts as used now. Raises RequestError."""
        return self._is_there(_name(namespace, digest))

    def keep(self, file: IO[bytes], digest: str, namespace: str) -> None:
        """Store an archive for a namespace, whose hash has to be `digest`. Raises RequestError."""
        store, name = self._needed_store(), _name(namespace, digest)
        try:
            with self._upload_lock:
                file.seek(0)
                content = file.read()
                if (actual := hashlib.sha256(content).hexdigest()) != digest:
                    message = f"the archive of the code has other content than its name says: {actual}"
                    raise RequestError("bad_archive", message, "submit the job again")
                self._make_room(store, name, len(content))
                self._used_s[name] = time.monotonic()
                store.put(name, content)
        except OSError as error:
            raise write_error(self._folder, error) from None
        except StoreError as error:
            raise self._unusable(error) from None

    def read(self, gang: str, start: int, max_bytes: int) -> CodePiece | None:
        """Return part of the code of a gang; None while the store cannot be used, or too much other code is in use.

        Raises NoCodeError.


        The launcher verifies it by the hash that the job was submitted with.
        """
        key = object_names.key_of(gang)
        job = self._job_of(key)
        digest = self._digest_of(job) if job is not None else None
        if digest is None:
            raise NoCodeError(f"the GangJob {key.name} of namespace {key.namespace} names no code in the store")
        try:
            with self._read_lock:
                file = self._opened(_name(key.namespace, digest))
                if file is None:
                    return None
                size_bytes = file.seek(0, 2)
                file.seek(min(start, size_bytes))
                return CodePiece(file.read(max_bytes), size_bytes)
        except StoreError as error:
            self._failed(error)
        except OSError as error:
            self._failed(StoreError(f"{self._folder}: {error.strerror}", f"df -h {self._folder}"))
        return None

    def close(self) -> None:
        """Delete the copies on the controller's disk."""
        with self._read_lock:
            self._open.close()

    async def run(self, may_act: Callable[[], bool]) -> None:
        """Remove unused archives until cancelled."""
        while self._archives is not None:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if may_act():
                try:
                    await asyncio.to_thread(self._remove_unused, self._archives)
                except StoreError as error:
                    self._failed(error)

    def _remove_unused(self, store: Store) -> None:
        now_s = time.monotonic()
        for name in [file.name for file in store.list(FOLDER)]:
            if name in self._users:
                self._used_s[name] = now_s
            with self._removal_lock:  # or a user would be answered that it is there
                if now_s >= self._used_s.setdefault(name, now_s) + KEEP_UNUSED_S:
                    store.delete(name)
                    del self._used_s[name]

    def _is_there(self, name: str) -> bool:
        store = self._needed_store()
        with self._removal_lock:
            try:
                is_there = any(file.name == name for file in store.list(name.rpartition("/")[0]))
            except StoreError as error:
                raise self._unusable(error) from None
            if is_there:
                self._used_s[name] = time.monotonic()
        return is_there

    def _make_room(self, store: Store, name: str, size_bytes: int) -> None:
        """Remove what no live job uses, as far as an archive needs the room. Raises RequestError and StoreError.

        Nothing is removed where that would not be enough.
        """
        folder = name.rpartition("/")[0]
        namespace, size = folder.rpartition("/")[2], f"{size_bytes >> 20} MiB"
        files = [file for file in store.list(FOLDER) if file.name != name]
        of_namespace = [file for file in files if file.name.startswith(f"{folder}/")]
        removed, missing_bytes = self._remove_least_recent(store, of_namespace, MAX_OF_NAMESPACE_BYTES - size_bytes)
        if missing_bytes > 0:
            message = (
                f"the namespace {namespace} has no room for {size} of code in the controller's store: its limit is "
                f"{MAX_OF_NAMESPACE_BYTES >> 30} GiB, and its jobs that have not ended use the rest"
            )
            raise _full(message, "jobs of the namespace")
        in_use = [file for file in files if self._is_needed(file.name)]
        is_first = not any(file in in_use for file in of_namespace)
        if not is_first and sum(file.size_bytes for file in in_use) + size_bytes > MAX_OF_SHARED_BYTES:
            message = (
                f"the controller's store has no room for {size} of code: what is left of "
                f"{MAX_STORED_BYTES >> 30} GiB is for namespaces that have none there, and {namespace} has some"
            )
            raise _full(message, "other jobs")
        left = [file for file in files if file.name not in removed]
        if self._remove_least_recent(store, left, MAX_STORED_BYTES - size_bytes)[1] > 0:
            limit = f"the limit of all jobs together is {MAX_STORED_BYTES >> 30} GiB"
            raise _full(f"the controller's store has no room for {size} of code: {limit}", "other jobs")

    def _remove_least_recent(self, store: Store, files: list[StoredFile], max_bytes: int) -> tuple[set[str], int]:
        """Remove archives until the others have at most `max_bytes`. Raises StoreError.

        Return the names of those removed, and how many bytes there are too many.
        """
        removed = set[str]()
        excess_bytes = sum(file.size_bytes for file in files) - max_bytes
        removable = [file for file in files if not self._is_needed(file.name)]
        if excess_bytes > sum(file.size_bytes for file in removable):
            return removed, excess_bytes
        for file in sorted(removable, key=lambda file: (self._used_s.get(file.name, -math.inf), file.written_ms)):
            if excess_bytes <= 0:
                break
            with self._removal_lock:  # or a user would be answered that it is there
                if not self._is_needed(file.name):
                    store.delete(file.name)
                    self._used_s.pop(file.name, None)
                    removed.add(file.name)
                    excess_bytes -= file.size_bytes
        return removed, excess_bytes

    def _is_needed(self, name: str) -> bool:
        """Return whether a live job uses an archive, or one is about to."""
        return name in self._users or time.monotonic() < self._used_s.get(name, -math.inf) + EXPECTED_S

    def _opened(self, name: str) -> IO[bytes] | None:
        """Return an archive on the disk; None without room. Raises NoCodeError, StoreError and OSError."""
        file = self._open.get(name)
        if file is None and self._open.make_room():
            file = self._open.add(name, self._content(name))
        return file

    def _content(self, name: str) -> bytes:
        digest = name.rpartition("/")[2].partition(".")[0]
        if self._archives is None:
            raise NoCodeError("the controller has no durable store")
        sizes = {file.name: file.size_bytes for file in self._archives.list(name.rpartition("/")[0])}
        content = self._archives.get(name) if sizes.get(name, MAX_ARCHIVE_BYTES + 1) <= MAX_ARCHIVE_BYTES else None
        if content is None or hashlib.sha256(content).hexdigest() != digest:
            raise NoCodeError(f"{name} is not in the store, or is damaged; submit the job again")
        return content

    def _needed_store(self) -> Store:
        if self._archives is None:
            detail = "code: it is too large for an object, and the controller has no durable store for it"
            next_step = f"leave files out: .gangerignore; or start the controller with --store; or {CODE_ALTERNATIVES}"
            raise RequestError("code_too_large", detail, next_step)
        return self._archives

    def _unusable(self, error: StoreError) -> RequestError:
        self._failed(error)
        return RequestError("store_failed", f"code: the controller's store cannot be used: {error}", error.next, 500)


def _name(namespace: str, digest: str) -> str:
    return f"{FOLDER}/{namespace}/{digest}.tar.gz"


def _full(message: str, jobs: str) -> RequestError:
    next_step = f"submit it again when {jobs} have ended, or in {EXPECTED_S / 60:.0f} minutes; or {CODE_ALTERNATIVES}"
    return RequestError("code_store_full", message, next_step, 507)
