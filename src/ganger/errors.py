"""The one error that every client shows: what was refused, why, and what to type next.

REST turns it into problem+json, the CLI into text and an exit code.
"""

import errno
from pathlib import Path
from typing import Final

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RequestError(Exception):
    """A request that was not carried out; nothing changed.

    code: stable, for programs; one of `error_codes.CODES`.
    detail: what was refused and why.
    next: what to type.
    status: the HTTP status (404 not found, 409 not possible in the present state, 422 not what the interface accepts,
        507 disk full).
    """

    def __init__(self, code: str, detail: str, next: str = "", status: int = 409) -> None:
        """Keep the four parts apart, so that no client has to parse a sentence."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next = next
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        """Return what makes an equal error in another process: pickle would call the class with the message alone."""
        return type(self), (self.code, self.detail, self.next, self.status)


class BrokenStreamError(Exception):
    """A response that has begun cannot be completed: it breaks off, so that its reader does not take it for whole."""


def write_error(path: Path, error: OSError) -> RequestError:
    """Return the error for a path that cannot be written."""
    directory = path if path.is_dir() else path.parent
    disk_full = error.errno in DISK_FULL
    remedy = (
        f"free some space on that disk: df -h {directory}"
        if disk_full
        else f"check its permissions: ls -ld {directory}"
    )
    return RequestError("disk_full", f"cannot write {path}: {error.strerror}", remedy, 507)


KUBERNETES_EXTRA = "pip install 'ganger[kubernetes]'"


def missing_module_message(error: ModuleNotFoundError) -> str:
    """Return the message that names a module of the `kubernetes` extra that is not installed.

    Raise the error itself when the module is one of ganger's own.
    """
    if (error.name or "").partition(".")[0] in ("", "ganger"):
        raise error
    return f"what ganger needs for Kubernetes is not installed: there is no module {error.name}"
