"""Checkpoints that are seen only when they are whole, and the newest of them that still is.

`DIR/step-000000012/` holds the files and `ganger-checkpoint.json`, which gives each one's size and CRC-32. It is built
beside its place under a hidden name that tells whose it is, synced, then renamed.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from ganger.train import notices, reporting, surroundings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ganger.train.values import Checkpoint

MANIFEST = "ganger-checkpoint.json"
REPLACED = ".replaced"
READ_BYTES = 1 << 20
OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


class checkpoint:  # noqa: N801 (used like a function)
    """`with checkpoint(step) as directory:` write files into `directory` (a Path); on one rank.

    It becomes visible when the block ends. When the block raises, nothing is left of it. A whole checkpoint of the same
    step that is already there stays, and this one is dropped. OSError when the disk does not take it.
    """

    def __init__(self, step: int) -> None:
        self._step = int(step)
        self._root = os.path.abspath(surroundings.checkpoint_directory())
        self._final = os.path.join(self._root, f"step-{self._step:09d}")
        self._draft = os.path.join(self._root, f".{os.path.basename(self._final)}.{_owner()}")

    def __enter__(self) -> Path:
        from pathlib import Path

        os.makedirs(self._root, exist_ok=True)
        _remove_leftovers(self._root)
        _remove(self._draft)  # a process of the same number was killed at this step
        os.mkdir(self._draft)
        self._phase = reporting.phase("checkpoint")
        self._began_s = time.monotonic()
        return Path(self._draft)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._complete()
        finally:
            _remove(self._draft)
            self._phase.__exit__()
        if kind is None:
            notices.saved()
            took_ms = int((time.monotonic() - self._began_s) * 1000)
            reporting.append({"checkpoint": self._step, "directory": self._final, "took_ms": took_ms})

    def _complete(self) -> None:
        import json

        files = _sync_files(self._draft)
        with open(os.path.join(self._draft, MANIFEST), "w", encoding="utf-8") as file:
            json.dump({"step": self._step, "job": surroundings.job(), "files": files}, file)
            file.flush()
            os.fsync(file.fileno())
        _sync_directories(self._draft)
        self._publish()
        _sync(self._root)

    def _publish(self) -> None:
        try:
            os.rename(self._draft, self._final)
        except OSError as refused:
            if refused.errno not in OCCUPIED:
                raise
            manifest, flaw = _examine(self._final, self._step)
            if not flaw and _counts(manifest):
                return
            aside = self._draft + REPLACED
            os.rename(self._final, aside)
            os.rename(self._draft, self._final)
            _remove(aside)


def latest() -> Checkpoint | None:
    """The newest whole checkpoint, None when there is none. One that is not whole is passed over, which stderr tells.

    Every file is read to check it. With `resume: never` only checkpoints of this very job count, those of its earlier
    attempts among them.
    """
    from pathlib import Path

    from ganger.train.values import Checkpoint

    root = os.path.abspath(surroundings.checkpoint_directory())
    for step, name in sorted(_steps(root), reverse=True):
        directory = os.path.join(root, name)
        manifest, flaw = _examine(directory, step)
        if flaw:
            sys.stderr.write(f"ganger: the checkpoint {directory} is passed over: {flaw}\n")
        elif _counts(manifest):
            return Checkpoint(step=step, directory=Path(directory))
    return None


# -- whole or not ----------------------------------------------------------------------------------------------------


def _steps(root: str) -> list[tuple[int, str]]:
    try:
        names = os.listdir(root)
    except OSError:
        return []
    return [(int(name[5:]), name) for name in names if name.startswith("step-") and name[5:].isdecimal()]


def _examine(directory: str, step: int) -> tuple[dict[str, Any], str]:
    """The manifest, and what is wrong: "" when the checkpoint is whole."""
    import json

    try:
        with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
        if manifest["step"] != step:
            return manifest, f"its {MANIFEST} is of step {manifest['step']}"
        for name, expected in manifest["files"].items():
            flaw = _flaw(os.path.join(directory, name), expected)
            if flaw:
                return manifest, f"{name} {flaw}"
    except OSError as error:
        return {}, f"{os.path.basename(error.filename or MANIFEST)} cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}, f"its {MANIFEST} is broken"
    return manifest, ""


def _flaw(path: str, expected: dict[str, int]) -> str:
    size = os.stat(path).st_size
    if size != expected["bytes"]:
        return f"has {size} bytes instead of {expected['bytes']}"
    with open(path, "rb") as file:
        if _crc32(file) != expected["crc32"]:
            return "does not have the contents it was saved with (its CRC-32 differs)"
    return ""


def _counts(manifest: dict[str, Any]) -> bool:
    return surroundings.resumes_others() or manifest.get("job") == surroundings.job()


def _crc32(file: Any) -> int:
    import zlib

    value = 0
    while True:
        data = file.read(READ_BYTES)
        if not data:
            return value
        value = zlib.crc32(data, value)


# -- onto the disk ---------------------------------------------------------------------------------------------------


def _sync_files(directory: str) -> dict[str, dict[str, int]]:
    """Every file under `directory`, now on the disk: name relative to it -> bytes and crc32."""
    files = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                crc32 = _crc32(file)
                os.fsync(file.fileno())
                files[os.path.relpath(path, directory)] = {"bytes": file.tell(), "crc32": crc32}
    return files


def _sync_directories(directory: str) -> None:
    for folder, _, _ in os.walk(directory, topdown=False):
        _sync(folder)


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- leftovers -------------------------------------------------------------------------------------------------------


def _owner() -> str:
    """Whose draft: job.attempt.place.pid, where pids of one place can be compared."""
    return f"{surroundings.job()}.{surroundings.attempt()}.{_place()}.{os.getpid()}"


def _place() -> str:
    """Names this boot of this machine and this container."""
    import zlib

    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            text = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        text = os.uname().nodename
    return f"{zlib.crc32(text.encode()):08x}"


def _remove_leftovers(root: str) -> None:
    """Drafts of attempts and processes that are dead."""
    for name in os.listdir(root):
        if name.startswith(".step-") and _is_dead(name):
            _remove(os.path.join(root, name))


def _is_dead(draft: str) -> bool:
    name = draft[: -len(REPLACED)] if draft.endswith(REPLACED) else draft
    parts = name[1:].split(".", 1)[-1].rsplit(".", 3)
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[3].isdecimal()):
        return False
    job, attempt, place, pid = parts
    if job == surroundings.job() and int(attempt) < surroundings.attempt():
        return True
    if place != _place() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
