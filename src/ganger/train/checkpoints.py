"""Checkpoints that are seen only when they are whole, and the newest of them that still is.

`DIR/step-000000012/` holds the files and `ganger-checkpoint.json`, which gives each one's size and CRC-32. It is built
beside its place under a hidden name that tells whose it is, synced, then renamed, unless a newer attempt has come there
(`fence`). Ranks that write one checkpoint together share a draft (`shards`).
"""

from __future__ import annotations

import errno
import os
import sys
import time

from ganger.train import (
    checkpoint_retention,
    complete_checkpoints,
    drafts,
    durable_write,
    fence,
    launcher_environment,
    progress_report,
    read_lock,
    sharded_save,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, NoReturn

    from ganger.train.public_types import Checkpoint

OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
ROOM_BYTES = 1 << 20
"""A disk with less is full."""
LOOKS = 10
"""How often `latest` looks again when what it looks at is removed meanwhile."""

_said_empty = False


class checkpoint:  # noqa: N801 (used like a function)
    """`with checkpoint(step) as directory:` write files into `directory` (a Path); on one rank, or on all of which one
    writes. With `sharded=True` all ranks enter and write into one directory, each its part.

    It becomes visible when the block ends, a sharded one when the last rank's block ends; then those go that
    `checkpoint.keep` lets go. When the block raises, nothing is left of it. A block that wrote nothing saves nothing. A
    whole checkpoint of the same step that is already there stays, and this one is dropped. OSError, with a sentence
    that names the directory, when the disk does not take it; with errno ESTALE when a newer attempt of the job has come
    there meanwhile, and this process is one that nobody could reach to end it. ValueError when another rank has saved
    other files at this step: that is what `sharded=True` is for.
    """

    def __init__(self, step: int, *, sharded: bool = False) -> None:
        self._step = int(step)
        self._root = os.path.abspath(launcher_environment.checkpoint_directory())
        self._final = complete_checkpoints.directory_of(self._root, self._step)
        self._shards = sharded_save.Shards(self._root, self._step) if sharded else None
        self._draft = self._shards.draft if self._shards else drafts.draft_of(self._root, self._step)
        self._directory = self._shards.directory if self._shards else self._draft
        self._owns_draft = not sharded
        self._fence = _fence(self._root)

    def __enter__(self) -> Path:
        from pathlib import Path

        try:
            os.makedirs(self._root, exist_ok=True)
            self._fence.claim()
            drafts.remove_leftovers(self._root)
            if self._shards is None:
                drafts.remove(self._draft)  # a process of the same number was killed at this step
                os.mkdir(self._draft)
            elif overdue := self._shards.enter():
                _say(overdue)
        except OSError as refused:
            self._raise(refused)
        self._phase = progress_report.phase("checkpoint")
        self._began_s = time.monotonic()
        return Path(self._directory)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        is_published = False
        try:
            if kind is None:
                is_published = self._complete()
            else:
                self._given_up(kind)
        except OSError as refused:
            if self._owns_draft:
                drafts.put_back(self._draft, self._final)
            self._raise(refused)
        finally:
            if self._owns_draft:
                drafts.remove(self._draft)
            self._phase.__exit__()
        if is_published:
            self._told()

    def _given_up(self, kind: type[BaseException]) -> None:
        """The block raised. OSError when that is because a newer attempt took its files from it."""
        stale = None if os.path.isdir(self._directory) or not issubclass(kind, Exception) else self._stale()
        if self._shards is not None:
            self._shards.give_up()
        if stale:
            raise stale
        if trouble := self._trouble():
            _say(f"the checkpoint of step {self._step} is not saved: {trouble}")

    def _complete(self) -> bool:
        """Publish what was written; False where that is nothing, or other ranks have not written yet."""
        if self._shards is None:
            files = durable_write.sync_files(self._directory)
        else:
            left = self._leave(self._shards)
            if left is None:
                return False
            files = left
        if complete_checkpoints.is_empty(files):
            os.stat(self._directory)  # FileNotFoundError where it was removed with what was in it
            _say_empty(self._step)
            return False
        self._write_manifest(files)
        durable_write.sync_directories(self._directory)
        self._publish(files)
        durable_write.sync(self._root)
        return True

    def _leave(self, shared: sharded_save.Shards) -> dict[str, dict[str, int]] | None:
        """The files of all ranks; None where others are still writing, or one could not."""
        try:
            files = shared.leave()
        except OSError:
            shared.give_up()
            raise
        self._owns_draft = files is not None
        if files is None:
            self._fence.check()  # a draft that is gone was published, or taken away by a newer attempt
        return files

    def _write_manifest(self, files: dict[str, dict[str, int]]) -> None:
        import json

        owner = {
            "job": launcher_environment.job(),
            "uid": launcher_environment.uid(),
            "attempt": launcher_environment.attempt(),
        }
        owner["rank"] = launcher_environment.rank() if self._shards is None else None
        with open(os.path.join(self._directory, complete_checkpoints.MANIFEST), "w", encoding="utf-8") as file:
            json.dump({"step": self._step, **owner, "files": files}, file)
            file.flush()
            os.fsync(file.fileno())

    def _publish(self, files: dict[str, dict[str, int]]) -> None:
        from contextlib import suppress

        aside = self._draft + drafts.REPLACED
        while True:
            self._fence.check()  # after the draft was made: `fence` says why
            try:
                os.rename(self._directory, self._final)
            except OSError as refused:
                if refused.errno not in OCCUPIED:
                    raise
            else:
                drafts.remove(aside)
                self._take_back_part()
                return
            manifest, flaw = complete_checkpoints.examine(self._final, self._step)
            if not flaw and _counts(manifest) and not launcher_environment.is_skipped(manifest, self._step):
                self._refuse_part(manifest, files)
                return
            drafts.remove(aside)
            with suppress(FileNotFoundError):  # another rank, which is further on, has removed it
                os.rename(self._final, aside)

    def _refuse_part(self, manifest: dict[str, Any], files: dict[str, dict[str, int]]) -> None:
        """Raise ValueError if another rank of this attempt has published other files: none has the whole checkpoint.
        It is taken out of sight, under a name by which the ranks that come later know of it."""
        from contextlib import suppress

        of = (manifest.get("uid"), manifest.get("attempt"))
        is_of_another_rank = manifest.get("rank") not in (None, launcher_environment.rank())
        if not of[0] or of != (launcher_environment.uid(), launcher_environment.attempt()) or not is_of_another_rank:
            return
        if self._shards is None and manifest["files"].keys() != files.keys():
            with suppress(OSError):  # another rank has done that
                os.rename(self._final, self._apart())
            self._raise_part(f"rank {manifest['rank']}")

    def _take_back_part(self) -> None:
        """The same for the rank that publishes after others have found that each of them writes a part."""
        if self._shards is None and os.path.lexists(self._apart()):
            os.rename(self._final, self._draft)
            self._raise_part("another rank")

    def _apart(self) -> str:
        return drafts.shared_draft_of(self._root, self._step, "apart", 0)

    def _raise_part(self, other: str) -> NoReturn:
        raise ValueError(
            f"the checkpoint of step {self._step} is not saved: rank {launcher_environment.rank()} and {other} "
            "have written different files, so that each has a part of it; enter checkpoint(step, sharded=True) on all "
            "ranks, which gives them one directory"
        )

    def _told(self) -> None:
        """It is there: whoever wants to know is told, and older ones may go."""
        took_ms = int((time.monotonic() - self._began_s) * 1000)
        progress_report.append({"checkpoint": self._step, "directory": self._final, "took_ms": took_ms})
        read_lock.release()
        try:
            checkpoint_retention.remove_superseded(self._root, self._step)
        except OSError as error:
            _say(f"older checkpoints in {self._root} cannot be removed: {error.strerror}")

    def _raise(self, error: OSError) -> NoReturn:
        """Say which checkpoint cannot be saved, and why: an older attempt is told that, wherever it was stopped."""
        stale = self._stale()
        because = stale or error
        why = because.strerror or str(because)
        said = f"the checkpoint of step {self._step} cannot be saved in {self._root}: {why}"
        raise OSError(because.errno, said) from (None if stale else error)

    def _stale(self) -> OSError | None:
        """The refusal, if a newer attempt has come."""
        try:
            self._fence.check()
        except OSError as error:
            return error if error.errno == errno.ESTALE else None
        return None

    def _trouble(self) -> str:
        """What is wrong with the directory, if that may be why the block raised."""
        if not os.path.isdir(self._directory):
            return f"{self._root} was removed meanwhile"
        try:
            if not os.access(self._directory, os.W_OK):
                return f"{self._root} must not be written"
            room = os.statvfs(self._directory)
        except OSError as error:
            return f"{self._root} cannot be used: {error.strerror}"
        free_bytes = room.f_bavail * room.f_frsize
        return f"{self._root} is full ({free_bytes} bytes are free)" if free_bytes < ROOM_BYTES else ""


def latest() -> Checkpoint | None:
    """The newest whole checkpoint, None when there is none. One that is not whole is passed over, which stderr and
    `ganger get` tell.

    Every file is read to check it. It is not removed, whatever `checkpoint.keep` says, until this process reports a
    step or saves a checkpoint. With `resume: never` only checkpoints of this very job count, those of its earlier
    attempts among them.
    """
    from pathlib import Path

    from ganger.train.public_types import Checkpoint

    root = os.path.abspath(launcher_environment.checkpoint_directory())
    _come(root)
    found, passed = _newest(root)
    for step, flaw in passed.items():
        _say(f"the checkpoint {complete_checkpoints.directory_of(root, step)} is passed over: {flaw}")
    flaws = [{"step": step, "flaw": flaw} for step, flaw in passed.items()]
    progress_report.append({"resumed": found, "passed": flaws})
    return (
        None
        if found is None
        else Checkpoint(step=found, directory=Path(complete_checkpoints.directory_of(root, found)))
    )


def _come(root: str) -> None:
    """What is found is all that older attempts have published, and will. Who may not write there, or is itself the
    older one, reads all the same."""
    from contextlib import suppress

    with suppress(OSError):
        if launcher_environment.uid() and launcher_environment.attempt() > 1:
            os.makedirs(root, exist_ok=True)  # before an older one makes it
        _fence(root).claim()


def _fence(root: str) -> fence.Fence:
    return fence.Fence(root, launcher_environment.job(), launcher_environment.uid(), launcher_environment.attempt())


def _newest(root: str) -> tuple[int | None, dict[int, str]]:
    """Return its step, and what is wrong with those that are passed over. One that an earlier attempt failed on is
    better than none. Looked for again when one is removed while it is examined."""
    passed: dict[int, str] = {}
    for _ in range(LOOKS):
        passed, failed_on = {}, None
        for step, directory in complete_checkpoints.found_in(root):
            read_lock.hold(os.path.join(directory, complete_checkpoints.MANIFEST))
            manifest, flaw = complete_checkpoints.examine(directory, step)
            if flaw and not os.path.lexists(directory):
                break
            if not _counts(manifest):
                continue
            if not flaw and launcher_environment.is_skipped(manifest, step):
                flaw, failed_on = complete_checkpoints.FAILED_ON, step if failed_on is None else failed_on
            if not flaw:
                return step, passed
            passed[step] = flaw
        else:
            if failed_on is not None:
                read_lock.hold(
                    os.path.join(complete_checkpoints.directory_of(root, failed_on), complete_checkpoints.MANIFEST)
                )
                del passed[failed_on]
                return failed_on, passed
            break
    read_lock.release()
    return None, passed


def _counts(manifest: dict[str, Any]) -> bool:
    """Whether it is a checkpoint to begin from, if it is whole: whose one is that cannot be read is not known."""
    return launcher_environment.resumes_others() or not manifest or manifest.get("uid") == launcher_environment.uid()


def _say_empty(step: int) -> None:
    global _said_empty  # noqa: PLW0603 (once a process)
    if not _said_empty:
        _said_empty = True
        _say(
            f"nothing is saved at step {step}: rank {launcher_environment.rank()} left checkpoint() without having "
            "written anything into its directory. Write the files into the directory that checkpoint() gives, before "
            "its block ends; where one rank writes for all, only that one has to enter it"
        )


def _say(sentence: str) -> None:
    from contextlib import suppress

    with suppress(OSError, ValueError, AttributeError):  # there may be no stderr
        sys.stderr.write(f"ganger: {sentence}\n")
