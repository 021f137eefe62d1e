"""Onto the disk, so that a machine that loses its power has it afterwards. Used by `checkpoints` and `fence`."""

from __future__ import annotations

import os

from ganger.train import whole


def sync_files(directory: str) -> dict[str, dict[str, int]]:
    """Every file under `directory`, now on the disk: name relative to it -> bytes and crc32."""
    files = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                crc32 = whole.crc32_of(file)
                os.fsync(file.fileno())
                files[os.path.relpath(path, directory)] = {"bytes": file.tell(), "crc32": crc32}
    return files


def sync_directories(directory: str) -> None:
    """The names of all that is under `directory`."""
    for folder, _, _ in os.walk(directory, topdown=False):
        sync(folder)


def sync(directory: str) -> None:
    """The names of what is in it."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
