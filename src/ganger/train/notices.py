"""Whether it is time to save: a notice that the job must give way, or the clock.

The notice is a file of the launcher on each node; every rank may read it, but ranks may see it a step apart. With
several ranks, rank 0 decides by `should_checkpoint()` and broadcasts its answer.
"""

from __future__ import annotations

import os
import time

from ganger.train.surroundings import checkpoint_every_s, task_directory

_saved_at_s = time.monotonic()  # of the last checkpoint, or of the start
_answered: tuple[str, float] | None = None


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
    """True while a notice is in force that no checkpoint of this process has answered, or when it is time by
    `checkpoint.every` since the last checkpoint of this process, or since its start. Always False outside ganger.
    """
    if task_directory() is None:
        return False
    told = notice()
    if told is not None and told != _answered:
        return True
    every_s = checkpoint_every_s()
    return every_s is not None and time.monotonic() - _saved_at_s >= every_s


def saved() -> None:
    """A checkpoint of this process is complete."""
    global _saved_at_s, _answered  # noqa: PLW0603 (one clock of one process)
    _saved_at_s = time.monotonic()
    _answered = notice()
