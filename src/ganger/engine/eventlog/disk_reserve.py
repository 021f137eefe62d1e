"""Room on the disk that is held back, so that what frees something can be written when the disk is full.

A file beside the log, as large as a stop and all that follows from it needs. `engine.loop` gives it back to the disk
when a stop finds no room, and holds it again as soon as there is some. Nothing is in it, and whether it is there is
all that it says: a crash at any moment leaves it there or not.
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
    """The file. Without a path there is no disk to fill, and all of it is always held."""

    def __init__(self, path: Path | None) -> None:
        """Look for nothing yet."""
        self._path = path
        self.held = path is None

    def hold(self) -> bool:
        """Hold it, if there is room; gives whether it is held."""
        if self.held or self._path is None:
            return True
        try:
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            if os.fstat(file).st_blocks * 512 < RESERVE_BYTES and _free_bytes(file) < RESERVE_BYTES:
                return False  # to try would take what little there is from others for a moment
            os.posix_fallocate(file, 0, RESERVE_BYTES)
            self.held = True
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, 0)
        finally:
            os.close(file)
        return self.held

    def give_back(self) -> bool:
        """Give it back to the disk; gives whether there was any."""
        if not self.held or self._path is None:
            return False
        self.held = False
        with suppress(OSError):
            self._path.unlink()
        return True

    def missing(self) -> RequestError:
        """Why nothing new is taken while it is not held."""
        folder = self._path.parent if self._path else Path()
        detail = (
            f"less than {format_bytes(RESERVE_BYTES)} are free on the disk of {folder}: running jobs go on, and until "
            "there is room only what frees something is taken: stop, suspend, delete"
        )
        return RequestError("no_room", detail, f"free some space on that disk: df -h {folder}", 507)


def _free_bytes(file: int) -> int:
    disk = os.fstatvfs(file)
    return disk.f_bavail * disk.f_frsize
