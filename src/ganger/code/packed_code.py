"""A copy of code as one archive, packed where it is, and unpacked where it may come from anyone with a token.

What is unpacked is not trusted: nothing is written outside the target, and size, number and memory are bounded whatever
the archive says of itself.
"""

import errno
import gzip
import io
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Self

from ganger.code.code_snapshot import MAX_BYTES, MAX_ENTRIES
from ganger.errors import RequestError
from ganger.model.units import KIB_BYTES, MIB_BYTES, format_bytes

MAX_ARCHIVE_BYTES: Final = 128 * MIB_BYTES
"""Size of an archive that a server accepts."""
_ENTRY_TYPES: Final = (
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
MAX_PATH_BYTES: Final = 4096
_LEVEL: Final = 6
"""Compression level: 9 takes twice as long, and saves about 1 %."""
_MAX_STREAM_BYTES: Final = MAX_BYTES + MAX_ENTRIES * 8 * KIB_BYTES
"""Limit of what is read from an unpacked archive: the files, and for each entry its headers and a long name."""
_MAX_READ_BYTES: Final = MIB_BYTES
"""Size of one read: more is asked for only by a header that claims to be that long."""


def pack(directory: Path, max_bytes: int = MAX_ARCHIVE_BYTES) -> bytes:
    """Archive a directory: the same bytes for the same content, whenever it was written.

    Raise RequestError (code_too_large) once the archive is larger than that.
    """
    buffer = _BoundedBuffer(max_bytes)
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=_LEVEL, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(directory.rglob("*")):
            tar.add(path, str(path.relative_to(directory)), recursive=False, filter=_without_owner)
    return buffer.getvalue()


def unpack(archive: IO[bytes], target: Path) -> None:
    """Write what is in an archive below `target`, an empty directory.

    Raise RequestError: bad_archive, for an entry that is no plain file, directory or link, or whose path leads outside;
    code_too_large. Raise OSError if the disk refuses it. Links are written last, so that no file is written through
    one; where they lead is for `code_snapshot` to check.
    """
    links: dict[Path, str] = {}
    try:
        with (
            gzip.GzipFile(fileobj=archive) as zipped,
            tarfile.TarFile(fileobj=_BoundedReader(zipped), tarinfo=_PlainEntry) as tar,
        ):
            for number, entry in enumerate(tar):
                if number >= MAX_ENTRIES:
                    raise _too_large(f"more than {MAX_ENTRIES:,} files and folders")
                path = target / _relative_path(entry.name)
                if entry.issym():
                    links[path] = entry.linkname
                else:
                    _write(tar, entry, path)
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all of them
            for path, link_target in links.items():
                path.symlink_to(link_target)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise _bad_archive(str(error) or "it ends too early") from None
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP):
            raise _bad_archive(f"its paths cannot be created: {error.strerror}") from None
        raise


class _BoundedBuffer(io.BytesIO):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > self._max_bytes:
            raise _too_large(f"more than {format_bytes(self._max_bytes)}, packed")
        return super().write(data)


class _PlainEntry(tarfile.TarInfo):
    """A header of an archive as `pack` makes them; others may make tarfile keep whatever follows them in memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type not in _ENTRY_TYPES:
            raise _bad_archive(f"{entry.name[:200]!r} is neither a file, a directory nor a symbolic link")
        if entry.size < 0:  # the next header would be one before: the same bytes again and again, under other names
            raise _bad_archive(f"{entry.name[:200]!r} has a negative size")
        return entry


class _BoundedReader(io.RawIOBase):
    """The unpacked bytes of an archive, as far as an archive of permitted code has any."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise _bad_archive("a header is too long")
        data = self._source.read(size)
        self._check(self._source.tell())
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check(offset)
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def _check(self, position: int) -> None:
        if position > _MAX_STREAM_BYTES:
            raise _too_large(f"more than {format_bytes(MAX_BYTES)}")


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
    """Write a file or a directory, which must not exist yet."""
    if entry.isdir():
        path.mkdir()
        path.chmod(entry.mode & 0o777 | 0o700)
        return
    content = tar.extractfile(entry)
    assert content is not None  # noqa: S101 - a file has one
    with content, path.open("xb") as file:
        while block := content.read(_MAX_READ_BYTES):
            file.write(block)
        path.chmod(entry.mode & 0o777)


def _relative_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or len(name) > MAX_PATH_BYTES:
        raise _bad_archive(f"{name[:200]!r} is not a path inside it")
    return path


def _bad_archive(reason: str) -> RequestError:
    return RequestError("bad_archive", f"the archive of the code cannot be unpacked: {reason}", "submit the job again")


def _too_large(what: str) -> RequestError:
    return RequestError("code_too_large", f"the archive of the code has {what}", "leave files out: .gangerignore")


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
