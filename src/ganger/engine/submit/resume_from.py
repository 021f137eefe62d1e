"""Checkpoint directories of jobs: that of the job from which one begins, and one that is not a job's own.

Each job has a checkpoint directory of its own (`Job.checkpoint_directory`), since a script takes the newest checkpoint
that it finds. Only `resume_from` leads into that of another job, and only `in_place` into one that jobs share.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ganger.core.state.gang import Gang
from ganger.errors import RequestError
from ganger.model.job import Job, JobSpec, shell_quoted_id
from ganger.model.job_sections.checkpoint_spec import ResumeSource
from ganger.settings import Home

MAX_SOURCES: Final = 8
"""Directories in which each attempt looks, of a job that is retried again and again without a save: the newest, and the
last, which is that of the job that a user has named."""


def run_directory(job: Job, home: Home) -> str:
    """Return where a job runs: in its copy of the code, or in the directory of its user, or of its pods."""
    if job.spec.code is None or job.uid:
        return job.origin.directory
    return str(home.jobs / (job.array or job.id) / "code")


def count_in_copy(job: Job, home: Home) -> int:
    """Return how many checkpoints are in a job's copy of its code, which is deleted with the job."""
    if job.spec.code is None:
        return 0
    directory = Path(job.checkpoint_directory(run_directory(job, home)))
    if not directory.is_relative_to(home.jobs):
        return 0
    is_array = job.spec.array is not None and job.index is None
    visible = "[!.]*"
    return sum(1 for _ in directory.glob(f"{visible}/{visible}" if is_array else visible))


def sources_of(spec: JobSpec, source: Job, step: int | None, directory: str) -> tuple[ResumeSource, ...]:
    """Return where a job that resumes from another one finds checkpoints, the first choice first.

    These are those of the other job; until that has saved one, those from which it began itself.

    directory: where the other job runs, absolute.

    Raise RequestError (is_array).
    """
    is_array = source.spec.array is not None and source.index is None
    if is_array and spec.array is None:
        element = shell_quoted_id(f"{source.id}[{source.spec.array.indices[0] if source.spec.array else 0}]")
        message = f"checkpoint.resume_from: {source.id} is an array, whose elements have checkpoints of their own"
        raise RequestError("is_array", message, f"name one: --resume-from {element}")
    own = ResumeSource(
        job=source.id,
        directory=source.checkpoint_directory(directory),
        pattern=source.spec.checkpoint.pattern if source.spec.checkpoint else None,
        step=step,
        by_index=is_array,
    )
    earlier = source.resumes if step is None else tuple(replace(other, step=step) for other in source.resumes)
    if len(earlier) >= MAX_SOURCES:
        earlier = (*earlier[: MAX_SOURCES - 2], earlier[-1])
    return (own, *earlier)


def live_step(source: Job, newest_step: int | None) -> int:
    """Return the step of the checkpoint from which a job begins that resumes from a live one.

    It is fixed at submission. The nodes of a gang look for the newest checkpoint at different moments, so that while
    the other job saves, some would begin from another step than the rest. A job that comes after the other one needs
    no step.

    newest_step: of the newest checkpoint of the other job, None if none is known.

    Raise RequestError (no_checkpoint, 409) when that has no checkpoints by step.
    """
    pattern, name = source.spec.checkpoint.pattern if source.spec.checkpoint else None, source.id
    remedy = f"add after: [{{job: {name}, when: ended}}], or wait for it: ganger wait {shell_quoted_id(name)}"
    if source.spec.array is not None and source.index is None:
        message = f"checkpoint.resume_from: {name} is an array that has not ended: its elements still save"
    elif pattern is not None and "*" not in pattern:
        message = f"checkpoint.resume_from: {name} has not ended, and writes over its only checkpoint"
    elif newest_step is None:
        message = f"checkpoint.resume_from: {name} has not ended, and has saved no checkpoint yet"
    else:
        return newest_step
    raise RequestError("no_checkpoint", message, remedy, 409)


def check_source(source: Job, step: int | None, newest_step: int | None) -> None:
    """Raise RequestError (no_checkpoint, 409) when a job that has ended has no such checkpoint.

    newest_step: the step of its newest one, None if none is known.
    """
    if source.spec.array is not None and source.index is None:
        return  # each element has its own
    if newest_step is None and not (source.spec.checkpoint and source.spec.checkpoint.pattern):
        message = f"checkpoint.resume_from: {source.id} has ended without a checkpoint"
        raise RequestError("no_checkpoint", message, "leave resume_from out: the job begins from the beginning", 409)
    if step is not None and newest_step is not None and step > newest_step:
        message = f"checkpoint.resume_from: {source.id} has none of step {step}, its newest is of {newest_step}"
        raise RequestError("no_checkpoint", message, f"--resume-from {shell_quoted_id(source.id)}:{newest_step}", 409)


def check_in_place(job: Job, live: Iterable[Gang], directory_of: Callable[[Job], str]) -> None:
    """Raise RequestError when a job is to save in a directory in which a live job saves, or has its own source.

    directory_of: where a job runs.
    """
    directory = job.checkpoint_directory(directory_of(job))
    if any(source.step is not None and source.directory == directory for source in job.resumes):
        message = f"checkpoint.resume_from: in_place, newer checkpoints than that in {directory} would come first"
        raise RequestError("bad_spec", message, "leave in_place out, or name another dir")
    dependencies = {after.job for after in job.spec.after}
    for gang in live:  # only for a job in place: no index for a rare request
        checkpoint, other = gang.job.spec.checkpoint, gang.job
        if checkpoint is None or not checkpoint.in_place or dependencies & {other.id, other.array}:
            continue
        if replace(other, index=None).checkpoint_directory(directory_of(other)) == directory:
            message = f"checkpoint.in_place: {other.id} saves its checkpoints in {directory}, and has not ended"
            wait = f"ganger wait {shell_quoted_id(other.id)}"
            raise RequestError("directory_in_use", message, f"name another dir, leave in_place out, or: {wait}", 409)
