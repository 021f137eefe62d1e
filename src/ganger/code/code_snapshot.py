"""Copies of `code:` directories, stored by the hash of their content, and checked out for each job.

Ignore files have git's meaning, those of the enclosing repository included. A copy is built under a temporary name and
renamed: it is complete or absent.

Disk space: a file that the last copy of the same directory has, equal and with the same mode, is a hard link of it.
That is safe in the store, in which nothing is ever written again. A checkout is written by its job, so its files are no
hard links: they share blocks with the store until they are written (FICLONE of XFS and Btrfs), or are copied.
"""

import errno
import fcntl
import hashlib
import io
import os
import re
import shlex
import shutil
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganger.code.ignore_files import IgnoreRules, rules_above
from ganger.errors import RequestError
from ganger.model.units import GIB_BYTES, MIB_BYTES, format_bytes

MAX_BYTES: Final = GIB_BYTES
MAX_ENTRIES: Final = 100_000

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_FICLONE: Final = 0x40049409
"""ioctl_ficlone(2): _IOW(0x94, 9, int)."""


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """One entry to copy.

    path: relative; parents come first.
    target: of a symbolic link, relative too.
    """

    path: str
    mode: int
    size_bytes: int = 0
    target: str | None = None


@dataclass(frozen=True, slots=True)
class CodeSize:
    """The size of a copy of a directory; `heaviest`: up to three paths that are most of it, with their bytes."""

    files: int
    size_bytes: int
    heaviest: tuple[tuple[str, int], ...]


def code_directory(directory: str | Path, code: str) -> Path:
    """Return the directory that `code:` names from another one. One of a user who does not exist stays as written."""
    return Path(directory) / os.path.expanduser(code)  # noqa: PTH111 - Path.expanduser raises for an unknown user


def measure(directory: Path) -> CodeSize:
    """Return what `snapshot` would copy. Raise RequestError as it does, before anything is copied."""
    _, entries = _list_directory(directory)
    sizes = {entry.path: entry.size_bytes for entry in entries if not entry.path.endswith("/")}
    return CodeSize(len(sizes), sum(sizes.values()), tuple(_heaviest(sizes)))


def ignore_hint(directory: Path, paths: Sequence[str]) -> str:
    """Return the command that leaves paths below a directory out of its copies."""
    lines = " ".join(shlex.quote(f"/{_printable(path)}") for path in paths)
    return f"leave them out; type: printf '%s\\n' {lines} >> {shlex.quote(str(directory / '.gangerignore'))}"


def snapshot(directory: Path, store: Path) -> str:
    """Store a copy of `directory` unless an equal one exists; return its name, a hash of its content.

    Raise RequestError, and store nothing: code_too_large (over 1 GiB or 100,000 entries), code_unreadable,
    code_link_outside, code_holds_state (the store is inside), disk_full.
    """
    root = Path(os.path.realpath(directory))
    if Path(os.path.realpath(store)).is_relative_to(root):
        raise RequestError(
            "code_holds_state",
            f"{directory} contains ganger's own files ({store})",
            next="name a directory below it in code:",
        )
    _, entries = _list_directory(directory)
    last = store / f".last-{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}"
    # Another submission may replace the link meanwhile: what is compared and what is linked is of one copy.
    last_copy = Path(os.path.realpath(last))
    digest = _publish(entries, root, store, lambda digest: store / digest, last=last_copy)
    with _writing(store):
        new = store / f"{last.name}.{os.getpid()}.{threading.get_ident()}"
        new.symlink_to(digest)
        new.replace(last)
    return digest


def snapshot_whole(directory: Path, store: Path) -> str:
    """Store a copy of all that is in `directory`, ignored or not."""
    root = Path(os.path.realpath(directory))
    entries = _list_entries(root, None)
    _check_size(root, entries)
    return _publish(entries, root, store, lambda digest: store / digest)


def _list_directory(directory: Path) -> tuple[Path, list[CodeEntry]]:
    """Return the real path of a directory, and what a copy of it has: checked, without what is ignored."""
    root = Path(os.path.realpath(directory))
    with _reading(root):
        rules = rules_above(root)
    entries = _list_entries(root, rules)
    _check_size(root, entries)
    return root, entries


def has_snapshot(store: Path, digest: str) -> bool:
    """Return whether there is a snapshot `digest`, which then counts as used now."""
    path = store / digest
    if not re.fullmatch(r"[0-9a-f]{64}", digest) or not path.is_dir():
        return False
    os.utime(path)
    return True


