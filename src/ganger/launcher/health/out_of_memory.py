"""Detection of processes that the kernel killed for lack of memory.

The kernel only counts such kills: of the control group if it tells (memory.events, memory.oom_control:
Documentation/admin-guide/cgroup-v2.rst), else of the whole machine (/proc/vmstat). A kill is attributed to memory if
the count has risen shortly before. Without a counter the answer is no.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_S = 5.0
"""Interval of readings of the count; a rise since the reading before the last counts."""
SIGKILL = 9
KILLED = ("SIGKILL", "signal: Killed", "signal 9", "exited unexpectedly", "terminated abruptly")
"""Messages of a process whose child was killed."""


class OutOfMemory:
    """The kernel's count of kills; `root` is the directory that contains /proc and /sys."""

    def __init__(self, now: float, root: str = "/") -> None:
        self._path = next((path for path in _counter_paths(root) if _read_kills(path) is not None), "")
        self._before = self._last = self._count()
        self._poll_at = now + POLL_S

    def tick(self, now: float) -> None:
        """Read the count from time to time, so that an old kill of another process explains nothing."""
        if now >= self._poll_at:
            self._poll_at = now + POLL_S
            self._before, self._last = self._last, self._count()

    def explains(self, exit_status: dict[str, Any], error: dict[str, Any] | None) -> bool:
        """Return True if a rank that ended like that was, or lost, a process that the kernel killed."""
        is_reported = error is not None and any(words in error["message"] for words in KILLED)
        is_killed = exit_status.get("signal") == SIGKILL or exit_status.get("exit_code") == 128 + SIGKILL
        return (is_killed or is_reported) and self._count() > self._before

    def _count(self) -> int:
        return _read_kills(self._path) or 0 if self._path else 0


def _counter_paths(root: str) -> list[str]:
    """Return files that may have the count, the most specific first."""
    paths = []
    try:
        with open(f"{root}proc/self/cgroup", encoding="utf-8") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        groups = []
    for number, controllers, path in (group for group in groups if len(group) == 3):
        if number == "0":
            paths.append(f"{root}sys/fs/cgroup{path.rstrip('/')}/memory.events")
        elif "memory" in controllers.split(","):
            paths.append(f"{root}sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control")
    return [*paths, f"{root}proc/vmstat"]


def _read_kills(path: str) -> int | None:
    """Return the count in a file; None if it has none, or cannot be read."""
    try:
        with open(path, "rb") as file:
            counts = [line.split()[1] for line in file if line.startswith(b"oom_kill ")]
    except OSError:
        return None
    return int(counts[0]) if counts else None
