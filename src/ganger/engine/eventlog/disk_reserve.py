"""Disk space held in reserve, so that requests that free something can be written when the disk is full.

A file beside the log, as large as a stop and all that follows from it needs. `engine.loop` releases it when a stop
finds no space, and holds it again as soon as there is some. The file has no content: its existence is its whole state,
so a crash at any moment is harmless.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganger.errors import RequestError
from ganger.model.units import format_bytes

RESERVE_BYTES: Final = 4 << 20
"""A stop with the ends of its ranks takes some hundred KiB, and their launchers write to the same disk."""


class DiskReserve:
    """The reserve file. Without a path there is no disk to fill, and it always counts as held."""

    def __init__(self, path: Path | None) -> None:
        """Begin without touching the file."""
        self._path = path
        self.is_held = path is None

    def hold(self) -> bool:
        """Hold the reserve, if there is space; return whether it is held."""
        if self.is_held or self._path is None:
            return True
        try:
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            if os.fstat(file).st_blocks * 512 < RESERVE_BYTES and _free_bytes(file) < RESERVE_BYTES:
                return False  # an attempt would briefly take the little space left from other writers
            os.posix_fallocate(file, 0, RESERVE_BYTES)
            self.is_held = True
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, 0)
        finally:
            os.close(file)
        return self.is_held

    def release(self) -> bool:
        """Release the space to the disk; return whether any was held."""
        if not self.is_held or self._path is None:
            return False
        self.is_held = False
        with suppress(OSError):
            self._path.unlink()
        return True

    def error(self) -> RequestError:
        """Return the error for requests that are refused while the reserve is not held."""
        folder = self._path.parent if self._path else Path()
        detail = (
            f"less than {format_bytes(RESERVE_BYTES)} are free on the disk of {folder}: running jobs go on, and until "
            "there is room only stop, suspend and delete are accepted"
        )
        return RequestError("disk_full", detail, f"free some space on that disk: df -h {folder}", 507)


def _free_bytes(file: int) -> int:
    disk = os.fstatvfs(file)
    return disk.f_bavail * disk.f_frsize