def checkout(store: Path, digest: str, target: Path) -> None:
    """Make `target` a copy of the snapshot `digest`, unless it exists. Raise RequestError: no_snapshot, disk_full."""
    source = Path(os.path.realpath(store)) / digest
    if target.exists():
        return
    if not re.fullmatch(r"[0-9a-f]{64}", digest) or not source.is_dir():
        raise RequestError("no_snapshot", f"there is no copy of the code in {source}", next="submit the job again")

    def checked_target(copied_digest: str) -> Path:
        if copied_digest != digest:
            raise RequestError(
                "no_snapshot",
                f"the copy of the code in {source} is damaged",
                next=f"type: rm -r {shlex.quote(str(source))}, then submit the job again",
            )
        return target

    _publish(_list_entries(source, None), source, target.parent, checked_target, from_store=True)


def _list_entries(root: Path, rules: IgnoreRules | None) -> list[CodeEntry]:
    """Return what is under `root` and not ignored, sorted by path. Sockets and devices are left out, as in git."""
    entries: list[CodeEntry] = []
    outside: list[str] = []
    pending = [("", rules)]
    while pending and len(entries) <= MAX_ENTRIES:
        folder, rules = pending.pop()
        with _reading(root / folder):
            items = list(os.scandir(root / folder))
            rules = rules.below(root / folder) if rules is not None else None
        for item in items:
            path = os.path.join(folder, item.name)  # noqa: PTH118 - thousands of them, as text
            is_folder = item.is_dir(follow_symlinks=False)
            if rules is not None and rules.ignore(item.path, is_folder=is_folder):
                continue
            entry = _entry(root, path)
            if is_folder:
                pending.append((path, rules))
            if entry and entry.target is not None and entry.target.startswith("/"):
                outside.append(path)
            elif entry:
                entries.append(entry)
    if outside:
        shown = ", ".join(map(_printable, sorted(outside)[:5])) + (" ..." if len(outside) > 5 else "")
        raise RequestError(
            "code_link_outside",
            f"{root}: links that point outside it cannot be copied: {shown}",
            next=ignore_hint(root, sorted(outside)[:5]) + ", and use absolute paths in the job",
        )
    return sorted(entries, key=lambda entry: entry.path)


def _entry(root: Path, path: str) -> CodeEntry | None:
    """Return the entry for `path`; a link that points outside `root` keeps an absolute target."""
    full = root / path
    with _reading(full):
        status = full.lstat()
        mode = stat.S_IMODE(status.st_mode) & 0o777
        if stat.S_ISDIR(status.st_mode):
            return CodeEntry(f"{path}/", mode | 0o700)
        if stat.S_ISREG(status.st_mode):
            return CodeEntry(path, mode, size_bytes=status.st_size)
        return CodeEntry(path, 0o777, target=_target(root, full)) if stat.S_ISLNK(status.st_mode) else None


def _target(root: Path, link: Path) -> str:
    """Return a link's target such that it leads to the same place in a copy."""
    target = link.readlink()
    resolved = Path(os.path.realpath(link))
    if not resolved.is_relative_to(root):
        return str(resolved)
    relative = os.path.normpath(link.parent.relative_to(root) / target)
    if target.is_absolute() or relative.startswith(".."):
        return os.path.relpath(resolved, link.parent)
    return str(target)


def _check_size(root: Path, entries: Sequence[CodeEntry]) -> None:
    total_bytes = sum(entry.size_bytes for entry in entries)
    if len(entries) > MAX_ENTRIES:
        heavy = _heaviest({entry.path: 1 for entry in entries})
        summary = f"has more than {MAX_ENTRIES:,} files and folders; most are in"
        shown = ", ".join(_printable(path) for path, _ in heavy)
    elif total_bytes > MAX_BYTES:
        heavy = _heaviest({entry.path: entry.size_bytes for entry in entries})
        summary = (
            f"has {format_bytes(total_bytes)} of files, and at most {format_bytes(MAX_BYTES)} are copied; the largest:"
        )
        shown = ", ".join(f"{_printable(path)} ({format_bytes(size_bytes)})" for path, size_bytes in heavy)
    else:
        return
    raise RequestError(
        "code_too_large", f"{root} {summary} {shown}", next=ignore_hint(root, [path for path, _ in heavy])
    )


def _heaviest(weights: dict[str, int]) -> list[tuple[str, int]]:
    """Return the three heaviest things to leave out; the second and third only with a hundredth of all.

    A folder with nearly all of its weight in one thing below it is replaced by that thing.
    """
    below: Counter[str] = Counter()
    inside: dict[str, set[str]] = {}
    for path, weight in weights.items():
        parts = path.rstrip("/").split("/")
        for depth in range(len(parts)):
            prefix = "/".join(parts[: depth + 1])
            below[prefix] += weight
            inside.setdefault("/".join(parts[:depth]), set()).add(prefix)
    heavy: list[tuple[str, int]] = []
    for path in sorted(inside.get("", ()), key=lambda path: (-below[path], path))[:3]:
        while largest := max(sorted(inside.get(path, ())), key=below.__getitem__, default=None):
            if below[largest] * 10 < below[path] * 9:
                break
            path = largest  # noqa: PLW2901 - one step down
        if not heavy or below[path] * 100 >= sum(weights.values()):
            heavy.append((path, below[path]))
    return heavy


