"""Listing and verification of the checkpoints in a directory; also used by the launcher for GANGER_RESUME_FROM."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MANIFEST = "ganger-checkpoint.json"
PREFIX = "step-"
PART_PREFIX = "part-"
"""Of what the ranks of one node have saved of a sharded checkpoint, on their node."""
FAILED_ON = "an attempt that resumed from it failed"
EMPTY = "it contains no data"
READ_BYTES = 1 << 20
UNLIMITED = float("inf")


def directory_of(root: str, step: int, prefix: str = PREFIX) -> str:
    """Return the directory of the checkpoint of a step, whether it exists or not."""
    return os.path.join(root, f"{prefix}{step:09d}")


def list_checkpoints(root: str, prefix: str = PREFIX) -> list[tuple[int, str]]:
    """Return (step, directory) of everything named like a checkpoint, newest first; [] without a directory."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    names = [name for name in names if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
    return sorted(((int(name[len(prefix) :]), os.path.join(root, name)) for name in names), reverse=True)


def steps_in(text: str) -> frozenset[int]:
    """Parse the comma-separated steps of GANGER_RESUME_SKIP."""
    return frozenset(int(word) for word in text.split(",") if word.isdecimal())


def is_empty(files: dict[str, dict[str, int]]) -> bool:
    """Return True if no file has any content, so that no attempt could resume from the checkpoint."""
    return not any(file["bytes"] for file in files.values())


def examine(directory: str, step: int, most_bytes: float = UNLIMITED) -> tuple[dict[str, Any], str]:
    """Return the manifest and the flaw of a checkpoint, "" if it is complete.

    Checks that all files exist with the recorded sizes. Also checks their contents, which takes as long as reading
    them, unless together they exceed `most_bytes`.
    """
    import json

    try:
        with open_regular(os.path.join(directory, MANIFEST)) as file:
            manifest = json.load(file)
        if manifest["step"] != step:
            return manifest, f"its {MANIFEST} is of step {manifest['step']}"
        files = {name: (expected["bytes"], expected["crc32"]) for name, expected in manifest["files"].items()}
        if is_empty(manifest["files"]):
            return manifest, EMPTY
        reads = sum(size for size, _ in files.values()) <= most_bytes
        for name, (size, crc32) in files.items():
            flaw = _flaw(os.path.join(directory, name), size, crc32 if reads else None)
            if flaw:
                return manifest, f"{name} {flaw}"
    except OSError as error:
        return {}, f"{os.path.basename(error.filename or MANIFEST)} cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}, f"its {MANIFEST} is broken"
    return manifest, ""


def open_regular(path: str) -> Any:
    """Open a file to be read as bytes; raise OSError if it is a pipe or a device, which could block or never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.fdopen(fd, "rb")


def crc32_of(file: Any) -> int:
    """Return the CRC-32 of the rest of a binary file."""
    import zlib

    value = 0
    while True:
        data = file.read(READ_BYTES)
        if not data:
            return value
        value = zlib.crc32(data, value)


def _flaw(path: str, size: int, crc32: int | None) -> str:
    actual_size = os.stat(path).st_size
    if actual_size != size:
        return f"has {actual_size} bytes instead of {size}"
    if crc32 is not None:
        with open_regular(path) as file:
            if crc32_of(file) != crc32:
                return "has other contents than when it was saved (its CRC-32 differs)"
    return ""
