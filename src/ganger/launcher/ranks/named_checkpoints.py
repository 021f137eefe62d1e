"""Checkpoints that a script writes by itself, found by their names: `checkpoint.pattern`, `checkpoint-*` or `model.pt`.

The `*` stands for the step, and the newest is that of the greatest step. The script does not tell when one is complete:
it is taken for that if it has content, and a directory if it has files of each kind that the two before it have in
common. A script that writes over one file or directory has one checkpoint, without a step.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

COMPARED = 2
"""Older directories that a newer one is compared with."""


class Named:
    """A file or directory that may be a checkpoint.

    step: None if its name has none
    flaw: why it cannot be used, "" if it can
    version: changes while it is written
    """

    def __init__(self, path: str, step: int | None) -> None:
        self.path, self.step = path, step
        self.names: frozenset[str] = frozenset()
        size_bytes, changed_ns = 0, 0
        for name, file in _files(path):
            try:
                status = os.stat(file)
            except OSError:
                continue  # removed meanwhile
            self.names |= {re.sub(r"[-_.]?\d+", "", name)}  # one for each rank or part: their number may change
            size_bytes, changed_ns = size_bytes + status.st_size, max(changed_ns, status.st_mtime_ns)
        self.version = (path, size_bytes, changed_ns, len(self.names))
        self.saved_ms = changed_ns // 1_000_000
        self.flaw = "" if size_bytes else "it contains no data"


def find(root: str, pattern: str) -> list[Named]:
    """Return everything with such a name, newest first, of names with a step."""
    before, star, after = pattern.partition("*")
    if not star:
        return []
    name = re.compile(rf"{re.escape(before)}(\d{{1,15}}){re.escape(after)}")
    try:
        matches = [match for match in map(name.fullmatch, os.listdir(root)) if match]
    except OSError:
        return []  # there is no directory yet
    steps = sorted((int(match[1]), match[0]) for match in matches)
    found = [Named(os.path.join(root, file_name), step) for step, file_name in steps]
    for index, one in enumerate(found):
        missing = _common(older.names for older in found[max(0, index - COMPARED) : index]) - one.names
        if not one.flaw and missing:
            one.flaw = f"it has no {min(missing)}, which those before it have"
    return found[::-1]


def newest(root: str, pattern: str) -> Named | None:
    """Return the newest one, complete or not."""
    if "*" in pattern:
        return next(iter(find(root, pattern)), None)
    path = os.path.join(root, pattern)
    return Named(path, None) if os.path.exists(path) else None


def _files(path: str) -> Iterable[tuple[str, str]]:
    """Iterate over (name within the checkpoint, path) of the files of a checkpoint."""
    if not os.path.isdir(path):
        yield "", path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            yield os.path.relpath(file, path), file


def _common(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    first, *others = [*sets] or [frozenset()]
    return first.intersection(*others)