def _publish(
    entries: Sequence[CodeEntry],
    source: Path,
    parent: Path,
    name: Callable[[str], Path],
    *,
    last: Path | None = None,
    from_store: bool = False,
) -> str:
    """Copy into `parent`, then rename to the path that `name` returns for the hash of the copy; return the hash.

    That path may exist already: it is an equal copy.
    last: a copy in the store of which equal files become hard links.
    from_store: the source is never written, so blocks can be shared with it.
    """
    with _writing(parent):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".copy-", dir=parent))
    try:
        digest = _copy_all(entries, source, temporary, last, from_store=from_store)
        target = name(digest)
        with _writing(parent):
            try:
                temporary.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
            os.utime(target)  # `engine.eventlog.log_retention` reads this as the last use
        return digest
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_all(entries: Sequence[CodeEntry], source: Path, target: Path, last: Path | None, *, from_store: bool) -> str:
    """Copy everything, and hash what was copied: paths, modes, links and contents."""
    digest = hashlib.sha256(b"ganger snapshot 1")
    for entry in entries:
        content = _copy(
            entry, source / entry.path, target / entry.path, last and last / entry.path, from_store=from_store
        )
        for part in (os.fsencode(entry.path), b"%o" % entry.mode, content):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _copy(entry: CodeEntry, source: Path, target: Path, last: Path | None, *, from_store: bool) -> bytes:
    """Copy one entry; return its content for the hash: a file's digest, a link's target."""
    with _writing(target.parent):
        if entry.path.endswith("/"):
            target.mkdir()
            target.chmod(entry.mode)
            return b""
        if entry.target is not None:
            target.symlink_to(entry.target)
            return os.fsencode(entry.target)
    with _reading(source):
        input_file = _open_regular(source)
    with input_file:
        if last is not None and (linked_digest := _link_if_equal(entry, (source, input_file), last, target)):
            return linked_digest
        with _writing(target.parent), target.open("xb") as output_file:
            shares_blocks = from_store and _clone_blocks(input_file, output_file)
            digest = hashlib.sha256()
            for chunk in _chunks(entry, source, input_file):
                digest.update(chunk)
                if not shares_blocks:
                    output_file.write(chunk)
            target.chmod(entry.mode)
    return digest.digest()


def _open_regular(path: Path) -> io.FileIO:
    """Open a regular file; raise OSError for a link, and for what has taken its place since it was listed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file any more")
    return io.FileIO(descriptor)


def _chunks(entry: CodeEntry, path: Path, file: io.FileIO) -> Iterator[bytes]:
    """Yield the content of a file; one that is growing up to the length that it had when it was listed."""
    file.seek(0)
    remaining_bytes = entry.size_bytes
    while remaining_bytes > 0:
        with _reading(path):
            chunk = file.read(min(remaining_bytes, MIB_BYTES))
        if not chunk:
            return
        yield chunk
        remaining_bytes -= len(chunk)


def _link_if_equal(entry: CodeEntry, source: tuple[Path, io.FileIO], last: Path, target: Path) -> bytes | None:
    """Make `target` a hard link of the file `last` if that is equal to the source; return its digest, else None.

    Contents are compared and not times: a link is right whatever happened to either file.
    """
    try:
        with _open_regular(last) as last_file:
            status = os.fstat(last_file.fileno())
            if status.st_size != entry.size_bytes or stat.S_IMODE(status.st_mode) != entry.mode:
                return None
            digest = hashlib.sha256()
            for chunk in _chunks(entry, *source):
                if last_file.read(len(chunk)) != chunk:
                    return None
                digest.update(chunk)
            if last_file.read(1):  # the source was cut since it was listed
                return None
            os.link(last, target)
    except OSError:  # no last copy, a retention that removed it, a file system without links: copied
        return None
    return digest.digest()


def _clone_blocks(source: io.FileIO, target: io.BufferedWriter) -> bool:
    """Make `target` share the blocks of `source`; return False on a file system that cannot."""
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(
            "code_unreadable",
            f"cannot read {_printable(str(path))}: {error.strerror}",
            next="make it readable, or leave it out with a line in .gangerignore",
        ) from None


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        disk_full = error.errno in _NO_ROOM
        raise RequestError(
            "disk_full" if disk_full else "store_failed",
            f"cannot write the copy of the code in {directory}: {error.strerror}",
            next="make room on that disk, then submit again" if disk_full else "see who owns it: `ganger doctor`",
            status=507 if disk_full else 500,
        ) from None


def _printable(path: str) -> str:
    """Return a path that can be printed, whatever its bytes are."""
    return os.fsencode(path).decode(errors="backslashreplace")
