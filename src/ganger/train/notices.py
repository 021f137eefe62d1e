"""The moment to save: a notice that the job must give way, or `checkpoint.every`; one answer for all ranks.

The notice is a file of the launcher on each node. `should_checkpoint()` follows the gang's schedule
(`checkpoint_schedule`), on which the server and the launchers agree.
"""

from __future__ import annotations

import os

from ganger.train import progress_report
from ganger.train.launcher_environment import rank, task_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.train.checkpoint_schedule import CheckpointSchedule

_schedule: tuple[str, CheckpointSchedule] | None = None  # of which directory


def notice() -> tuple[str, float] | None:
    """(cause, deadline) while this job has been told to give way; the deadline in unix seconds, as `time.time()`."""
    directory = task_directory()
    if directory is None:
        return None
    try:
        with open(os.path.join(directory, "notice"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return None
    import json

    found = json.loads(text)
    return found["cause"], found["deadline_ms"] / 1000


def should_checkpoint() -> bool:
    """True when it is time to save, by `checkpoint.every` or because of a notice: once for each save, at the same step
    on every rank of the job that asks. Always False outside ganger.

    Where not all ranks that ask report steps, or their steps do not rise, calls are counted instead: ask equally often
    on all of them.
    """
    directory = task_directory()
    if directory is None:
        return False
    try:
        return _schedule_of(directory).ask(progress_report.newest_step())
    except OSError as error:
        progress_report.warn_once(f"ganger: should_checkpoint() is False: this rank cannot tell how far it is: {error}")
        return False


def _schedule_of(directory: str) -> CheckpointSchedule:
    global _schedule  # noqa: PLW0603 (one of one process)
    if _schedule is None or _schedule[0] != directory:
        from ganger.train.checkpoint_schedule import CheckpointSchedule

        if _schedule is not None:
            _schedule[1].close()
            _schedule = None
        _schedule = (directory, CheckpointSchedule(directory, rank()))
    return _schedule[1]
