"""Removal of old checkpoints when a new one is complete: `checkpoint.keep` and `keep_every`, on a node the newest two.

Only complete checkpoints of this job count, whichever attempt wrote them: checkpoints of other jobs and broken ones are
never removed. A checkpoint that an attempt failed on does not count either, since it would displace good ones. A
checkpoint is renamed out of sight before its files are deleted.
"""

from __future__ import annotations

from ganger.train import complete_checkpoints, drafts, fence, launcher_environment, read_lock
from ganger.train.tiers import local_tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def superseded(steps: Iterable[int], keep: int, keep_every: int | None = None) -> list[int]:
    """Return the steps to remove, oldest first: all but the last `keep` and those divisible by `keep_every`."""
    older = sorted(steps)[:-keep]
    return [step for step in older if not keep_every or step % keep_every]


def remove_superseded(root: str, newest: str) -> None:
    """Remove the checkpoints that the one in the directory `newest`, just completed, supersedes.

    Never removes `newest` itself or a checkpoint that is being read. Raises OSError if one cannot be removed, or if a
    newer attempt of the job has started.
    """
    keep, keep_every = launcher_environment.checkpoints_kept()
    if root == launcher_environment.local_checkpoint_directory():
        keep, keep_every = local_tier.KEPT, None
    if keep is None:
        return
    fence.Fence(root, launcher_environment.job(), launcher_environment.uid(), launcher_environment.attempt()).check()
    for prefix in (complete_checkpoints.PREFIX, complete_checkpoints.PART_PREFIX):
        listed = complete_checkpoints.list_checkpoints(root, prefix)
        steps = [step for step, directory in listed if _counts(directory, step)]
        for step in superseded(steps, keep, keep_every):
            directory = complete_checkpoints.directory_of(root, step, prefix)
            aside = drafts.draft_of(root, step) + drafts.SUPERSEDED
            if directory != newest and read_lock.set_aside(directory, complete_checkpoints.MANIFEST, aside):
                drafts.remove(aside)


def _counts(directory: str, step: int) -> bool:
    manifest, flaw = complete_checkpoints.examine(directory, step, most_bytes=-1)
    is_mine = not flaw and manifest.get("uid") == launcher_environment.uid()
    return is_mine and not launcher_environment.is_skipped(manifest, step)
