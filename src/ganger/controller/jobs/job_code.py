"""Code of a GangJob: fetched from its repository, packed, and stored for its pods before the job is submitted.

Archives are named by their hash and never change; jobs of a namespace with the same code share one. A directory of the
user's machine is packed by the GangJob's creator and named in an annotation: the controller has no access to it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from ganger.backends.kubernetes.code_archive import CODE_ALTERNATIVES, check_size, code_digest, pack
from ganger.engine.submit.git_repository import fetch
from ganger.errors import RequestError
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, ObjectMeta
from ganger.model.job import GitCode, JobSpec, Origin
from ganger.settings import Home

Put = Callable[[Key, str, bytes], None]
"""Store an archive with that hash for a GangJob. Raises ApiError."""


class JobCode:
    """Fetches the code of jobs. `home` caches repositories and their files."""

    def __init__(self, home: Home, put: Put) -> None:
        self._home, self._put = home, put

    def provide(self, spec: JobSpec, metadata: ObjectMeta, origin: Origin) -> Origin:
        """Store the job's code and return its origin. Raises RequestError."""
        if spec.code is None:
            return origin
        if not isinstance(spec.code, GitCode):
            return replace(origin, code_hash=_uploaded_digest(spec.code, metadata))
        if urlsplit(spec.code.git).scheme == "file":
            raise RequestError(
                "bad_spec", "code: a repository on the controller's own disk is not read", "give its URL"
            )
        checkout = fetch(spec.code, self._home.git, self._home.code)
        archive = pack(self._home.code / checkout.digest)
        check_size(archive)
        digest = hashlib.sha256(archive).hexdigest()
        try:
            self._put(metadata.key, digest, archive)
        except ApiError as error:
            raise RequestError("store_failed", f"code: {error}", "submit it again", 500) from None
        return replace(origin, git_commit=checkout.commit, code_hash=digest)


def _uploaded_digest(path: str, metadata: ObjectMeta) -> str:
    digest = code_digest(metadata)
    if digest is None:
        detail = f"code: {path} is a directory of the user's machine, which a controller cannot access"
        raise RequestError("bad_spec", detail, f"write code: {{git: URL, ref: BRANCH}}; or {CODE_ALTERNATIVES}")
    return digest
