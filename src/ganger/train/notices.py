"""The time to save: on a notice that the job will be stopped, or by `checkpoint.every`, with one answer for all ranks.

The notice is a file that the launcher writes on each node. `should_checkpoint()` follows the gang's schedule
(`checkpoint_schedule`), on which the server and the launchers agree.
"""

from __future__ import annotations

import os

from ganger.train import progress_report
from ganger.train.launcher_environment import rank, task_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.train.checkpoint_schedule import CheckpointSchedule

_schedule: tuple[str, CheckpointSchedule] | None = None  # with its directory
_recorded = ""  # the directory in which this process has recorded that it knows of the notice


def notice() -> tuple[str, float] | None:
    """Return (cause, deadline) once this job is to be stopped, else None; the deadline is in Unix seconds.

    A rank that has got it and exits has not finished: the job goes on later, from its newest checkpoint.
    """
    directory = task_directory()
    if directory is None:
        return None
    try:
        with open(os.path.join(directory, "notice"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return None
    try:
        _record(directory)
    except OSError as error:
        # A rank that left unrecorded would be taken to have finished, and its job would not go on.
        progress_report.warn_once(f"ganger: notice() is None: this rank cannot record that it knows of it: {error}")
        return None
    import json

    fields = json.loads(text)
    return fields["cause"], fields["deadline_ms"] / 1000


def _record(directory: str) -> None:
    """Record for the launcher that this rank knows of the notice; raise OSError."""
    global _recorded  # noqa: PLW0603 (once a process)
    if _recorded != directory:
        path = os.path.join(directory, f"rank-{rank()}.noticed")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        _recorded = directory


def should_checkpoint() -> bool:
    """Return True when all ranks are to save, by `checkpoint.every` or a notice; always False outside ganger.

    True is returned once for each save, at the same step on every rank of the job that asks. If not all ranks that ask
    report steps, or their steps do not increase, calls are counted instead: ask equally often on all of them.
    """
    directory = task_directory()
    if directory is None:
        return False
    try:
        is_due = _schedule_of(directory).ask(progress_report.newest_step())
    except OSError as error:
        progress_report.warn_once(f"ganger: should_checkpoint() is False: this rank cannot publish its count: {error}")
        return False
    if is_due:
        notice()  # a rank that saves because of a notice knows of it
    return is_due


def _schedule_of(directory: str) -> CheckpointSchedule:
    global _schedule  # noqa: PLW0603 (one of one process)
    if _schedule is None or _schedule[0] != directory:
        from ganger.train.checkpoint_schedule import CheckpointSchedule

        if _schedule is not None:
            _schedule[1].close()
            _schedule = None
        _schedule = (directory, CheckpointSchedule(directory, rank()))
    return _schedule[1]
