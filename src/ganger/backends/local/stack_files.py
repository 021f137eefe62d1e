"""The stacks that launchers wrote of a generation's ranks, `rank-R.stacks`, read and put together. Called by `backend`
for whoever wants to see them, and by `hang`, which looks for the rank that is elsewhere than the others.
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
    """One thread of a rank: its frames as text, the innermost first; none where no Python was found; whether its
    process is in a state in which it does nothing at all."""

    rank: int
    node: str
    thread: str
    state: str
    is_still: bool
    frames: tuple[str, ...]
    at_ms: int


def stacks(layout: JobFiles, job: str, generation: int) -> Stacks | None:
    """Threads that are at the same place once, with the ranks that have them, those that stand still by themselves;
    None when none were taken."""
    found = list(_of_generation(layout, job, generation))
    if not found:
        return None
    groups: dict[tuple[str, tuple[str, ...], str], list[Frames]] = {}
    for each in found:
        own = each.state if each.is_still or not each.frames else ""
        groups.setdefault((each.thread, each.frames, own), []).append(each)
    told = [_group(same) for same in groups.values()]
    told.sort(key=lambda group: (group.thread != MAIN, not group.frames, len(group.ranks), group.ranks))
    return Stacks(job=job, attempt=generation, at_ms=min(each.at_ms for each in found), groups=tuple(told))


def places(layout: JobFiles, job: str, generation: int) -> dict[int, tuple[str, ...]]:
    """Where the first thread of each rank is: its frames; of ranks that have any."""
    found = _of_generation(layout, job, generation)
    return {each.rank: each.frames for each in found if each.thread == MAIN and each.frames}


def _group(same: list[Frames]) -> StackGroup:
    first = same[0]
    return StackGroup(
        ranks=tuple(sorted({each.rank for each in same})),
        nodes=tuple(sorted({each.node for each in same})),
        thread=first.thread,
        states=tuple(sorted({each.state for each in same})),
        frames=first.frames,
    )


def _of_generation(layout: JobFiles, job: str, generation: int) -> Iterator[Frames]:
    for task in layout.tasks(job):
        for path in sorted(task.generation(generation).glob("rank-*.stacks")):
            match, record = _FILE.fullmatch(path.name), read_json(path)
            if match and record:
                with suppress(KeyError, TypeError, ValueError, AttributeError):  # a rank may have written it instead
                    yield from tuple(_of_rank(int(match[1]), task.path.name, record))


def _of_rank(rank: int, node: str, record: dict[str, Any]) -> Iterator[Frames]:
    at_ms = record["at_ms"]
    for process in record["processes"]:
        still = process["state"] in "TDZ"
        state = _STATES.get(process["state"], process["state"])
        if process["kernel"] and process["state"] in "DST":
            state += f" in {process['kernel']}"
        for thread in process["threads"]:
            name = thread["name"] or "another thread"
            frames = tuple(format_frame(*each) for each in thread["frames"])
            yield Frames(rank, node, name, state, still, frames, at_ms)
        if not process["threads"]:
            yield Frames(rank, node, MAIN, state, still, (), at_ms)
