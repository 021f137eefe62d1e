"""A submission from another machine: its code is packed and sent, and nothing else of this machine's disk is meant.

The server gets neither the caller's directory nor the caller's environment: the paths in both are of this machine.
"""

import tempfile
from pathlib import Path

from ganger.client.client_errors import USAGE, NotFound, client_error
from ganger.client.code_directories import code_directories
from ganger.client.local.follow_requests import Link, Record, at_once
from ganger.client.local.http import SUBMIT_S, Request
from ganger.code.code_snapshot import code_directory, snapshot
from ganger.code.packed_code import pack
from ganger.errors import RequestError


def send_code(link: Link, request: Record) -> Record:
    """Send the directories that `code:` names, and return the request for a server that has them.

    Raise ClientError if a directory does not exist, cannot be read, or is too large.
    """
    codes = {code: _sent(link, code_directory(request["directory"], code)) for code in code_directories(request)}
    return {name: value for name, value in request.items() if name not in ("directory", "environment")} | (
        {"codes": codes} if codes else {}
    )


def _sent(link: Link, directory: Path) -> str:
    """Return the hash of a directory's copy, which the server has afterwards."""
    if not directory.is_dir():
        raise client_error("no_directory", f"code: {directory} is not a directory", f"ls -ld {directory}", USAGE)
    try:
        with tempfile.TemporaryDirectory(prefix="ganger-code-") as store:
            digest = snapshot(directory, Path(store))
            target = f"/code/{digest}"
            if not _has(link, target):
                at_once(link.ask(Request("PUT", target, pack(Path(store) / digest), SUBMIT_S)))
    except RequestError as error:
        raise client_error(error.code, error.detail, error.next, USAGE) from None
    except OSError as error:
        detail = f"{directory} cannot be copied to be sent: {error.strerror or error}"
        raise client_error("disk_full", detail, "df -h ${TMPDIR:-/tmp}", USAGE) from None
    return digest


def _has(link: Link, target: str) -> bool:
    try:
        at_once(link.ask(Request("GET", target)))
    except NotFound:
        return False
    return True
