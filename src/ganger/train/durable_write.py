"""Onto the disk, so that a machine that loses its power has it afterwards. Used by `checkpoints`, `fence`, `shards`."""

from __future__ import annotations

import os

from ganger.train import complete_checkpoints


def sync_files(directory: str) -> dict[str, dict[str, int]]:
    """Every file under `directory`, now on the disk: name relative to it -> bytes and crc32."""
    files = {}
    for name in names_in(directory):
        found = sync_file(os.path.join(directory, name))
        files[name] = {"bytes": found["bytes"], "crc32": found["crc32"]}
    return files


def sync_file(path: str) -> dict[str, int]:
    """Have the contents on the disk; their bytes and crc32, and `mtime_ns`, the time of the file before it was read."""
    with open(path, "rb") as file:
        mtime_ns = os.fstat(file.fileno()).st_mtime_ns
        crc32 = complete_checkpoints.crc32_of(file)
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "crc32": crc32, "mtime_ns": mtime_ns}


def size_and_time(path: str) -> tuple[int, int]:
    """(bytes, mtime_ns) of a file, also where another machine has just written it: a network file system asks its
    server on opening."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def names_in(directory: str) -> list[str]:
    """Every file under `directory`, relative to it."""
    return [
        os.path.relpath(os.path.join(folder, name), directory)
        for folder, _, names in os.walk(directory)
        for name in names
    ]


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
