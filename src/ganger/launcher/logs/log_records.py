"""Output of processes as one record per line: `<unix ms> <stream> <text>`.

The stream is `o` (stdout) or `e` (stderr); `O` or `E` for a piece of a line that continues in the next record of the
same stream. A process never waits for the disk (`log_file`). Secrets are masked in whole lines; in a piece, an end that
may be the beginning of a secret waits for what follows. The launcher's own messages go to launcher.log through `note`.
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
"""Reads that empty the largest pipe (1 MiB, or 2 MiB of a busy writer): no more are done once a process has ended."""


class Stream:
    """One pipe of a process, read as bytes and written as records; `letter` is "o" or "e"."""

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
        self._pending = ""  # start of an incomplete line, not yet written
        self._line_start = ""  # start of that line, as far as the tail shows it
        self._idle_at = float("inf")
        self.is_open = True
        os.set_blocking(fd, False)
        selector.register(fd, selectors.EVENT_READ, self.read)

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return self._idle_at

    def read(self) -> bool:
        """Read at most one buffer; return False if there is nothing now, or never again."""
        if not self.is_open:
            return False
        data = read_available(self._fd)
        if data is None:
            return False
        if not data:
            self._close()
            return False
        self._add(self._decode(data))
        return True

    def tick(self, now: float) -> None:
        """Write the start of a line that has not continued for a while."""
        if now >= self._idle_at:
            self._write_pending()

    def drain(self) -> None:
        """Read the rest of the pipe after the process has ended, though its children may still hold the other end."""
        for _ in range(FULL_PIPE_READS):
            if not self.read():
                break
        if self.is_open:
            self._write_pending()

    def close(self) -> None:
        if self.is_open:
            self._close()

    def last_lines(self) -> list[str]:
        """Return at most TAIL_LINES lines, the newest last."""
        lines = [*self._tail, self._line_start] if self._line_start else list(self._tail)
        return [_without_return(line) for line in lines[-TAIL_LINES:]]

    def _add(self, text: str) -> None:
        stamp = now_ms()
        first, *rest = text.split("\n")
        records: list[str] = []
        self._pending += first
        for line in rest:  # each follows a line feed, so the pending text is a whole line
            self._cut_pieces(records, stamp)
            masked = self._redaction.mask(self._pending)
            records.append(f"{stamp} {self._letter} {_without_return(masked)}\n")
            self._tail.append(self._extend_line_start(masked))
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
            self._line_start = self._extend_line_start(piece)
        self._pending = ready + self._pending

    def _write_pending(self) -> None:
        self._idle_at = float("inf")
        if ready := self._take_ready():
            self._log.write(f"{now_ms()} {self._letter.upper()} {ready}\n")
            self._line_start = self._extend_line_start(ready)

    def _take_ready(self) -> str:
        """Remove and return what of an incomplete line can be written now: up to a possible beginning of a secret."""
        masked = self._redaction.mask(self._pending)
        end = len(masked) - self._redaction.withheld(masked)
        self._pending = masked[end:]
        return masked[:end]

    def _extend_line_start(self, piece: str) -> str:
        """Return the line so far, cut to what a tail shows."""
        return (self._line_start + piece)[:TAIL_LINE_CHARACTERS]

    def _close(self) -> None:
        self._pending += self._decode(b"", final=True)
        if self._pending or self._line_start:  # an unterminated last line
            self._add("\n")
        self._idle_at = float("inf")
        self._selector.unregister(self._fd)
        os.close(self._fd)
        self.is_open = False


def read_available(fd: int) -> bytes | None:
    """Read what is available from a pipe or terminal; None if nothing now, empty if nothing ever comes again."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:  # a terminal whose other end is closed
        return b""


def note(text: str) -> None:
    """Write one line to launcher.log."""
    with suppress(OSError):  # a full disk does not stop a job
        sys.stderr.write(f"{now_ms()} {text}\n")
        sys.stderr.flush()


def _without_return(line: str) -> str:
    return line[:-1] if line.endswith("\r") else line
