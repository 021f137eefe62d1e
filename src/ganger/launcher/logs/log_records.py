"""Output of processes as one record per line: `<unix ms> <stream> <text>`.

The stream is `o` (stdout) or `e` (stderr); `O` or `E` for a piece of a line that continues in the next record of the
same stream; `u` or `v` for the current text of a line that has not ended, such as a progress bar, at most one every
UPDATE_S. Text before a carriage return is replaced by the text after it, as on a terminal. A process never waits for
the disk (`log_file`). Secrets are masked in whole lines; in a piece or an update, an end that may be the beginning of a
secret waits for what follows. The launcher's own messages go to launcher.log through `note`.
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
    from typing import Union

    from ganger.launcher.health.loss_points import WatchedLog
    from ganger.launcher.logs.log_file import LogFile
    from ganger.launcher.logs.redaction import Redaction
    from ganger.launcher.logs.stdout_mirror import MirroredLog

    Log = Union[LogFile, MirroredLog, WatchedLog]

PIECE_CHARACTERS = 16 * 1024
UPDATE_S = 0.2
"""The least time between two updates of a line that has not ended: they bound what a progress bar adds to the log."""
UPDATE_CHARACTERS = 1000
"""A line that is longer is written in pieces instead."""
UPDATE_LETTERS = {"o": "u", "e": "v"}
READ_BYTES = 64 * 1024
TAIL_LINES = 20
TAIL_LINE_CHARACTERS = 1000
FULL_PIPE_READS = 32
"""Reads that empty the largest pipe (1 MiB, or 2 MiB of a busy writer): no more are done once a process has ended."""


class Stream:
    """One pipe of a process, read as bytes and written as records; `letter` is "o" or "e"."""

    def __init__(
        self,
        fd: int,
        letter: str,
        log: Log,
        selector: selectors.BaseSelector,
        redaction: Redaction,
    ) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._fd = fd
        self._letter = letter
        self._log = log
        self._selector = selector
        self._redaction = redaction
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""  # incomplete line, without the pieces of it that are written
        self._line_start = ""  # start of those pieces, as far as the tail shows it
        self._shown = ""  # the last update of that line
        self._update_at = float("inf")
        self.is_open = True
        os.set_blocking(fd, False)
        selector.register(fd, selectors.EVENT_READ, self.read)

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return self._update_at

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
        """Write an update of a line that has not ended, if it is time."""
        if now >= self._update_at:
            self._write_update()

    def drain(self) -> None:
        """Read the rest of the pipe after the process has ended, though its children may still hold the other end."""
        for _ in range(FULL_PIPE_READS):
            if not self.read():
                break
        if self.is_open:
            self._write_update()

    def close(self) -> None:
        if self.is_open:
            self._close()

    def last_lines(self) -> list[str]:
        """Return at most TAIL_LINES lines, the newest last."""
        incomplete = self._extend_line_start(_on_terminal(self._split_pending()[0]))
        return [*self._tail, incomplete][-TAIL_LINES:] if incomplete else list(self._tail)

    def _add(self, text: str) -> None:
        stamp = now_ms()
        first, *rest = text.split("\n")
        records: list[str] = []
        self._pending += first
        for line in rest:  # each follows a line feed, so the pending text is a whole line
            self._cut_pieces(records, stamp)
            text = _on_terminal(self._redaction.mask(self._pending))
            records.append(f"{stamp} {self._letter} {text}\n")
            self._tail.append(self._extend_line_start(text))
            self._line_start = self._shown = ""
            self._pending = line
        self._cut_pieces(records, stamp)
        if records:
            self._log.write("".join(records))
        self._update_at = min(self._update_at, time.monotonic() + UPDATE_S) if self._pending else float("inf")

    def _cut_pieces(self, records: list[str], stamp: int) -> None:
        if "\r" in self._pending:  # one at the end stands for many, and waits for what follows
            self._pending = _on_terminal(self._pending) + "\r" * self._pending.endswith("\r")
        if len(self._pending) <= PIECE_CHARACTERS:
            return
        ready, withheld = self._split_pending()
        while len(ready) > PIECE_CHARACTERS:
            piece, ready = ready[:PIECE_CHARACTERS], ready[PIECE_CHARACTERS:]
            records.append(f"{stamp} {self._letter.upper()} {piece}\n")
            self._line_start = self._extend_line_start(piece)
        self._pending = ready + withheld

    def _write_update(self) -> None:
        self._update_at = float("inf")
        ready, withheld = self._split_pending()
        text = _on_terminal(ready)
        if len(text) > UPDATE_CHARACTERS:
            self._log.write(f"{now_ms()} {self._letter.upper()} {text}\n")
            self._line_start = self._extend_line_start(text)
            self._pending, self._shown = withheld, ""
        elif text != self._shown:
            self._log.write(f"{now_ms()} {UPDATE_LETTERS[self._letter]} {text}\n")
            self._shown = text

    def _split_pending(self) -> tuple[str, str]:
        """Return what of an incomplete line can be written now, and its end that may be the beginning of a secret."""
        masked = self._redaction.mask(self._pending)
        end = len(masked) - self._redaction.withheld(masked)
        return masked[:end], masked[end:]

    def _extend_line_start(self, piece: str) -> str:
        """Return the line so far, cut to what a tail shows."""
        return (self._line_start + piece)[:TAIL_LINE_CHARACTERS]

    def _close(self) -> None:
        self._pending += self._decode(b"", final=True)
        if self._pending or self._line_start:  # an unterminated last line
            self._add("\n")
        self._update_at = float("inf")
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


def _rewritten_from(line: str) -> int:
    """Return where the text begins that a terminal shows: after the last carriage return that text follows."""
    return line.rfind("\r", 0, len(line.rstrip("\r"))) + 1


def _on_terminal(line: str) -> str:
    """Return the line as a terminal shows it at last."""
    return line[_rewritten_from(line) :].rstrip("\r") if "\r" in line else line
