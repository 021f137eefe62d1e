"""Which checkpoints go when another one is complete: `checkpoint.keep` and `keep_every`. Called by `checkpoints`.

Only whole checkpoints count, and only those of this very job, whichever attempt made them: what another job left, or
what is broken, is nobody's to remove. Nor does one count that an attempt failed on: it would push out good ones. One
goes out of sight whole before its files are deleted.
"""

from __future__ import annotations

from ganger.train import complete_checkpoints, drafts, fence, launcher_environment, read_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def superseded(steps: Iterable[int], keep: int, keep_every: int | None = None) -> list[int]:
    """The steps that are to go, oldest first: all but the last `keep`, and those that `keep_every` divides."""
    older = sorted(steps)[:-keep]
    return [step for step in older if not keep_every or step % keep_every]


def remove_superseded(root: str, newest: int) -> None:
    """Remove what the checkpoint of step `newest`, just completed, has made superfluous; never that one itself, nor one
    that is being read. OSError when something cannot be removed, or a newer attempt has come."""
    keep, keep_every = launcher_environment.checkpoints_kept()
    if keep is None:
        return
    fence.Fence(root, launcher_environment.job(), launcher_environment.uid(), launcher_environment.attempt()).check()
    counted = [step for step, directory in complete_checkpoints.found_in(root) if _counts(directory, step)]
    for step in superseded(counted, keep, keep_every):
        aside = drafts.draft_of(root, step) + drafts.SUPERSEDED
        if step != newest and read_lock.set_aside(
            complete_checkpoints.directory_of(root, step), complete_checkpoints.MANIFEST, aside
        ):
            drafts.remove(aside)


def _counts(directory: str, step: int) -> bool:
    manifest, flaw = complete_checkpoints.examine(directory, step, most_bytes=-1)
    is_mine = not flaw and manifest.get("uid") == launcher_environment.uid()
    return is_mine and not launcher_environment.is_skipped(manifest, step)
