"""Code of a GangJob: fetched from its repository, and stored for its pods before the job is submitted.

Archives are named by their hash and never change; jobs of a namespace with the same code share one. A directory of the
user's machine is packed by the GangJob's creator and named in an annotation: the controller has no access to it.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ganger.controller.jobs.git_pods import FetchedCode
from ganger.errors import RequestError
from ganger.gang_jobs.code_archive import CODE_ALTERNATIVES, check_size, code_digest
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, ObjectMeta
from ganger.model.job import GitCode, JobSpec, Origin

Fetch = Callable[[GitCode, ObjectMeta], Awaitable[FetchedCode]]
"""Fetch the code of a GangJob. Raises RequestError."""
Put = Callable[[Key, str, bytes], Awaitable[None]]
"""Store an archive with that hash for a GangJob. Raises ApiError."""


class JobCode:
    """Provides the code of jobs."""

    def __init__(self, fetch: Fetch, put: Put) -> None:
        self._fetch, self._put = fetch, put

    async def provide(self, spec: JobSpec, metadata: ObjectMeta, origin: Origin) -> Origin:
        """Store the job's code and return its origin. Raises RequestError."""
        if spec.code is None:
            return origin
        if not isinstance(spec.code, GitCode):
            return replace(origin, code_hash=_uploaded_digest(spec.code, metadata))
        fetched = await self._fetch(spec.code, metadata)
        check_size(fetched.archive)
        digest = hashlib.sha256(fetched.archive).hexdigest()
        try:
            await self._put(metadata.key, digest, fetched.archive)
        except ApiError as error:
            raise RequestError("store_failed", f"code: {error}", "submit it again", 500) from None
        return replace(origin, git_commit=fetched.commit, code_hash=digest)


def _uploaded_digest(path: str, metadata: ObjectMeta) -> str:
    digest = code_digest(metadata)
    if digest is None:
        detail = f"code: {path} is a directory of the user's machine, which a controller cannot access"
        raise RequestError("bad_spec", detail, f"write code: {{git: URL, ref: BRANCH}}; or {CODE_ALTERNATIVES}")
    return digest
