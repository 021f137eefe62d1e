"""Parts of a generation's files, read for a server that shares no disk with the launcher.

Only files that ranks wrote and that describe them: all parts of logs, reports, stacks, exit records. Secrets are masked
in logs.
"""

from __future__ import annotations

import binascii
import os
import re

from ganger.launcher.logs.log_file import parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 256 << 10
NAME = re.compile(r"rank-\d+\.(log|report|stacks|exit)|setup\.log")


def content(directory: str, name: str, start: int) -> dict[str, Any]:
    """Return a piece of the file: its `start`, its `data` in base64, at most MOST_BYTES, and the `end` of the file.

    A negative `start` counts from the end. A file that does not exist is empty. Raises ValueError for any other name.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a file that can be read")
    end, data = 0, b""
    files = _list_parts(os.path.join(directory, name))
    if files:
        begin, size, _ = files[-1]
        end = begin + size
    offset = max(0, end + start) if start < 0 else min(start, end)
    for begin, size, path in files:
        if offset < begin + size:
            offset = max(offset, begin)  # the part before it was removed
            data = _read(path, offset - begin)
            break
    return {"start": offset, "data": binascii.b2a_base64(data, newline=False).decode(), "end": end}


def _list_parts(path: str) -> list[tuple[int, int, str]]:
    """Return (offset, size, path) of each part of a file, in order."""
    files = []
    try:
        for part in parts(path):
            start = part[len(path) + 1 :]
            files.append((int(start) if start else 0, os.stat(part).st_size, part))
    except OSError:  # the file does not exist, or its oldest part was just removed
        pass
    return files


def _read(path: str, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(MOST_BYTES)
    except OSError:
        return b""
