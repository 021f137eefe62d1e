"""One rank's view of the gang's checkpoint schedule: count the calls, publish the count, read the schedule.

All ranks of a gang give the same answer at the same count. This rests on the order of two accesses. A rank writes its
count (`rank-R.calls`) *before* it reads the schedule (`schedule.json`); the launcher replaces the schedule *before* it
reads the counts. So if the launcher publishes a proposal and afterwards still reads a count below the proposal's
`begin`, that rank is certain to see the proposal when it reaches `begin`, and to wait there until the proposal is
withdrawn or becomes part of the schedule. Only launchers have to answer; ranks acknowledge nothing.

A rank waits only at `begin` or beyond, and a proposal is accepted only while no rank is that far. Ranks that exchange
data in each step can therefore all still reach `begin`, and the launchers and the server, which decide the proposal,
wait for no rank: there is no deadlock.

Counts belong to one process. It holds a lock on their file until it ends, by which the launcher detects counts of
processes that have ended; the next program of the rank starts at zero, as on all other ranks.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FILE = "schedule.json"
NO_STEP = -1
MOST = (1 << 53) - 1
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.01
WAIT_LIMIT_S = 60.0
"""Longer than a launcher leaves a proposal open, unless its disk is full."""


class CheckpointSchedule:
    """The schedule as one process follows it.

    Opening it and asking raise OSError if the count cannot be published: a launcher that does not know the count could
    let other ranks get another answer.
    """

    def __init__(self, directory: str, rank: int) -> None:
        self._path = os.path.join(directory, FILE)
        counts = os.path.join(directory, f"rank-{rank}.calls")
        self._counts = os.open(counts, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _lock(self._counts)
        self._calls = 0
        self._step = NO_STEP
        self._step_before = NO_STEP  # saves due up to this step have been announced to the rank
        self._rises = True
        self._version = 0
        self._segments: Sequence[Sequence[Any]] = ()  # [unit, begin, first, every]: docs/reference/launcher-protocol.md
        self._pending: Sequence[Any] | None = None

    def ask(self, step: int) -> bool:
        """Count a call after `step` was reported (NO_STEP: none was); return True if all ranks are to save now."""
        self.count(step)
        self.read()
        give_up_at, pause_s = None, FIRST_PAUSE_S
        while self.waits:
            give_up_at = give_up_at or time.monotonic() + WAIT_LIMIT_S
            if time.monotonic() >= give_up_at:
                self._pending = None
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self.read()
        return self.answer()

    def count(self, step: int) -> None:
        """Publish one more call."""
        self._calls += 1
        if not NO_STEP <= step <= MOST or step < self._step:
            self._rises = False  # steps that restart, for example with each epoch, do not measure progress
        if not self._rises:
            step = NO_STEP
        if self._step == NO_STEP:
            self._step_before = step - 1
        self._step = step
        record = self._calls.to_bytes(8, "little") + self._step.to_bytes(8, "little", signed=True)
        os.pwrite(self._counts, record, 0)

    def read(self) -> None:
        """Read the schedule if its modification time, a version number set by the launcher, has changed."""
        try:
            if os.stat(self._path).st_mtime_ns == self._version:
                return
            import json

            with open(self._path, "rb") as file:
                version = os.fstat(file.fileno()).st_mtime_ns
                schedule = json.load(file)
        except FileNotFoundError:
            return
        self._version, self._segments, self._pending = version, schedule["segments"], schedule["pending"]

    @property
    def waits(self) -> bool:
        """True while an open proposal could change the answer."""
        return self._pending is not None and self._reached(self._pending)

    def answer(self) -> bool:
        """Return True if all ranks are to save at this call.

        Each save is announced once, whether or not this rank makes one: the other ranks cannot know that.
        """
        calls = self._is_due("call", self._calls - 1, self._calls)
        steps = self._is_due("step", self._step_before, self._step)
        self._step_before = self._step
        return calls or steps

    def close(self) -> None:
        os.close(self._counts)

    def _is_due(self, unit: str, before: int, count: int) -> bool:
        """Return True if a save is due after the count `before`, at which the last answer was given, up to `count`."""
        for index, (measure, begin, first, every) in enumerate(self._segments):
            if measure != unit or begin > count:
                continue
            # Any later segment ends it: once steps have restarted, a segment by steps that was in force is not reached.
            later = [segment for segment in self._segments[index + 1 :] if self._reached(segment)]
            if any(segment[0] != unit for segment in later):
                continue  # its end in this unit is unknown
            last = min([count, *(segment[1] - 1 for segment in later)])
            newest = last - (last - first) % every if every else first
            if first <= last and newest > before:
                return True
        return False

    def _reached(self, segment: Sequence[Any]) -> bool:
        begin: int = segment[1]
        return (self._step if segment[0] == "step" else self._calls) >= begin


def _lock(file: int) -> None:
    """Lock the counts until this process ends; without locks the launcher considers it to be running for ever."""
    import fcntl
    from contextlib import suppress

    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)  # waits at most for a launcher that is testing the lock
