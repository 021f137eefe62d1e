"""Whether the kernel ended a process for want of memory. Called by `generation`.

Nobody is told so: the kernel counts such kills, of the control group where it tells (memory.events, memory.oom_control:
Documentation/admin-guide/cgroup-v2.rst), else of the whole machine (/proc/vmstat). A kill is one of these when the
count has risen shortly before. Where nothing counts, the answer is no.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOK_S = 5.0
"""Between two notes of the count; what counts is the rise since the one before the last."""
SIGKILL = 9
KILLED = ("SIGKILL", "signal: Killed", "signal 9", "exited unexpectedly", "terminated abruptly")
"""How a process says that one of its children was killed."""


class OutOfMemory:
    """The count of kills. `root`: where /proc and /sys are."""

    def __init__(self, now: float, root: str = "/") -> None:
        self._path = next((path for path in _places(root) if _kills(path) is not None), "")
        self._before = self._last = self._count()
        self._look_at = now + LOOK_S

    def tick(self, now: float) -> None:
        """Note the count from time to time, so that the kill of somebody else, long ago, explains nothing."""
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._before, self._last = self._last, self._count()

    def explains(self, how: dict[str, Any], error: dict[str, Any] | None) -> bool:
        """Whether a rank that ended like that was, or lost, a process that the kernel ended."""
        told = error is not None and any(words in error["message"] for words in KILLED)
        killed = how.get("signal") == SIGKILL or how.get("exit_code") == 128 + SIGKILL
        return (killed or told) and self._count() > self._before

    def _count(self) -> int:
        return _kills(self._path) or 0 if self._path else 0


def _places(root: str) -> list[str]:
    """Files that may have the count, the nearest first."""
    places = []
    try:
        with open(f"{root}proc/self/cgroup", encoding="utf-8") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        groups = []
    for number, controllers, path in (group for group in groups if len(group) == 3):
        if number == "0":
            places.append(f"{root}sys/fs/cgroup{path.rstrip('/')}/memory.events")
        elif "memory" in controllers.split(","):
            places.append(f"{root}sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control")
    return [*places, f"{root}proc/vmstat"]


def _kills(path: str) -> int | None:
    """The count in such a file; None when it has none, or cannot be read."""
    try:
        with open(path, "rb") as file:
            found = [line.split()[1] for line in file if line.startswith(b"oom_kill ")]
    except OSError:
        return None
    return int(found[0]) if found else None
