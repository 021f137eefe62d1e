"""Which attempt of a job may publish in a checkpoint directory: the newest that has come there. What older ones save is
refused, though their processes run on where nobody reaches them. Used by `checkpoints`, `retention`, and the launcher.

Each attempt leaves one empty file there before it reads or writes anything, its marker `.attempt~TURN~ATTEMPT~JOB~UID`.
Names of jobs are given again, uids are not: a job that comes to where another one of its name was has the next turn.
The rule, what it guarantees and what not: docs/reference/failures.md, "Fencing".
"""

from __future__ import annotations

import errno
import os

from ganger.train import drafts, durable_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

PREFIX = ".attempt~"
KEPT_S = 30 * 24 * 3600
"""How long a marker stays that no newer attempt of its own job has removed. No process of an ended job lives that
long."""


class Marker:
    """That an attempt has come: `turn` counts the jobs of one name in this directory, from 1."""

    def __init__(self, turn: int, attempt: int, job: str, uid: str) -> None:
        self.turn = turn
        self.attempt = attempt
        self.job = job
        self.uid = uid

    @property
    def name(self) -> str:
        """Of its file. Those of one job sort by age."""
        return f"{PREFIX}{self.turn:06d}~{self.attempt:06d}~{self.job}~{self.uid}"


class Fence:
    """Around the directory `root`, for one attempt of a job. A process of no job has the uid "", and no fence."""

    def __init__(self, root: str, job: str, uid: str, attempt: int) -> None:
        self._root = root
        self._job = job
        self._uid = uid
        self._attempt = attempt

    def claim(self) -> None:
        """From here on no older attempt publishes anything. OSError (ESTALE) when a newer one has come already; another
        when there is no such directory, or nothing can be written there."""
        if not self._uid:
            return
        markers = list(_markers(self._root, self._job))
        self._refuse(markers)
        if not any(marker.uid == self._uid and marker.attempt == self._attempt for marker in markers):
            mine = Marker(self._turn(markers), self._attempt, self._job, self._uid)
            self._remove_older(mine, _created_s(self._root, mine.name))
            markers.append(mine)
        # After the marker: what an older one begins to write later, it is refused when it looks for markers then.
        turns = {marker.uid: marker.turn for marker in markers}
        drafts.set_aside(self._root, lambda uid, attempt: self._is_older(turns, uid, attempt))

    def check(self) -> None:
        """OSError (ESTALE) when a newer attempt has come; another when that cannot be told."""
        if self._uid:
            self._refuse(list(_markers(self._root, self._job)))

    def _refuse(self, markers: list[Marker]) -> None:
        turn = self._turn(markers)
        for marker in markers:
            if marker.turn > turn:
                self._stale(marker, f"another job of the name {self._job} has come since, and owns it")
            if marker.uid == self._uid and marker.attempt > self._attempt:
                self._stale(marker, f"attempt {marker.attempt} of {self._job} owns it, and this is {self._attempt}")

    def _stale(self, marker: Marker, owned: str) -> None:
        path = os.path.join(self._root, marker.name)
        what = f"end this process, which nobody could reach; should nothing else run of that job, remove {path}"
        raise OSError(errno.ESTALE, f"{owned}: {what}")

    def _turn(self, markers: list[Marker]) -> int:
        """That of this job; who is new here comes after all that are known."""
        mine = [marker.turn for marker in markers if marker.uid == self._uid]
        return max(mine) if mine else 1 + max((marker.turn for marker in markers), default=0)

    def _is_older(self, turns: dict[str, int], uid: str, attempt: int) -> bool:
        if uid == self._uid:
            return attempt < self._attempt
        return uid in turns and turns[uid] < turns[self._uid]

    def _remove_older(self, mine: Marker, came_s: float) -> None:
        """Attempts before this one are told from it by their numbers, as long as it has a marker. Those of other jobs
        stay for a while: by them a process of such a job is known that nobody could reach."""
        from contextlib import suppress

        for marker in _markers(self._root, None):
            path = os.path.join(self._root, marker.name)
            with suppress(OSError):
                is_before = marker.uid == mine.uid and marker.attempt < mine.attempt
                if is_before or os.stat(path).st_mtime < came_s - KEPT_S:
                    os.unlink(path)


def _markers(root: str, job: str | None) -> Iterator[Marker]:
    """Those of the jobs of this name; of all, where it is None."""
    for name in os.listdir(root):
        parts = name[len(PREFIX) :].split("~", 3)
        if name.startswith(PREFIX) and len(parts) == 4 and parts[0].isdecimal() and parts[1].isdecimal():
            marker = Marker(int(parts[0]), int(parts[1]), parts[2], parts[3])
            if job is None or marker.job == job:
                yield marker


def _created_s(root: str, name: str) -> float:
    """Have it there, and on the disk; gives when it came, by the clock of whoever keeps the files."""
    fd = os.open(os.path.join(root, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        came_s = os.fstat(fd).st_mtime
    finally:
        os.close(fd)
    durable_write.sync(root)
    return came_s
