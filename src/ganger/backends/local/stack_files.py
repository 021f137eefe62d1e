"""Stacks of a generation's ranks, written by launchers as `rank-R.stacks`, read and grouped.

Used to show them to users, and to find the rank that is at another place than the others.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ganger.backends.local.job_files import JobFiles, read_json
from ganger.launcher_server.health.stall_messages import format_frame
from ganger.model.views.service_views import StackGroup, Stacks

MAIN: Final = "MainThread"
_FILE: Final = re.compile(r"rank-(\d+)\.stacks")
_STATES: Final = {
    "R": "running",
    "S": "asleep",
    "D": "blocked in the kernel",
    "T": "stopped",
    "t": "held by a debugger",
    "Z": "dead",
    "?": "gone",
}


@dataclass(frozen=True, slots=True)
class Frames:
    """One thread of a rank.

    is_still: its process is in a state in which it does not run at all.
    frames: as text, innermost first; empty if no Python was found.
    """

    rank: int
    node: str
    thread: str
    state: str
    is_still: bool
    frames: tuple[str, ...]
    at_ms: int


def stacks(files: JobFiles, job: str, generation: int) -> Stacks | None:
    """Return the threads grouped by stack, stopped processes apart; None if no stacks were taken."""
    threads = list(_of_generation(files, job, generation))
    if not threads:
        return None
    groups: dict[tuple[str, tuple[str, ...], str], list[Frames]] = {}
    for thread in threads:
        state = thread.state if thread.is_still or not thread.frames else ""
        groups.setdefault((thread.thread, thread.frames, state), []).append(thread)
    thread_groups = [_group(members) for members in groups.values()]
    thread_groups.sort(key=lambda group: (group.thread != MAIN, not group.frames, len(group.ranks), group.ranks))
    return Stacks(
        job=job, attempt=generation, at_ms=min(thread.at_ms for thread in threads), groups=tuple(thread_groups)
    )


def main_frames(files: JobFiles, job: str, generation: int) -> dict[int, tuple[str, ...]]:
    """Return rank -> frames of its main thread, for ranks with any."""
    threads = _of_generation(files, job, generation)
    return {thread.rank: thread.frames for thread in threads if thread.thread == MAIN and thread.frames}


def _group(threads: list[Frames]) -> StackGroup:
    first = threads[0]
    return StackGroup(
        ranks=tuple(sorted({thread.rank for thread in threads})),
        nodes=tuple(sorted({thread.node for thread in threads})),
        thread=first.thread,
        states=tuple(sorted({thread.state for thread in threads})),
        frames=first.frames,
    )


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
        is_still = process["state"] in "TDZ"
        state = _STATES.get(process["state"], process["state"])
        if process["kernel_function"] and process["state"] in "DST":
            state += f" in {process['kernel_function']}"
        for thread in process["threads"]:
            name = thread["name"] or "another thread"
            frames = tuple(format_frame(*fields) for fields in thread["frames"])
            yield Frames(rank, node, name, state, is_still, frames, at_ms)
        if not process["threads"]:
            yield Frames(rank, node, MAIN, state, is_still, (), at_ms)
