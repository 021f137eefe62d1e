"""Files of a job as a tar stream, by a server from its disk, or by a pod from its own.

`launcher.pyz files TASK_DIR GENERATION WITHOUT PATH ROOT...` writes what is below the roots to its output, PATH or all
that the ranks wrote, without the end of an archive; or a line of JSON to its error output. WITHOUT and PATH may be
empty. The job may write meanwhile: a file that shrinks is filled up with zeros, and one that the disk does not give
breaks the stream off. Links are sent as links and never followed.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tarfile
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Files = list[tuple[str, os.stat_result, Path]]
    """Name in the stream, status and path of each file, directory and link."""

FAILED = 1
MAX_BYTES = 256 << 30
MAX_FILES = 100_000  # each is listed before the first one is sent, in 1.2 kB of memory
BLOCK_BYTES = 256 << 10
END = bytes(2 * tarfile.BLOCKSIZE)  # of an archive


class FilesError(Exception):
    """Files that cannot be sent: a code of `ganger.error_codes`, and what follows "the job has"."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


class TornFileError(Exception):
    """A file that the disk does not give to its end: the stream has begun it, and cannot be completed."""


def main(arguments: list[str]) -> int:
    """Write the files, or the error; return the exit code."""
    from ganger.launcher.task_directory import TaskDirectory

    task, generation, without, path, *roots = arguments
    try:
        if path:
            blocks = named_files([Path(root) for root in roots], path)
        else:
            # The plan comes when the code is unpacked, and before a rank starts.
            plan = TaskDirectory(task).plan(int(generation))
            after_ns = os.stat(plan).st_mtime_ns if os.path.exists(plan) else 1 << 63
            blocks = written_files([Path(root) for root in roots], after_ns, without)
        for block in blocks:
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    except FilesError as error:
        sys.stderr.write(json.dumps({"error": error.code, "detail": error.detail}) + "\n")
        return FAILED
    except TornFileError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    return 0


def named_files(roots: Sequence[Path], path: str) -> Iterator[bytes]:
    """Return the stream of a file or directory, by its path from one of the roots; in the stream it has its last name.

    Raise FilesError: no_such_file, too_many_files.
    """
    for root in [root.resolve() for root in roots]:
        target = _resolved(root / path)
        if target is not None and (target == root or root in target.parents):
            return _tar_stream(_checked(_files_under(target, root if target == root else target.parent)))
    raise FilesError("no_such_file", f"no {path!r} in {_listed(roots)}")


def written_files(roots: Sequence[Path], after_ns: int, without: str) -> Iterator[bytes]:
    """Return the stream of the files in the roots written since a time; what is below the path `without` is left out.

    Raise FilesError: no_such_file, too_many_files.
    """
    files = [
        (name, status, path)
        for root in roots
        for name, status, path in _files_under(root, root)
        if not stat.S_ISDIR(status.st_mode)
        and status.st_mtime_ns >= after_ns
        and not (without and Path(without) in (Path(name), *Path(name).parents))
    ]
    if not files:
        raise FilesError("no_such_file", f"written nothing into {_listed(roots)}")
    return _tar_stream(_checked(files))


def _listed(roots: Sequence[Path]) -> str:
    return " or ".join(map(str, roots))


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


def _checked(files: Files) -> Files:
    """Return the files. Raise FilesError (too_many_files) if they are beyond the limits."""
    total_bytes = sum(status.st_size for _, status, _ in files)
    if total_bytes > MAX_BYTES or len(files) > MAX_FILES:
        detail = f"{total_bytes / (1 << 30):.1f} GiB in {len(files):,} files there; at most {MAX_BYTES >> 30} GiB"
        raise FilesError("too_many_files", f"{detail} in {MAX_FILES:,} files are sent")
    return files


def _tar_stream(files: Files) -> Iterator[bytes]:
    for name, status, path in files:
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        try:
            if stat.S_ISDIR(status.st_mode):
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(status.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            else:
                yield from _file_stream(member, path)
                continue
        except OSError:  # removed meanwhile, or unreadable
            continue
        yield member.tobuf()


def _file_stream(member: tarfile.TarInfo, path: Path) -> Iterator[bytes]:
    # It may have become a link or a FIFO since it was listed.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return
        member.size = left_bytes = status.st_size
        yield member.tobuf()
        while left_bytes:
            try:
                block = file.read(min(BLOCK_BYTES, left_bytes)) or bytes(min(BLOCK_BYTES, left_bytes))
            except OSError as error:
                raise TornFileError(f"cannot read {path}: {error.strerror}") from None
            left_bytes -= len(block)
            yield block
    yield bytes(-member.size % tarfile.BLOCKSIZE)
