"""Fencing of checkpoint directories: only the newest attempt of a job may publish there.

Checkpoints of older attempts are refused even if their processes still run somewhere unreachable. Each attempt creates
one empty file there before it reads or writes anything, its marker `.attempt~TURN~ATTEMPT~JOB~UID`. Job names are
reused, uids are not: a job whose name an earlier job had in this directory takes the next turn.
docs/how-to/failures.md, "Fencing", has the rule and its guarantees."""

from __future__ import annotations

import errno
import os

from ganger.train import drafts, durable_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

PREFIX = ".attempt~"
KEPT_S = 30 * 24 * 3600
"""Age after which a marker of another job is removed; no process of an ended job lives that long."""


class Marker:
    """Record that an attempt has started; `turn` counts the jobs of one name in this directory, from 1."""

    def __init__(self, turn: int, attempt: int, job: str, uid: str) -> None:
        self.turn = turn
        self.attempt = attempt
        self.job = job
        self.uid = uid

    @property
    def name(self) -> str:
        """Name of the marker's file; the markers of one job sort by age."""
        return f"{PREFIX}{self.turn:06d}~{self.attempt:06d}~{self.job}~{self.uid}"


class Fence:
    """The fence around the directory `root` for one attempt of a job; outside a job uid is "", without a fence."""

    def __init__(self, root: str, job: str, uid: str, attempt: int) -> None:
        self._root = root
        self._job = job
        self._uid = uid
        self._attempt = attempt

    def claim(self) -> None:
        """Keep older attempts from publishing anything from now on.

        Raises OSError with ESTALE if a newer attempt has already claimed it, another OSError if the directory does not
        exist or is not writable.
        """
        if not self._uid:
            return
        markers = list(_markers(self._root, self._job))
        stale = self._stale_error(markers)
        if not stale and not any(marker.uid == self._uid and marker.attempt == self._attempt for marker in markers):
            mine = Marker(self._turn(markers), self._attempt, self._job, self._uid)
            self._remove_older(mine, _create_marker(self._root, mine.name))
            markers.append(mine)
        # After the marker: an older attempt that creates a draft later sees the marker when it checks. Also where this
        # attempt is refused: it may read, and the newer one may not have come to the drafts yet.
        turns = {marker.uid: marker.turn for marker in markers}
        drafts.set_aside(self._root, lambda uid, attempt: self._is_older(turns, uid, attempt))
        if stale:
            raise stale

    def is_new(self) -> bool:
        """Return True if no attempt of this job has claimed the directory."""
        return not os.path.isdir(self._root) or all(
            marker.uid != self._uid for marker in _markers(self._root, self._job)
        )

    def check(self) -> None:
        """Raise OSError, with ESTALE if a newer attempt has claimed the directory, else because that is unknown."""
        stale = self._stale_error(list(_markers(self._root, self._job))) if self._uid else None
        if stale:
            raise stale

    def _stale_error(self, markers: list[Marker]) -> OSError | None:
        """Return the error of an attempt that one of these markers fences off; None if none does."""
        turn = self._turn(markers)
        for marker in markers:
            if marker.turn > turn:
                owner = f"a later job named {self._job} owns it"
            elif marker.uid == self._uid and marker.attempt > self._attempt:
                owner = f"attempt {marker.attempt} of {self._job} owns it, and this is attempt {self._attempt}"
            else:
                continue
            path = os.path.join(self._root, marker.name)
            advice = f"end this process, which could not be reached; if nothing else of that job runs, remove {path}"
            return OSError(errno.ESTALE, f"{owner}: {advice}")
        return None

    def _turn(self, markers: list[Marker]) -> int:
        """Return the turn of this job; a job that is new here takes the turn after all known ones."""
        mine = [marker.turn for marker in markers if marker.uid == self._uid]
        return max(mine) if mine else 1 + max((marker.turn for marker in markers), default=0)

    def _is_older(self, turns: dict[str, int], uid: str, attempt: int) -> bool:
        if uid == self._uid:
            return attempt < self._attempt
        return uid in turns and turns[uid] < turns[self._uid]

    def _remove_older(self, mine: Marker, created_s: float) -> None:
        """Remove the markers of earlier attempts of this job, whose number already tells that they are older.

        Markers of other jobs stay for a while: they identify processes of such a job that could not be reached.
        """
        from contextlib import suppress

        for marker in _markers(self._root, None):
            path = os.path.join(self._root, marker.name)
            with suppress(OSError):
                is_before = marker.uid == mine.uid and marker.attempt < mine.attempt
                if is_before or os.stat(path).st_mtime < created_s - KEPT_S:
                    os.unlink(path)


def _markers(root: str, job: str | None) -> Iterator[Marker]:
    """Yield the markers of the jobs of this name; of all jobs if it is None."""
    for name in os.listdir(root):
        parts = name[len(PREFIX) :].split("~", 3)
        if name.startswith(PREFIX) and len(parts) == 4 and parts[0].isdecimal() and parts[1].isdecimal():
            marker = Marker(int(parts[0]), int(parts[1]), parts[2], parts[3])
            if job is None or marker.job == job:
                yield marker


def _create_marker(root: str, name: str) -> float:
    """Create a marker durably; return its creation time by the clock of the file server."""
    fd = os.open(os.path.join(root, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        created_s = os.fstat(fd).st_mtime
    finally:
        os.close(fd)
    durable_write.sync(root)
    return created_s
