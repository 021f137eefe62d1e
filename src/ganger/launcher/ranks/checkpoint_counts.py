"""Counts of `should_checkpoint()` calls of the ranks here, and the checkpoint schedule that they follow.

The server asks for the counts, proposes from which count on another schedule holds, and makes it hold once every
launcher of the gang has published the proposal before any of its ranks had come that far.
`ganger.train.checkpoint_schedule` explains why that suffices.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from ganger.launcher.logs.log_records import note
from ganger.train.checkpoint_schedule import FILE, MOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.protocol.link import MessageSender

POLL_S = 1.0
OPEN_S = 20.0
"""Maximum time for which a proposal stays open.

The server decides within seconds; one that was restarted meanwhile is back by then, before waiting ranks would look
hung.
"""
PREFIX, SUFFIX = "rank-", ".calls"
RECORD_BYTES = 16
UNITS = ("step", "call")


def counts_file_name(rank: int) -> str:
    """Return the name of the file with a rank's counts."""
    return f"{PREFIX}{rank}{SUFFIX}"


class CheckpointCounts:
    """The counts in the directory of one generation; with `polls` the server learns when ranks begin to call."""

    def __init__(self, directory: str, sender: MessageSender, *, polls: bool, now: float) -> None:
        self._directory = directory
        self._sender = sender
        self._polls = polls
        self._poll_at = now + POLL_S
        self._files: dict[int, int] = {}  # rank -> descriptor of its counts
        self._last_sent: tuple[int, int] = (0, 0)
        self._id = 0
        self._segments: list[list[Any]] = []
        self._pending: tuple[int, str, int] | None = None
        self._pending_until = float("inf")
        self._version = 0
        self._is_written = True
        self.announce()

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return self._poll_at if self._polls or not self._is_written else self._pending_until

    def notice(self, now: float) -> None:
        """Tell the server how far the ranks are, and from now on when they begin to call: they are asked to save."""
        self._polls, self._poll_at = True, now + POLL_S
        self.announce()

    def tick(self, now: float) -> None:
        """Tell the server when ranks have begun to call, or to report steps; withdraw a proposal left undecided."""
        if now >= self._pending_until and self._pending is not None:
            note(f"withdrew checkpoint proposal {self._pending[0]}: no server decided it within {OPEN_S:g} s")
            self._resolve()
        if now < self._poll_at:
            return
        self._poll_at = now + POLL_S
        if not self._is_written:
            self._write()
        counts = self._counts() if self._polls else {}
        if counts and (counts["calling_ranks"], counts["stepping_ranks"]) != self._last_sent:
            self._tell_counts(0, counts)

    def announce(self) -> None:
        """Repeat the counts to a newly connected server."""
        self._tell_counts(0, self._counts())

    def handle(self, message: dict[str, Any], now: float) -> None:
        """Handle a message from the server; raise ValueError if it does not fit the protocol."""
        if message["type"] == "agree":
            self._accept(_check_count(message["id"]), _check_segments(message["segments"]))
            return
        number = _check_count(message["id"])
        if message["type"] == "withdraw":
            if self._pending is not None and self._pending[0] == number:
                self._resolve()
            return
        if message["type"] == "propose":
            if message["unit"] not in UNITS:
                raise ValueError(f"{message['unit']!r} is not a unit")
            self._propose(number, message["unit"], _check_count(message["begin"]), now)
        self._tell_counts(number, self._counts())

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._polls, self._is_written, self._pending_until = False, True, float("inf")

    def _propose(self, number: int, unit: str, begin: int, now: float) -> None:
        """Publish a proposal, before the counts in the answer are read."""
        if number <= self._id or (self._pending is not None and number <= self._pending[0]):
            return
        self._pending, self._pending_until = (number, unit, begin), now + OPEN_S
        self._write()
        if not self._is_written:
            self._resolve()

    def _accept(self, number: int, segments: list[list[Any]]) -> None:
        if number <= self._id:
            return
        self._id, self._segments = number, segments
        if self._pending is not None and self._pending[0] <= number:
            self._pending, self._pending_until = None, float("inf")
        self._write()

    def _resolve(self) -> None:
        self._pending, self._pending_until = None, float("inf")
        self._write()

    def _write(self) -> None:
        """Replace the file that ranks read; its modification time is its version."""
        self._version += 1
        path = os.path.join(self._directory, FILE)
        pending = None if self._pending is None else [self._pending[1], self._pending[2]]
        try:
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                json.dump({"segments": self._segments, "pending": pending}, file)
            os.utime(path + ".tmp", (self._version, self._version))
            os.replace(path + ".tmp", path)
        except OSError as error:
            if self._is_written:
                note(f"cannot write the checkpoint schedule: {error.strerror}")
            self._is_written = False
        else:
            self._is_written = True

    def _tell_counts(self, number: int, counts: dict[str, Any]) -> None:
        self._last_sent = (counts["calling_ranks"], counts["stepping_ranks"])
        pending = 0 if self._pending is None else self._pending[0]
        schedule = {"id": self._id, "segments": self._segments}
        self._sender.send_state("checkpoint_counts", reply_to=number, pending=pending, schedule=schedule, **counts)

    def _counts(self) -> dict[str, Any]:
        self._find()
        records = [_read_record(file) for file in self._files.values() if not _is_over(file)]
        calls = [record[0] for record in records if record is not None]
        steps = [record[1] for record in records if record is not None and record[1] >= 0]
        step, call = max(steps, default=None), max(calls, default=0)
        return {"calling_ranks": len(calls), "stepping_ranks": len(steps), "step": step, "call": call}

    def _find(self) -> None:
        try:
            names = os.listdir(self._directory)
        except OSError:
            return
        for name in names:
            rank = name[len(PREFIX) : -len(SUFFIX)]
            if name.startswith(PREFIX) and name.endswith(SUFFIX) and rank.isdecimal() and int(rank) not in self._files:
                with suppress(OSError):  # already removed, or not a regular file
                    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK  # over NFS an exclusive lock needs write access
                    self._files[int(rank)] = os.open(os.path.join(self._directory, name), flags)


def _is_over(file: int) -> bool:
    """Return True if no process holds the lock on these counts: the one that published them has ended.

    A rank that takes the lock afterwards reads the schedule later still, and sees earlier proposals.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is held, or the file system has no locks
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def _read_record(file: int) -> tuple[int, int] | None:
    """Return the calls and the step that a rank has published; None before its first call, or if invalid."""
    try:
        record = os.pread(file, RECORD_BYTES, 0)
    except OSError:
        return None
    call, step = int.from_bytes(record[:8], "little"), int.from_bytes(record[8:], "little", signed=True)
    return (call, step) if len(record) == RECORD_BYTES and 0 < call <= MOST and step <= MOST else None


def _check_segments(value: object) -> list[list[Any]]:
    segments: list[Any] = value if isinstance(value, list) else [value]
    for segment in segments:
        if not isinstance(segment, list) or len(segment) != 4 or segment[0] not in UNITS:
            raise ValueError(f"{segment!r} is not a segment of a checkpoint schedule")
        for number in segment[1:]:
            _check_count(number)
    return segments


def _check_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise ValueError(f"{value!r} is not a whole number from 0")
    return value
