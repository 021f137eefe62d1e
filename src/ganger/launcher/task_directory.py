"""The task directory: its file names, and writes of which a crash leaves the old file or the new one.

The layout is in docs/reference/launcher-protocol.md.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress


class TaskDirectory:
    """One launcher's directory; the files of a generation are in a directory named by its number."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)  # canonical: it is the mark of left-over processes

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def plan(self, generation: int) -> str:
        return self.file(f"plan-{generation}.json")

    def generation(self, generation: int) -> str:
        return self.file(str(generation))

    def write_plan(self, generation: int, plan: object) -> None:
        """Write a plan received from the server; raise OSError."""
        write_json(self.plan(generation), plan)

    def is_cleared(self, generation: int) -> bool:
        return os.path.exists(os.path.join(self.generation(generation), "cleared"))

    def mark_cleared(self, generation: int) -> None:
        """Record that nothing of the generation is left; raise OSError if the disk is full."""
        with suppress(FileExistsError):
            os.mkdir(self.generation(generation), 0o700)  # not its parents: a deleted job stays deleted
        write_json(os.path.join(self.generation(generation), "cleared"), {"at_ms": now_ms()})

    def mark_evicted(self, generation: int) -> None:
        """Record that another program ends the launcher, as far as the disk has room: a server may be away."""
        with suppress(OSError):
            write_json(os.path.join(self.generation(generation), "evicted"), {"at_ms": now_ms()})

    def uncleared(self) -> list[int]:
        """Return the generations started here of which something may be left, oldest first."""
        started = sorted(int(name) for name in os.listdir(self.path) if name.isdigit())
        return [generation for generation in started if not self.is_cleared(generation)]


def write_json(path: str, value: object, *, sync: bool = False) -> None:
    """Replace a file atomically; `sync` makes it durable before it becomes visible. Raises OSError."""
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
    """Return the time in Unix milliseconds."""
    return int(time.time() * 1000)
