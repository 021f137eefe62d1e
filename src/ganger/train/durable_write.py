"""Durable writes: synchronize files and directories so that they survive a power failure."""

from __future__ import annotations

import os

from ganger.train import complete_checkpoints


def sync_files(directory: str) -> dict[str, dict[str, int]]:
    """Synchronize every file under `directory`; return bytes and crc32 by relative name."""
    files = {}
    for name in names_in(directory):
        stats = sync_file(os.path.join(directory, name))
        files[name] = {"bytes": stats["bytes"], "crc32": stats["crc32"]}
    return files


def sync_file(path: str) -> dict[str, int]:
    """Synchronize a file; return its bytes, its crc32, and `mtime_ns`, its modification time before it was read."""
    with open(path, "rb") as file:
        mtime_ns = os.fstat(file.fileno()).st_mtime_ns
        crc32 = complete_checkpoints.crc32_of(file)
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "crc32": crc32, "mtime_ns": mtime_ns}


def size_and_time(path: str) -> tuple[int, int]:
    """Return (bytes, mtime_ns) of an opened file: on opening, a network file system asks its server."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def names_in(directory: str) -> list[str]:
    """Return the relative path of every file under `directory`."""
    return [
        os.path.relpath(os.path.join(folder, name), directory)
        for folder, _, names in os.walk(directory)
        for name in names
    ]


def sync_directories(directory: str) -> None:
    """Synchronize the names of everything under `directory`."""
    for folder, _, _ in os.walk(directory, topdown=False):
        sync(folder)


def sync(directory: str) -> None:
    """Synchronize the names in one directory."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
