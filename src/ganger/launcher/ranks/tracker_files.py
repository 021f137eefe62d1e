"""Checkpoints of Megatron-LM and DeepSpeed, by the file in which they record the newest: scripts need not be changed.

`latest_checkpointed_iteration.txt` contains a step, and the checkpoint is `iter_0000100`; `latest` contains the name of
the checkpoint, `global_step100`. Both are written when the checkpoint is complete. A script resumes from what they
name, so before the ranks start a file that names something missing, or a checkpoint that attempts failed on, is pointed
to the newest other one.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

TRACKERS = MEGATRON, DEEPSPEED = ("latest_checkpointed_iteration.txt", "latest")
MAX_BYTES = 200
_STEP = re.compile(r"(?:iter_|.*?)(\d{1,15})")


class Tracked:
    """A checkpoint that a tracker file names.

    flaw: why it cannot be used, "" if it can
    """

    def __init__(self, root: str, tracker: str, text: str) -> None:
        self.name = f"iter_{int(text):07d}" if tracker == MEGATRON and text.isdecimal() else text
        self.directory = os.path.join(root, self.name)
        match = _STEP.fullmatch(self.name)
        self.step = int(match[1]) if match else None
        self.flaw = "" if _has_content(self.directory) else f"{tracker} names {self.name}, which is not there"


def newest(root: str) -> tuple[str, Tracked] | None:
    """Return the tracker file that was written last, and what it names; None without one that names a step."""
    found = []
    for tracker in TRACKERS:
        path = os.path.join(root, tracker)
        try:
            with open(path, encoding="ascii") as file:
                found.append((os.fstat(file.fileno()).st_mtime_ns, tracker, file.read(MAX_BYTES).strip()))
        except (OSError, ValueError):
            continue  # not there, or something else
    if not found:
        return None
    _, tracker, text = max(found)
    if not text or "/" in text or text in (".", ".."):
        return None
    tracked = Tracked(root, tracker, text)
    return (tracker, tracked) if tracked.step is not None else None


def find(root: str, counts: Callable[[int], bool]) -> tuple[str, Tracked] | None:
    """Return the newest usable checkpoint of a step that counts, and the tracker file of its kind; None without one."""
    named = newest(root)
    if named is None:
        return None
    tracker, tracked = named
    for candidate in [tracked, *_others(root, tracker, tracked)]:
        if not candidate.flaw and candidate.step is not None and counts(candidate.step):
            return tracker, candidate
    return None


def link(root: str, tracker: str, tracked: Tracked) -> None:
    """Have a tracker file in `root` name a checkpoint of another directory; raise OSError."""
    os.makedirs(root, exist_ok=True)
    with suppress(FileExistsError):  # the launcher of another node was faster
        os.symlink(tracked.directory, os.path.join(root, tracked.name))
    _replace(os.path.join(root, tracker), str(tracked.step) if tracker == MEGATRON else tracked.name)


def repair(root: str, skipped: Collection[int]) -> tuple[Tracked | None, dict[int, str]]:
    """Point the tracker file to the newest checkpoint that can be used; return that, and the flaws of newer ones.

    Without another one the file stays. Raises OSError if it cannot be replaced.
    """
    named = newest(root)
    if named is None:
        return None, {}
    tracker, tracked = named
    flaws: dict[int, str] = {}
    for candidate in [tracked, *_others(root, tracker, tracked)]:
        flaw = candidate.flaw or ("an attempt that resumed from it failed" if candidate.step in skipped else "")
        if not flaw:
            if candidate is not tracked:
                text = str(candidate.step) if tracker == MEGATRON else candidate.name
                _replace(os.path.join(root, tracker), text)
            return candidate, flaws
        flaws[candidate.step or 0] = flaw
    return (None if tracked.flaw else tracked), flaws


def newer(root: str, step: int) -> list[str]:
    """Return the directories of the checkpoints after a step, of the kind that the newest tracker file names."""
    named = newest(root)
    if named is None:
        return []
    tracker, tracked = named
    return [other.directory for other in _of_kind(root, tracker, tracked) if (other.step or 0) > step]


def _others(root: str, tracker: str, than: Tracked) -> list[Tracked]:
    """Return the older checkpoints of the same kind, newest first."""
    others = _of_kind(root, tracker, than)
    older = [(other.step, other) for other in others if other.step is not None and other.step < (than.step or 0)]
    return [other for _, other in sorted(older, key=lambda pair: -pair[0])]


def _of_kind(root: str, tracker: str, like: Tracked) -> list[Tracked]:
    """Return all checkpoints that are named like one."""
    prefix = "iter_" if tracker == MEGATRON else re.sub(r"\d+$", "", like.name)
    names = [name for name in os.listdir(root) if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
    return [Tracked(root, DEEPSPEED, name) for name in names]


def _has_content(directory: str) -> bool:
    """Return True if there is a file with content in a directory or below it."""
    return any(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(directory) for name in names)


def _replace(path: str, text: str) -> None:
    temporary = f"{path}.ganger-{os.getpid()}"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
