"""Files of a job as a tar stream: of its output directory and of its copy of the code.

The job may write there meanwhile: a file that shrinks is filled up with zeros. Links are sent as links, never followed.
"""

import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ganger.errors import RequestError
from ganger.model.job import shell_quoted_id
from ganger.model.units import format_bytes

MAX_BYTES: Final = 256 << 30
MAX_FILES: Final = 100_000
"""Each is listed before the first one is sent, in 1.2 kB of memory."""
BLOCK_BYTES: Final = 256 << 10
COPIED_MS: Final = 2
"""Time after the submission, in whole milliseconds, before which only the copy of the code was written."""

Files = list[tuple[str, os.stat_result, Path]]
"""Name in the stream, status and path of each file, directory and link."""


def named_files(job: str, roots: Sequence[Path], path: str) -> Iterator[bytes]:
    """Return the stream of a file or directory, by its path from one of the roots; in the stream it has its last name.

    Raise RequestError (no_such_file, 404) if none of them has it, and (too_many_files, 409).
    """
    for root in map(Path.resolve, roots):
        target = _resolved(root / path)
        if target is not None and target.is_relative_to(root):
            return _tar_stream(_checked(job, _files_under(target, root if target == root else target.parent)))
    detail = f"{job} has no {path!r} in {' or '.join(map(str, roots))}"
    raise RequestError("no_such_file", detail, f"all that it wrote: ganger fetch {shell_quoted_id(job)}", 404)


def written_files(job: str, roots: Sequence[Path], submitted_ms: int, without: str | None) -> Iterator[bytes]:
    """Return the stream of the files in the roots written since the submission; the path `without` is left out.

    Raise RequestError (no_such_file, 404) if there are none, and (too_many_files, 409).
    """
    files = [
        (name, status, path)
        for root in roots
        for name, status, path in _files_under(root, root)
        if not stat.S_ISDIR(status.st_mode)
        and status.st_mtime_ns >= (submitted_ms + COPIED_MS) * 1_000_000
        and not (without and Path(name).is_relative_to(without))
    ]
    if not files:
        detail = f"{job} has written nothing into {' or '.join(map(str, roots))}"
        raise RequestError("no_such_file", detail, f"ganger get {shell_quoted_id(job)}", 404)
    return _tar_stream(_checked(job, files))


def _resolved(path: Path) -> Path | None:
    """Return where a path leads; None if it is no path, or leads to nothing that can be sent."""
    try:
        target = path.resolve(strict=True)
        return target if target.is_file() or target.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # a zero byte; links in a circle
        return None


def _files_under(top: Path, parent: Path) -> Files:
    """Return what can be sent of `top` and below it, with names from `parent` on. Sockets and devices are left out."""
    files: Files = []
    pending = [top]
    while pending and len(files) <= MAX_FILES:
        path = pending.pop()
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                pending += path.iterdir()
        except OSError:  # removed meanwhile, or unreadable
            continue
        is_sendable = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)
        if is_sendable and path != parent:
            files.append((str(path.relative_to(parent)), status, path))
    return sorted(files)


def _checked(job: str, files: Files) -> Files:
    """Return the files. Raise RequestError (too_many_files) if they are beyond the limits."""
    total_bytes = sum(status.st_size for _, status, _ in files)
    if total_bytes > MAX_BYTES or len(files) > MAX_FILES:
        detail = f"{format_bytes(total_bytes)} in {len(files):,} files: at most {format_bytes(MAX_BYTES)} are sent"
        raise RequestError("too_many_files", detail, f"name a part: ganger fetch {shell_quoted_id(job)} PATH")
    return files


def _tar_stream(files: Files) -> Iterator[bytes]:
    for name, status, path in files:
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        try:
            if stat.S_ISDIR(status.st_mode):
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(status.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
            else:
                yield from _file_stream(member, path)
                continue
        except OSError:  # removed meanwhile, or unreadable
            continue
        yield member.tobuf()
    yield bytes(2 * tarfile.BLOCKSIZE)


def _file_stream(member: tarfile.TarInfo, path: Path) -> Iterator[bytes]:
    # It may have become a link or a FIFO since it was listed.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return
        member.size = left_bytes = status.st_size
        yield member.tobuf()
        while left_bytes:
            block = file.read(min(BLOCK_BYTES, left_bytes)) or bytes(min(BLOCK_BYTES, left_bytes))
            left_bytes -= len(block)
            yield block
    yield bytes(-member.size % tarfile.BLOCKSIZE)
