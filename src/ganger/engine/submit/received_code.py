"""Code that a client on another machine sends before it submits a job that uses it."""

import tempfile
from pathlib import Path
from typing import IO

from ganger.code.code_snapshot import has_snapshot, snapshot_whole
from ganger.code.packed_code import unpack
from ganger.errors import RequestError, write_error


class ReceivedCode:
    """Archives on their way into `store`, the copies of code by their content.

    A controller keeps the archives themselves, by the namespace of their jobs.
    """

    def __init__(self, store: Path) -> None:
        self._store = store

    def has(self, digest: str, namespace: str) -> bool:
        """Return whether there is a copy with this hash, which then counts as used now."""
        return has_snapshot(self._store, digest)

    def new_file(self) -> IO[bytes]:
        """Return a file for an archive, which is gone once it is closed."""
        try:
            self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=self._store, buffering=0)  # what a full disk refused is not tried again
        except OSError as error:
            raise write_error(self._store, error) from None

    def write(self, file: IO[bytes], content: bytes) -> None:
        """Append to a file of `new_file`. Raise RequestError (disk_full, 507)."""
        try:
            while content:
                content = content[file.write(content) :]
        except OSError as error:
            raise write_error(self._store, error) from None

    def keep(self, file: IO[bytes], digest: str, namespace: str) -> None:
        """Unpack an archive, and store its content, whose hash has to be `digest`. Raise RequestError."""
        file.seek(0)
        try:
            with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=self._store) as folder:
                unpack(file, Path(folder))
                if (actual := snapshot_whole(Path(folder), self._store)) != digest:
                    message = f"the archive of the code has other content than its name says: {actual}"
                    raise RequestError("bad_archive", message, "submit the job again")
        except OSError as error:
            raise write_error(self._store, error) from None
