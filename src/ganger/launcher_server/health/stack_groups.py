"""Stacks of the ranks of a generation, grouped: to show them, and to see which rank is elsewhere than the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ganger.model.views.service_views import StackGroup, Stacks

MAIN: Final = "MainThread"
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

    state: of its process, as the kernel names it: a letter.
    kernel_function: where the process sleeps in the kernel, empty if that is unknown.
    frames: as text, innermost first; empty if no Python was found.
    """

    rank: int
    node: str
    thread: str
    state: str
    kernel_function: str
    frames: tuple[str, ...]
    at_ms: int

    @property
    def state_text(self) -> str:
        """The state in words."""
        text = _STATES.get(self.state, self.state)
        is_asleep = self.kernel_function and self.state in ("D", "S", "T")
        return f"{text} in {self.kernel_function}" if is_asleep else text


def group_stacks(job: str, generation: int, threads: Sequence[Frames]) -> Stacks | None:
    """Return the threads grouped by stack, processes that do not run at all apart; None if there are no threads."""
    if not threads:
        return None
    groups: dict[tuple[str, tuple[str, ...], str], list[Frames]] = {}
    for thread in threads:
        state = thread.state_text if thread.state in ("T", "D", "Z") or not thread.frames else ""
        groups.setdefault((thread.thread, thread.frames, state), []).append(thread)
    thread_groups = [_group(members) for members in groups.values()]
    thread_groups.sort(key=lambda group: (group.thread != MAIN, not group.frames, len(group.ranks), group.ranks))
    return Stacks(
        job=job, attempt=generation, at_ms=min(thread.at_ms for thread in threads), groups=tuple(thread_groups)
    )


def _group(threads: list[Frames]) -> StackGroup:
    first = threads[0]
    return StackGroup(
        ranks=tuple(sorted({thread.rank for thread in threads})),
        nodes=tuple(sorted({thread.node for thread in threads})),
        thread=first.thread,
        states=tuple(sorted({thread.state_text for thread in threads})),
        frames=first.frames,
    )
