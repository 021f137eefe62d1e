"""The one error every face shows: what was refused, why, and what to type next.

Raised by `engine.loop`, `engine.service` and `spec`; REST turns it into problem+json, the CLI into text and an
exit code.
"""

import errno
from pathlib import Path
from typing import Final

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RequestError(Exception):
    """A request that was not carried out; nothing changed.

    code: stable, for programs, one of `codes.CODES`; detail: what and why; next: what to type; status: HTTP's
    (404 not found, 409 what cannot be done as things are, 422 not what the interface takes, 507 no room on the disk).
    """

    def __init__(self, code: str, detail: str, next: str = "", status: int = 409) -> None:
        """Keep the four parts apart, so that no face has to parse a sentence."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next = next
        self.status = status


def unwritable(path: Path, error: OSError) -> RequestError:
    """What a disk does not take."""
    directory = path if path.is_dir() else path.parent
    is_full = error.errno in _FULL
    remedy = f"free some space on that disk: df -h {directory}" if is_full else f"see who may write: ls -ld {directory}"
    return RequestError("no_room", f"cannot write {path}: {error.strerror}", remedy, 507)


KUBERNETES_EXTRA = "pip install 'ganger[kubernetes]'"


def missing_module(error: ModuleNotFoundError) -> str:
    """Return the sentence that names a module of the `kubernetes` extra that is not installed.

    Raises the error itself when the module is one of ganger's own.
    """
    if (error.name or "").partition(".")[0] in ("", "ganger"):
        raise error
    return f"what ganger needs for Kubernetes is not installed: there is no module {error.name}"
