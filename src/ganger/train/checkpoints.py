"""Writing checkpoints that become visible only when complete, and finding the newest complete one.

`DIR/step-000000012/` contains the files and `ganger-checkpoint.json`, which records the size and CRC-32 of each. A
checkpoint is written to a hidden directory whose name identifies its writer, synced, then renamed, unless a newer
attempt of the job has started (`fence`). Ranks that write one checkpoint together share a draft (`sharded_save`).
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
    resume_sources,
    sharded_save,
)
from ganger.train.tiers import local_tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, NoReturn

    from ganger.train.public_types import Checkpoint

OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
MIN_FREE_BYTES = 1 << 20
"""A disk with less free space counts as full."""
MAX_SCANS = 10
"""Number of times that `latest` starts over when a checkpoint is removed while it is being examined."""

_warned_empty = False


class checkpoint:  # noqa: N801 (used like a function)
    """Write a checkpoint: `with checkpoint(step) as directory:` on one rank, with `sharded=True` on all ranks.

    `directory` is a Path. Without `sharded` several ranks may enter it if only one of them writes files. With `sharded`
    each rank writes its part into one common directory.

    The checkpoint becomes visible when the block ends, a sharded one when the last rank's block ends; then checkpoints
    that `checkpoint.keep` does not retain are removed. If the block raises an exception, nothing remains. A block that
    writes nothing saves nothing. If a complete checkpoint of the same step already exists, it stays and the new one is
    dropped.

    Raises OSError, with a message that names the directory, if the checkpoint cannot be written; with errno ESTALE if a
    newer attempt of the job has started and this process is one that could not be reached to end it. Raises ValueError
    if another rank has saved different files at this step: use `sharded=True` for that.
    """

    def __init__(self, step: int, *, sharded: bool = False) -> None:
        local = launcher_environment.local_checkpoint_directory()
        root = local or os.path.abspath(launcher_environment.checkpoint_directory())
        self._parts = launcher_environment.nodes() if local and sharded else 1
        position = (launcher_environment.rank(), launcher_environment.world_size())
        if local:
            position = (launcher_environment.local_rank(), launcher_environment.local_world_size())
        self._aim(root, int(step), sharded_save.Shards(root, int(step), *position) if sharded else None)

    def _aim(self, root: str, step: int, shards: sharded_save.Shards | None) -> None:
        """Set where the checkpoint is written, and what it becomes."""
        prefix = complete_checkpoints.PREFIX if self._parts == 1 else complete_checkpoints.PART_PREFIX
        self._root, self._step, self._shards = root, step, shards
        self._final = complete_checkpoints.directory_of(root, step, prefix)
        self._draft = shards.draft if shards else drafts.draft_of(root, step)
        self._directory = shards.directory if shards else self._draft
        self._owns_draft = shards is None
        self._fence = _fence(root)

    def __enter__(self) -> Path:
        from pathlib import Path

        try:
            os.makedirs(self._root, exist_ok=True)
            self._fence.claim()
            drafts.remove_leftovers(self._root)
            if self._shards is None:
                drafts.remove(self._draft)  # a process with the same pid was killed at this step
                os.mkdir(self._draft)
            elif overdue := self._shards.enter():
                _warn(overdue)
        except OSError as error:
            self._raise(error)
        self._phase = progress_report.phase("checkpoint")
        self._began_s = time.monotonic()
        return Path(self._directory)

    def __exit__(self, kind: type[BaseException] | None, exception: object, trace: object) -> None:
        is_published = False
        try:
            if kind is None:
                is_published = self._complete()
            else:
                self._abandon(kind)
        except OSError as error:
            if self._owns_draft:
                drafts.put_back(self._draft, self._final)
            self._raise(error)
        finally:
            if self._owns_draft:
                drafts.remove(self._draft)
            self._phase.__exit__()
        if is_published:
            self._finish()

    def _abandon(self, kind: type[BaseException]) -> None:
        """Clean up after an exception in the block; raise OSError if a newer attempt took its files away."""
        stale = None if os.path.isdir(self._directory) or not issubclass(kind, Exception) else self._stale()
        if self._shards is not None:
            self._shards.give_up()
        if stale:
            raise stale
        if problem := self._find_problem():
            _warn(f"the checkpoint of step {self._step} was not saved: {problem}")

    def _complete(self) -> bool:
        """Publish the files; return False if there are none, or other ranks have not finished writing."""
        if self._shards is None:
            files = durable_write.sync_files(self._directory)
        else:
            all_files = self._leave(self._shards)
            if all_files is None:
                return False
            files = all_files
        if complete_checkpoints.is_empty(files):
            os.stat(self._directory)  # raises FileNotFoundError if the directory was removed with its files
            _warn_empty(self._step)
            return False
        self._write_manifest(files)
        durable_write.sync_directories(self._directory)
        self._publish(files)
        durable_write.sync(self._root)
        return True

    def _leave(self, shards: sharded_save.Shards) -> dict[str, dict[str, int]] | None:
        """Return the files of all ranks; None if other ranks are still writing, or one could not write."""
        try:
            files = shards.leave()
        except OSError:
            shards.give_up()
            raise
        self._owns_draft = files is not None
        if files is None:
            self._fence.check()  # a missing draft was published, or taken away by a newer attempt
        return files

    def _write_manifest(self, files: dict[str, dict[str, int]]) -> None:
        import json

        owner = {
            "job": launcher_environment.job(),
            "uid": launcher_environment.uid(),
            "attempt": launcher_environment.attempt(),
        }
        owner["rank"] = launcher_environment.rank() if self._shards is None else None
        if self._parts > 1:
            owner.update(part=launcher_environment.node_rank(), parts=self._parts)
        with open(os.path.join(self._directory, complete_checkpoints.MANIFEST), "w", encoding="utf-8") as file:
            json.dump({"step": self._step, **owner, "files": files}, file)
            file.flush()
            os.fsync(file.fileno())

    def _publish(self, files: dict[str, dict[str, int]]) -> None:
        from contextlib import suppress

        aside = self._draft + drafts.REPLACED
        while True:
            self._fence.check()  # after the draft was made: see `fence`
            try:
                os.rename(self._directory, self._final)
            except OSError as error:
                if error.errno not in OCCUPIED:
                    raise
            else:
                drafts.remove(aside)
                self._take_back_part()
                return
            manifest, flaw = complete_checkpoints.examine(self._final, self._step)
            # A part of an earlier attempt is of no use: the other nodes have saved theirs again.
            is_current = self._parts == 1 or manifest.get("attempt") == launcher_environment.attempt()
            if not flaw and is_current and not launcher_environment.is_skipped(manifest, self._step):
                self._refuse_part(manifest, files)
                return
            drafts.remove(aside)
            with suppress(FileNotFoundError):  # another rank, further ahead, has removed it
                os.rename(self._final, aside)

    def _refuse_part(self, manifest: dict[str, Any], files: dict[str, dict[str, int]]) -> None:
        """Raise ValueError if another rank of this attempt has published different files.

        In that case no rank has the complete checkpoint. It is renamed out of sight, to a name by which later ranks
        recognize it.
        """
        from contextlib import suppress

        owner = (manifest.get("uid"), manifest.get("attempt"))
        is_of_another_rank = manifest.get("rank") not in (None, launcher_environment.rank())
        own = (launcher_environment.uid(), launcher_environment.attempt())
        if not owner[0] or owner != own or not is_of_another_rank:
            return
        if self._shards is None and manifest["files"].keys() != files.keys():
            with suppress(OSError):  # another rank has renamed it
                os.rename(self._final, self._partial_path())
            self._raise_part(f"rank {manifest['rank']}")

    def _take_back_part(self) -> None:
        """Unpublish this rank's files if other ranks have found that each rank writes a part."""
        if self._shards is None and os.path.lexists(self._partial_path()):
            os.rename(self._final, self._draft)
            self._raise_part("another rank")

    def _partial_path(self) -> str:
        return drafts.shared_draft_of(self._root, self._step, "apart", 0)

    def _raise_part(self, other: str) -> NoReturn:
        raise ValueError(
            f"the checkpoint of step {self._step} was not saved: rank {launcher_environment.rank()} and {other} "
            "wrote different files, so that each has only a part; enter checkpoint(step, sharded=True) on all ranks, "
            "which gives them one common directory"
        )

    def _finish(self) -> None:
        """Report the published checkpoint and remove superseded ones."""
        took_ms = int((time.monotonic() - self._began_s) * 1000)
        record = {"checkpoint": self._step, "directory": self._final, "took_ms": took_ms, "parts": self._parts}
        progress_report.append(record)
        read_lock.release()
        try:
            checkpoint_retention.remove_superseded(self._root, self._final)
        except OSError as error:
            _warn(f"older checkpoints in {self._root} cannot be removed: {error.strerror}")

    def _raise(self, error: OSError) -> NoReturn:
        """Raise OSError that says which checkpoint cannot be saved and why: a newer attempt is the reason, if any."""
        stale = self._stale()
        cause = stale or error
        message = f"cannot save the checkpoint of step {self._step} in {self._root}: {cause.strerror or cause}"
        raise OSError(cause.errno, message) from (None if stale else error)

    def _stale(self) -> OSError | None:
        """Return the error of the fence if a newer attempt has started."""
        try:
            self._fence.check()
        except OSError as error:
            return error if error.errno == errno.ESTALE else None
        return None

    def _find_problem(self) -> str:
        """Describe what is wrong with the directory, if that may be why the block raised."""
        if not os.path.isdir(self._directory):
            return f"{self._root} was removed"
        try:
            if not os.access(self._directory, os.W_OK):
                return f"{self._root} is not writable"
            disk = os.statvfs(self._directory)
        except OSError as error:
            return f"{self._root} cannot be used: {error.strerror}"
        free_bytes = disk.f_bavail * disk.f_frsize
        return f"{self._root} is full ({free_bytes} bytes are free)" if free_bytes < MIN_FREE_BYTES else ""


