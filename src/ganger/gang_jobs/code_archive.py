"""A job's code as one archive, named by its hash: in a ConfigMap if it fits, else in the controller's store."""

import re
from typing import Final

from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import ObjectMeta
from ganger.model.units import format_bytes

MAX_BYTES: Final = 900 * 1024
"""Maximum that fits into one object, whose limit is 1 MiB."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
CODE_ALTERNATIVES: Final = "put it into the image, or on a volume, and leave code: out"


def check_size(archive: bytes, remedy: str = "") -> None:
    """Raise RequestError (code_too_large) if an archive does not fit into one object.

    `remedy` says how to make it smaller.
    """
    if len(archive) > MAX_BYTES:
        size, limit = format_bytes(len(archive)), format_bytes(MAX_BYTES)
        detail = f"code: has {size} when packed; the limit is {limit}"
        next_step = f"{remedy}; or {CODE_ALTERNATIVES}" if remedy else CODE_ALTERNATIVES
        raise RequestError("code_too_large", detail, next_step)


def code_digest(metadata: ObjectMeta) -> str | None:
    """Return the SHA-256 of the archive that a GangJob's annotation names, if it is one."""
    digest = metadata.annotations.get(object_names.CODE, "")
    return digest if _DIGEST.fullmatch(digest) else None


def is_stored(metadata: ObjectMeta) -> bool:
    """Return whether the archive of a GangJob is in the controller's durable store, and not in a ConfigMap."""
    return metadata.annotations.get(object_names.CODE_LOCATION) == object_names.IN_STORE
