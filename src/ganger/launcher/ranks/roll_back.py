"""The return to an older checkpoint: newer ones of earlier attempts are renamed into a directory of their own.

They go to `rolled-back~JOB~ATTEMPT` beside the others, where no attempt resumes from them and `checkpoint.keep` removes
none. ATTEMPT is the first attempt after the return. Each launcher does this before it starts its ranks; the file
`complete` there says that it is done, so that what was saved since then stays.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ganger.launcher.ranks import named_checkpoints, tracker_files
from ganger.train import complete_checkpoints
from ganger.train.tiers import local_tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping

PREFIX = "rolled-back~"
COMPLETE = "complete"


def set_aside_newer(environment: Mapping[str, str]) -> None:
    """Set aside checkpoints that are newer than that to which the attempt returns, if it does; raise OSError."""
    step = environment.get("GANGER_ROLLBACK_STEP")
    if step is None:
        return
    root, local = environment.get("GANGER_CHECKPOINT_DIR", ""), environment.get("GANGER_CHECKPOINT_LOCAL", "")
    name = f"{PREFIX}{environment.get('GANGER_JOB_ID', '')}~{environment.get('GANGER_ROLLBACK_ATTEMPT', '')}"
    if os.path.isdir(root) and not _is_done(root, name):
        _rename(root, name, [*_own(root, int(step)), *_named(root, int(step), environment)])
        uid = environment.get("GANGER_JOB_UID", "")
        local_tier.forget_pending(root, float("inf"), uid)
    if local and os.path.isdir(local) and not _is_done(local, name):
        held = [path for held_step, path in local_tier.list_held(local) if held_step > int(step)]
        _rename(local, name, [*_own(local, int(step)), *held])


def _is_done(root: str, name: str) -> bool:
    return os.path.exists(os.path.join(root, name, COMPLETE))


def _rename(root: str, name: str, paths: list[str]) -> None:
    aside = os.path.join(root, name)
    os.makedirs(aside, exist_ok=True)
    for path in paths:
        with suppress(FileNotFoundError):  # the launcher of another node was faster
            os.rename(path, os.path.join(aside, os.path.relpath(path, root).replace(os.sep, "~")))
    with open(os.path.join(aside, COMPLETE), "w", encoding="utf-8"):
        pass


def _own(root: str, step: int) -> Iterator[str]:
    """Yield the newer checkpoints, and parts of them, that were saved with `ganger.train`."""
    for prefix in (complete_checkpoints.PREFIX, complete_checkpoints.PART_PREFIX):
        yield from (path for saved, path in complete_checkpoints.list_checkpoints(root, prefix) if saved > step)


def _named(root: str, step: int, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the newer checkpoints that a script has saved by itself."""
    for named in named_checkpoints.find(root, environment.get("GANGER_CHECKPOINT_PATTERN", "")):
        if named.step is not None and named.step > step:
            yield named.path
    yield from tracker_files.newer(root, step)
