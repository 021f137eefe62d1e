"""Archives on the controller's disk: copies of those in the store that launchers are receiving."""

import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from typing import IO, Final, NamedTuple

from ganger.code.packed_code import MAX_ARCHIVE_BYTES

MAX_OPEN_BYTES: Final = 1 << 30
"""Size of all copies: the volume of a controller in a cluster has 4 GiB."""
MAX_OPEN: Final = 128
"""Number of copies, each of which is an open file."""
IN_USE_S: Final = 60.0
"""Time for which a copy stays after a piece of it was read: the launchers of its gang ask for more."""


class _Copy(NamedTuple):
    file: IO[bytes]
    size_bytes: int
    used_s: float


class OpenArchives:
    """Copies in a directory, which are gone once they are closed. Not thread-safe: one thread at a time calls it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = OrderedDict[str, _Copy]()
        """By name, the one used last at the end."""
        self._total_bytes = 0

    def get(self, name: str) -> IO[bytes] | None:
        """Return a copy, which is in use from now on; None if there is none."""
        copy = self._copies.get(name)
        if copy is None:
            return None
        self._copies[name] = copy._replace(used_s=time.monotonic())
        self._copies.move_to_end(name)
        return copy.file

    def make_room(self) -> bool:
        """Return whether there is room for another copy, of any size; those not in use are closed for it."""
        while self._is_full():
            name, copy = next(iter(self._copies.items()))
            if time.monotonic() < copy.used_s + IN_USE_S:
                return False
            self._close(name)
        return True

    def add(self, name: str, content: bytes) -> IO[bytes]:
        """Write a copy, once there is room, and return it. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it stays open
        try:
            file.write(content)
            file.flush()
        except OSError:
            file.close()
            raise
        self._copies[name] = _Copy(file, len(content), time.monotonic())
        self._total_bytes += len(content)
        return file

    def close(self) -> None:
        """Delete all copies."""
        for name in list(self._copies):
            self._close(name)

    def _is_full(self) -> bool:
        return len(self._copies) >= MAX_OPEN or self._total_bytes > MAX_OPEN_BYTES - MAX_ARCHIVE_BYTES

    def _close(self, name: str) -> None:
        copy = self._copies.pop(name)
        self._total_bytes -= copy.size_bytes
        copy.file.close()
