"""A piece of a file of a generation, for a server that shares no disk with the launcher. Called by `runtime`.

Only what ranks wrote and what is known of them: logs in all their parts, reports, stacks, exit records. In logs the
values of secrets are masked already.
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
    """What is in the file from `start` on, negative: so many bytes before its end: `start` where that begins, `data` in
    base64, at most MOST_BYTES of it, and `end` of the file. A file that is not there is empty. ValueError for a name
    that is none of those."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no file that is read here")
    at, end, data = start, 0, b""
    found = _sizes(os.path.join(directory, name))
    if found:
        begin, size, _ = found[-1]
        end = begin + size
    at = max(0, end + start) if start < 0 else min(start, end)
    for begin, size, path in found:
        if at < begin + size:
            at = max(at, begin)  # what is missing before has gone
            data = _read(path, at - begin)
            break
    return {"start": at, "data": binascii.b2a_base64(data, newline=False).decode(), "end": end}


def _sizes(path: str) -> list[tuple[int, int, str]]:
    """Of each part of a file, in order: where it begins, how long it is, its path."""
    found = []
    try:
        for part in parts(path):
            start = part[len(path) + 1 :]
            found.append((int(start) if start else 0, os.stat(part).st_size, part))
    except OSError:  # it is not there, or the oldest part has gone just now
        pass
    return found


def _read(path: str, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(MOST_BYTES)
    except OSError:
        return b""
