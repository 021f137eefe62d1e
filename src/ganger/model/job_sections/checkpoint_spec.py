"""Checkpoints of a job as a user writes them."""

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from posixpath import join, normpath
from typing import Final

from ganger.model.described import described as _spec

AUTO: Final = 0
"""A save interval that follows from the time of saves and the failure rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Settings of checkpoints: where a job saves them, when, how it is asked to, and which are kept."""

    dir: str = _spec(
        "directory in which each job has a checkpoint directory of its own, by its id; relative to the job's directory",
        form="path",
        default="checkpoints",
    )
    every_ms: int | None = _spec(
        "interval at which should_checkpoint() returns true: 30m; auto: the one that costs least, by the measured time "
        "of saves and the failure rate",
        form="save_interval",
        key="every",
        default=None,
    )
    local: str | None = _spec(
        "directory on each node's own disk: a save is done when it is complete there, and is copied to dir in the "
        "background: /nvme",
        form="absolute_path",
        default=None,
    )
    peer: bool = _spec(
        "true: each checkpoint that is saved in local is copied to the next node of the job too, so that it outlives "
        "its own node before it is in dir",
        form="flag",
        default=False,
    )
    pattern: str | None = _spec(
        "name of checkpoints that the script writes in dir by itself, with * for the step: checkpoint-*; or of the one "
        "that it writes over: model.pt; GANGER_RESUME_FROM names the newest",
        form="file_pattern",
        default=None,
    )
    in_place: bool = _spec(
        "true: dir itself is the checkpoint directory, for a script that saves to a fixed path; refused where a live "
        "job uses it, or where checkpoints of other jobs are",
        form="flag",
        default=False,
    )
    signal: str | None = _spec(
        "signal sent at the start of the grace period, for scripts that handle one", form="signal", default=None
    )
    grace_ms: int = _spec(
        "time to save a checkpoint before the job is stopped", form="pause", key="grace", default=30_000
    )
    keep: int | None = _spec(
        "number of newest checkpoints kept when another one is complete; unset: all", form="kept", default=None
    )
    keep_every: int | None = _spec(
        "additionally keep checkpoints whose step is a multiple of this: 1000", form="kept_every", default=None
    )
    resume_from: str | None = _spec(
        "job from whose newest checkpoint this one begins, by name or id, or from that of a step: bert-7f3:12000; "
        "unset: from the beginning. Once it has saved, its attempts resume from its own",
        form="resume_from",
        default=None,
    )

    def overlap(self, directory: str) -> str:
        """Return an error if `local` and `dir`, of a job in that directory, are not apart, else ""."""
        if self.local is None:
            return ""
        local, shared = (PurePosixPath(normpath(path)) for path in (self.local, join(directory, self.dir)))
        if local not in (shared, *shared.parents) and shared not in local.parents:
            return ""
        relation = "is" if local == shared else "is inside" if shared in local.parents else "contains"
        return f"{local} {relation} dir, {shared}: name a directory on each node's own disk, such as /nvme"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSource:
    """Checkpoints of another job, from which a job begins as long as it has saved none itself.

    Attributes:
        job: The id of that job.
        directory: Its checkpoint directory, absolute.
        pattern: Its `checkpoint.pattern`.
        step: The step that counts; None: the newest.
        by_index: True for those of an array for another array: each element has the checkpoints of its index. One whose
            counterpart has saved nothing takes the next source, or begins from the beginning.
    """

    job: str
    directory: str
    pattern: str | None = None
    step: int | None = None
    by_index: bool = False

    def of_element(self, index: int) -> "ResumeSource":
        """Return the source of an array's element."""
        if not self.by_index:
            return self
        return replace(self, job=f"{self.job}[{index}]", directory=join(self.directory, str(index)))


def split_resume_from(text: str) -> tuple[str, int | None]:
    """Return the job and the step of a `resume_from`, None for its newest checkpoint."""
    job, colon, step = text.rpartition(":")
    return (job, int(step)) if colon else (text, None)
