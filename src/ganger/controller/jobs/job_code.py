"""The code of a GangJob: brought out of its repository, packed, and put where its pods find it.

Called by `gang_jobs`, on a thread, before the job is submitted. What is packed is named by its hash and never changes;
jobs of a namespace that run the same code share it. A directory of somebody's machine is packed by whoever writes the
GangJob, and named in an annotation: a controller does not see it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from ganger.backends.kubernetes.code_archive import ELSEWHERE, check_size, named, packed
from ganger.engine.submit.git_repository import fetch
from ganger.errors import RequestError
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Meta
from ganger.model.job import GitCode, JobSpec, Origin
from ganger.settings import Home

Put = Callable[[Key, str, bytes], None]
"""Has an archive of that hash there for a GangJob. Raises ApiError."""


class JobCode:
    """`home` keeps repositories and their files."""

    def __init__(self, home: Home, put: Put) -> None:
        self._home, self._put = home, put

    def brought(self, spec: JobSpec, about: Meta, origin: Origin) -> Origin:
        """Where the job comes from, when its code is where its pods find it. Refused says why it is not."""
        if spec.code is None:
            return origin
        if not isinstance(spec.code, GitCode):
            return replace(origin, code_hash=_packed_before(spec.code, about))
        if urlsplit(spec.code.git).scheme == "file":
            raise RequestError(
                "bad_spec", "code: a repository on the controller's own disk is not read", "give its URL"
            )
        found = fetch(spec.code, self._home.git, self._home.code)
        data = packed(self._home.code / found.digest)
        check_size(data)
        digest = hashlib.sha256(data).hexdigest()
        try:
            self._put(about.key, digest, data)
        except ApiError as error:
            raise RequestError("store_failed", f"code: {error}", "submit it again", 500) from None
        return replace(origin, git_commit=found.commit, code_hash=digest)


def _packed_before(path: str, about: Meta) -> str:
    digest = named(about)
    if digest is None:
        why = f"code: {path} is a directory of the machine that the job was written on, which a controller does not see"
        raise RequestError("bad_spec", why, f"write code: {{git: URL, ref: BRANCH}}; or {ELSEWHERE}")
    return digest
