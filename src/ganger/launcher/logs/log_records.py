"""What processes print, a record a line: `<unix ms> <stream> <text>`.

The stream is `o` (stdout) or `e` (stderr); `O` or `E` for a piece of a line that goes on in the next record of the
same stream. A process never waits for the disk (`log_file`). Secrets are masked in whole lines; of a piece, an end that
may be the beginning of a secret waits for what follows. Used by `process`; the launcher's own words go to launcher.log
through `note`.
"""

from __future__ import annotations

import codecs
import os
import selectors
import sys
import time
from collections import deque
from contextlib import suppress

from ganger.launcher.task_directory import now_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.logs.log_file import LogFile
    from ganger.launcher.logs.redaction import Redaction
    from ganger.launcher.logs.stdout_mirror import MirroredLog

PIECE_CHARACTERS = 16 * 1024
IDLE_S = 0.2
READ_BYTES = 64 * 1024
TAIL_LINES = 20
TAIL_LINE_CHARACTERS = 1000
FULL_PIPE_READS = 32
"""Reads that empty the largest pipe (1 MiB, or 2 MiB on a busy writer): an ended process is not waited for longer."""


class Stream:
    """One pipe of a process, from its bytes to records. `letter` is "o" or "e"."""

    def __init__(
        self, fd: int, letter: str, log: LogFile | MirroredLog, selector: selectors.BaseSelector, redaction: Redaction
    ) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._fd = fd
        self._letter = letter
        self._log = log
        self._selector = selector
        self._redaction = redaction
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""  # of a line without an end, not yet written
        self._line_start = ""  # of that line, as far as the tail shows it
        self._idle_at = float("inf")
        self.is_open = True
        os.set_blocking(fd, False)
        selector.register(fd, selectors.EVENT_READ, self.read)

    @property
    def due(self) -> float:
        """When `tick` has something to do, in monotonic seconds."""
        return self._idle_at

    def read(self) -> bool:
        """Take what is there, at most one buffer. False when there is nothing now, or never again."""
        if not self.is_open:
            return False
        data = taken(self._fd)
        if data is None:
            return False
        if not data:
            self._close()
            return False
        self._take(self._decode(data))
        return True

    def tick(self, now: float) -> None:
        """Write the start of a line that has not gone on for a while."""
        if now >= self._idle_at:
            self._write_pending()

    def drain(self) -> None:
        """The process ended: take what is in the pipe, though children of it may still hold the other end."""
        for _ in range(FULL_PIPE_READS):
            if not self.read():
                break
        if self.is_open:
            self._write_pending()

    def close(self) -> None:
        if self.is_open:
            self._close()

    def last_lines(self) -> list[str]:
        """At most TAIL_LINES, the newest last."""
        lines = [*self._tail, self._line_start] if self._line_start else list(self._tail)
        return [_without_return(line) for line in lines[-TAIL_LINES:]]

    def _take(self, text: str) -> None:
        stamp = now_ms()
        first, *others = text.split("\n")
        records: list[str] = []
        self._pending += first
        for line in others:  # each begins after a line feed: what is pending is a whole line
            self._cut_pieces(records, stamp)
            whole = self._redaction.mask(self._pending)
            records.append(f"{stamp} {self._letter} {_without_return(whole)}\n")
            self._tail.append(self._seen(whole))
            self._line_start = ""
            self._pending = line
        self._cut_pieces(records, stamp)
        if records:
            self._log.write("".join(records))
        self._idle_at = time.monotonic() + IDLE_S if self._pending else float("inf")

    def _cut_pieces(self, records: list[str], stamp: int) -> None:
        if len(self._pending) <= PIECE_CHARACTERS:
            return
        ready = self._take_ready()
        while len(ready) > PIECE_CHARACTERS:
            piece, ready = ready[:PIECE_CHARACTERS], ready[PIECE_CHARACTERS:]
            records.append(f"{stamp} {self._letter.upper()} {piece}\n")
            self._line_start = self._seen(piece)
        self._pending = ready + self._pending

    def _write_pending(self) -> None:
        self._idle_at = float("inf")
        if ready := self._take_ready():
            self._log.write(f"{now_ms()} {self._letter.upper()} {ready}\n")
            self._line_start = self._seen(ready)

    def _take_ready(self) -> str:
        """What of a line that goes on can be written now: no secret begins there that is not whole."""
        masked = self._redaction.mask(self._pending)
        end = len(masked) - self._redaction.withheld(masked)
        self._pending = masked[end:]
        return masked[:end]

    def _seen(self, piece: str) -> str:
        """The line so far, cut to what a tail shows."""
        return (self._line_start + piece)[:TAIL_LINE_CHARACTERS]

    def _close(self) -> None:
        self._pending += self._decode(b"", final=True)
        if self._pending or self._line_start:  # a line that never got its end
            self._take("\n")
        self._idle_at = float("inf")
        self._selector.unregister(self._fd)
        os.close(self._fd)
        self.is_open = False


def taken(fd: int) -> bytes | None:
    """What can be read from a pipe or a terminal at once: None when that is nothing now, empty when nothing comes any
    more."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:  # of a terminal that nobody has open any more
        return b""


def note(text: str) -> None:
    """One line of launcher.log."""
    with suppress(OSError):  # a full disk does not stop a job
        sys.stderr.write(f"{now_ms()} {text}\n")
        sys.stderr.flush()


def _without_return(line: str) -> str:
    return line[:-1] if line.endswith("\r") else line
