"""Code of a GangJob: fetched from its repository, and stored for its pods before the job is submitted.

Archives are named by their hash and never change; jobs of a namespace with the same code share one. A directory of the
user's machine is packed by the GangJob's creator and named in an annotation: the controller has no access to it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from typing import IO

from ganger.controller.durable.stored_code import StoredCode
from ganger.controller.jobs.git_pods import FetchedCode
from ganger.errors import RequestError
from ganger.gang_jobs.code_archive import CODE_ALTERNATIVES, MAX_BYTES, code_digest
from ganger.gang_jobs.object_names import IN_STORE
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, ObjectMeta
from ganger.model.job import GitCode, JobSpec, Origin

Fetch = Callable[[GitCode, ObjectMeta, int, Callable[[bytes], None]], Awaitable[FetchedCode]]
"""Fetch the code of a GangJob, of at most that size, and write it. Raises RequestError."""
Put = Callable[[Key, str, bytes], Awaitable[None]]
"""Put an archive with that hash into an object for a GangJob. Raises ApiError."""


class JobCode:
    """Provides the code of jobs: in objects, or, if it is too large for one, in the controller's store."""

    def __init__(self, fetch: Fetch, put: Put, store: StoredCode) -> None:
        self._fetch, self._put, self._store = fetch, put, store

    async def provide(self, spec: JobSpec, metadata: ObjectMeta, origin: Origin) -> Origin:
        """Store the job's code and return its origin. Raises RequestError."""
        if spec.code is None:
            return origin
        if not isinstance(spec.code, GitCode):
            return replace(origin, code_hash=_uploaded_digest(spec.code, metadata))
        with closing(await asyncio.to_thread(self._store.new_file)) as file:
            fetched = await self._fetched(spec.code, metadata, file)
            if fetched.size_bytes > MAX_BYTES:
                await asyncio.to_thread(self._store.keep, file, fetched.digest, metadata.namespace)
                self._store.set_fetched(metadata.key, fetched.digest)
            else:
                self._store.set_fetched(metadata.key, None)
                file.seek(0)
                try:
                    await self._put(metadata.key, fetched.digest, file.read())
                except ApiError as error:
                    raise RequestError("store_failed", f"code: {error}", "submit it again", 500) from None
        return replace(origin, git_commit=fetched.commit, code_hash=fetched.digest)

    def location(self, job: Key) -> str | None:
        """Return where the code is that was fetched for a GangJob, for its status; None if in an object."""
        return IN_STORE if job in self._store.fetched else None

    async def _fetched(self, code: GitCode, metadata: ObjectMeta, file: IO[bytes]) -> FetchedCode:
        """Fetch code into a file. Raises RequestError."""
        max_bytes = self._store.max_archive_bytes
        try:
            return await self._fetch(code, metadata, max_bytes, lambda content: self._store.write(file, content))
        except RequestError as error:
            if error.code != "code_too_large" or max_bytes > MAX_BYTES:
                raise
            raise RequestError(
                error.code, error.detail, f"start the controller with --store; or {error.next}"
            ) from None


def _uploaded_digest(path: str, metadata: ObjectMeta) -> str:
    digest = code_digest(metadata)
    if digest is None:
        detail = f"code: {path} is a directory of the user's machine, which a controller cannot access"
        raise RequestError("bad_spec", detail, f"write code: {{git: URL, ref: BRANCH}}; or {CODE_ALTERNATIVES}")
    return digest
