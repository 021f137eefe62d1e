"""Stacks of a generation's ranks, as launchers write them on this machine: files `rank-R.stacks`."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from ganger.backends.local.job_files import JobFiles, read_json
from ganger.launcher_server.health.stack_groups import MAIN, Frames, group_stacks
from ganger.launcher_server.health.stall_messages import format_frame
from ganger.model.views.service_views import Stacks

_FILE: Final = re.compile(r"rank-(\d+)\.stacks")


def stacks(files: JobFiles, job: str, generation: int) -> Stacks | None:
    """Return the threads grouped by stack, stopped processes apart; None if no stacks were taken."""
    return group_stacks(job, generation, list(_of_generation(files, job, generation)))


def main_frames(files: JobFiles, job: str, generation: int) -> dict[int, tuple[str, ...]]:
    """Return rank -> frames of its main thread, for ranks with any."""
    threads = _of_generation(files, job, generation)
    return {thread.rank: thread.frames for thread in threads if thread.thread == MAIN and thread.frames}


def _of_generation(files: JobFiles, job: str, generation: int) -> Iterator[Frames]:
    for task in files.tasks(job):
        for path in sorted(task.generation(generation).glob("rank-*.stacks")):
            match, record = _FILE.fullmatch(path.name), read_json(path)
            if match and record:
                with suppress(KeyError, TypeError, ValueError, AttributeError):  # a rank may have overwritten the file
                    yield from tuple(_of_rank(int(match[1]), task.path.name, record))


def _of_rank(rank: int, node: str, record: dict[str, Any]) -> Iterator[Frames]:
    at_ms = record["at_ms"]
    for process in record["processes"]:
        state, kernel_function = str(process["state"]), str(process["kernel_function"] or "")
        for thread in process["threads"]:
            name = thread["name"] or "another thread"
            frames = tuple(format_frame(*fields) for fields in thread["frames"])
            yield Frames(rank, node, name, state, kernel_function, frames, at_ms)
        if not process["threads"]:
            yield Frames(rank, node, MAIN, state, kernel_function, (), at_ms)