def latest() -> Checkpoint | None:
    """Return the newest complete checkpoint, skipping damaged ones, or None.

    It is the job's own, of any of its attempts; as long as it has none, that of the job which `checkpoint.resume_from`
    names. Stderr and `ganger get` report the skipped ones. Every file is read to verify it. The checkpoint is not
    removed, whatever `checkpoint.keep` says, until this process reports a step or saves a checkpoint.
    """
    from pathlib import Path

    from ganger.train.public_types import Checkpoint

    root = os.path.abspath(launcher_environment.checkpoint_directory())
    _claim_fence(root)
    newest, skipped = _newest(root)
    for directory, (_, flaw) in skipped.items():
        _warn(f"skipped the checkpoint {directory}: {flaw}")
    step, directory = newest or (None, "")
    lost = local_tier.find_lost(root, -1 if step is None else step, launcher_environment.uid())
    newer = [*lost.items(), *(entry for entry in skipped.values() if entry[0] != step)]
    flaws = [{"step": other, "flaw": flaw} for other, flaw in newer]
    parent, sources = os.path.dirname(directory), resume_sources.sources(os.environ)
    source = next((source.job for source in sources if source.directory == parent), "") if parent != root else ""
    progress_report.append({"resumed": step, "skipped": flaws, "source": source})
    return None if step is None else Checkpoint(step=step, directory=Path(directory))


