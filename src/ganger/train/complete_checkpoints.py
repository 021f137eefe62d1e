"""Which checkpoints a directory has, and whether one is whole. Used by `checkpoints`, `drafts` and `retention`, and by
the launcher for GANGER_RESUME_FROM.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MANIFEST = "ganger-checkpoint.json"
PREFIX = "step-"
FAILED_ON = "an attempt that began from it failed"
EMPTY = "it has no file with anything in it"
READ_BYTES = 1 << 20
UNLIMITED = float("inf")


def directory_of(root: str, step: int) -> str:
    """Where the checkpoint of a step is, or would be."""
    return os.path.join(root, f"{PREFIX}{step:09d}")


def found_in(root: str) -> list[tuple[int, str]]:
    """(step, directory) of what has the name of a checkpoint, newest first; nothing where there is no directory."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    names = [name for name in names if name.startswith(PREFIX) and name[len(PREFIX) :].isdecimal()]
    return sorted(((int(name[len(PREFIX) :]), os.path.join(root, name)) for name in names), reverse=True)


def steps_in(text: str) -> frozenset[int]:
    """The steps that GANGER_RESUME_SKIP names, separated by commas."""
    return frozenset(int(word) for word in text.split(",") if word.isdecimal())


def is_empty(files: dict[str, dict[str, int]]) -> bool:
    """Tell a checkpoint that nothing was written into: nothing could go on from it."""
    return not any(found["bytes"] for found in files.values())


def examine(directory: str, step: int, most_bytes: float = UNLIMITED) -> tuple[dict[str, Any], str]:
    """The manifest, and what is wrong: "" when the checkpoint is whole. Files are there, with their sizes; and with
    their contents, which takes as long as to read them, unless together they have more than `most_bytes`."""
    import json

    try:
        with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
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
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}, f"its {MANIFEST} is broken"
    return manifest, ""


def crc32_of(file: Any) -> int:
    """Of what is left to read of a binary file."""
    import zlib

    value = 0
    while True:
        data = file.read(READ_BYTES)
        if not data:
            return value
        value = zlib.crc32(data, value)


def _flaw(path: str, size: int, crc32: int | None) -> str:
    found = os.stat(path).st_size
    if found != size:
        return f"has {found} bytes instead of {size}"
    if crc32 is not None:
        with open(path, "rb") as file:
            if crc32_of(file) != crc32:
                return "does not have the contents it was saved with (its CRC-32 differs)"
    return ""
