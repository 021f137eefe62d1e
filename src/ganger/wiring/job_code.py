"""The code of a GangJob: brought out of its repository, packed, and put where its pods find it.

Called by `gang_jobs`, on a thread, before the job is submitted. What is packed is named by its hash and never changes;
jobs of a namespace that run the same code share it. A directory of somebody's machine is packed by whoever writes the
GangJob, and named in an annotation: a controller does not see it.
"""

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ganger.backends.kubernetes import object_names
from ganger.engine.submit.git_repository import fetch
from ganger.errors import Refused
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Meta
from ganger.model.job import GitCode, JobSpec, Origin
from ganger.model.units import format_bytes
from ganger.settings import Home

MOST_BYTES: Final = 900 * 1024
"""What fits into one object, whose limit is 1 MiB."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ELSEWHERE: Final = "put it into the image, or on a volume, and leave code: out"

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
            raise Refused("bad_spec", "code: a repository on the controller's own disk is not read", "give its URL")
        found = fetch(spec.code, self._home.git, self._home.code)
        data = packed(self._home.code / found.digest)
        check_size(data)
        digest = hashlib.sha256(data).hexdigest()
        try:
            self._put(about.key, digest, data)
        except ApiError as error:
            raise Refused("store_failed", f"code: {error}", "submit it again", 500) from None
        return replace(origin, git_commit=found.commit, code_hash=digest)


def check_size(archive: bytes, smaller: str = "") -> None:
    """Refused (code_too_large) when it does not fit into one object. smaller: what makes less of it."""
    if len(archive) > MOST_BYTES:
        size, most = format_bytes(len(archive)), format_bytes(MOST_BYTES)
        why = f"code: has {size} when it is packed, and at most {most} of code travel"
        raise Refused("code_too_large", why, f"{smaller}; or {_ELSEWHERE}" if smaller else _ELSEWHERE)


def packed(directory: Path) -> bytes:
    """All that is in a directory: the same for the same content, whenever it was written."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            tar.add(path, str(path.relative_to(directory)), recursive=False, filter=_without_owner)
    return buffer.getvalue()


def named(about: Meta) -> str | None:
    """The SHA-256 of the archive that a GangJob says to have brought along, if it is one."""
    digest = about.annotations.get(object_names.CODE, "")
    return digest if _DIGEST.fullmatch(digest) else None


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _packed_before(path: str, about: Meta) -> str:
    digest = named(about)
    if digest is None:
        why = f"code: {path} is a directory of the machine that the job was written on, which a controller does not see"
        raise Refused("bad_spec", why, f"write code: {{git: URL, ref: BRANCH}}; or {_ELSEWHERE}")
    return digest
