"""The task directory: where its files are, and writes of which a crash leaves the old file or the new one.

Used by every part of the launcher. The layout is in docs/reference/launcher-protocol.md.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress


class TaskDirectory:
    """One launcher's directory; a generation's files are in a directory named by its number."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)  # one spelling: it is the mark by which strays are found

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def plan(self, generation: int) -> str:
        return self.file(f"plan-{generation}.json")

    def generation(self, generation: int) -> str:
        return self.file(str(generation))

    def write_plan(self, generation: int, plan: object) -> None:
        """Put a plan in place that has come over the wire. Raises OSError."""
        write_json(self.plan(generation), plan)

    def is_cleared(self, generation: int) -> bool:
        return os.path.exists(os.path.join(self.generation(generation), "cleared"))

    def mark_cleared(self, generation: int) -> None:
        """Raises OSError when the disk does not take it."""
        with suppress(FileExistsError):
            os.mkdir(self.generation(generation), 0o700)  # not what is above it: a deleted job stays deleted
        write_json(os.path.join(self.generation(generation), "cleared"), {"at_ms": now_ms()})

    def uncleared(self) -> list[int]:
        """Generations that were begun here and of which something may be left, oldest first."""
        begun = sorted(int(name) for name in os.listdir(self.path) if name.isdigit())
        return [generation for generation in begun if not self.is_cleared(generation)]


def write_json(path: str, value: object, *, sync: bool = False) -> None:
    """Replace the file at once; `sync` puts it on the disk before it is seen. Raises OSError."""
    temporary = path + ".tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if sync:
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def now_ms() -> int:
    """Unix milliseconds."""
    return int(time.time() * 1000)
