"""Code of a job as one archive, named by its hash, that fits into a ConfigMap."""

import gzip
import io
import re
import tarfile
from pathlib import Path
from typing import Final

from ganger.backends.kubernetes import object_names
from ganger.errors import RequestError
from ganger.kubeapi.objects import Meta
from ganger.model.units import format_bytes

MOST_BYTES: Final = 900 * 1024
"""What fits into one object, whose limit is 1 MiB."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
ELSEWHERE: Final = "put it into the image, or on a volume, and leave code: out"


def check_size(archive: bytes, smaller: str = "") -> None:
    """Refused (code_too_large) when it does not fit into one object. smaller: what makes less of it."""
    if len(archive) > MOST_BYTES:
        size, most = format_bytes(len(archive)), format_bytes(MOST_BYTES)
        why = f"code: has {size} when it is packed, and at most {most} of code travel"
        raise RequestError("code_too_large", why, f"{smaller}; or {ELSEWHERE}" if smaller else ELSEWHERE)


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