def _claim_fence(root: str) -> None:
    """Keep older attempts from publishing from now on, so that the newest checkpoint stays the newest.

    A process that must not write there, or is itself the older attempt, reads all the same.
    """
    from contextlib import suppress

    with suppress(OSError):
        if launcher_environment.uid() and launcher_environment.attempt() > 1:
            os.makedirs(root, exist_ok=True)  # before an older attempt creates it
        _fence(root).claim()


def _fence(root: str) -> fence.Fence:
    return fence.Fence(root, launcher_environment.job(), launcher_environment.uid(), launcher_environment.attempt())


def _newest(root: str) -> tuple[tuple[int, str] | None, dict[str, tuple[int, str]]]:
    """Return step and directory of the newest usable checkpoint, and step and flaw of newer ones by directory.

    Those of other jobs count after all of this one. A checkpoint that an earlier attempt failed on is better than none.
    The scan starts over if a checkpoint is removed
    while it is being examined.
    """
    local, nodes = launcher_environment.local_checkpoint_directory(), launcher_environment.nodes()
    skipped: dict[str, tuple[int, str]] = {}
    for _ in range(MAX_SCANS):
        skipped.clear()
        failed_on: tuple[int, str] | None = None
        others = [candidate for source in resume_sources.sources(os.environ) for candidate in source.candidates()]
        for step, directory in [*local_tier.candidates(root, local, nodes), *others]:
            read_lock.hold(os.path.join(directory, complete_checkpoints.MANIFEST))
            manifest, flaw = complete_checkpoints.examine(directory, step)
            if flaw and not os.path.lexists(directory):
                break
            if not flaw and launcher_environment.is_skipped(manifest, step):
                flaw, failed_on = complete_checkpoints.FAILED_ON, failed_on or (step, directory)
            if not flaw:
                return (step, directory), skipped
            skipped[directory] = (step, flaw)
        else:
            if failed_on is None:
                break
            read_lock.hold(os.path.join(failed_on[1], complete_checkpoints.MANIFEST))
            del skipped[failed_on[1]]
            return failed_on, skipped
    read_lock.release()
    return None, skipped


def _warn_empty(step: int) -> None:
    global _warned_empty  # noqa: PLW0603 (once a process)
    if not _warned_empty:
        _warned_empty = True
        _warn(
            f"nothing was saved at step {step}: rank {launcher_environment.rank()} left checkpoint() without writing "
            "anything into its directory. Write the files into the directory that checkpoint() returns, before its "
            "block ends; if one rank writes for all, only that rank has to enter it"
        )


def _warn(message: str) -> None:
    from contextlib import suppress

    with suppress(OSError, ValueError, AttributeError):  # there may be no stderr
        sys.stderr.write(f"ganger: {message}\n")
