"""The screen of a follower: permanent lines and, on a terminal, unfinished lines and a status line at the bottom.

Lines of the job go to the stream to which the job wrote them; messages of ganger go to stderr, so that a pipe gets
only the job's output.
"""

import shutil
import sys
from typing import Final

import click

from ganger.cli.output.print_output import cut, printable, supports_colour, to_copy

_CLEAR: Final = "\r\x1b[K"
_CLEAR_ROWS: Final = "\r\x1b[{up}A\x1b[J"


class Screen:
    """Prints lines and, below them, rows that are drawn again and again.

    live: both streams are terminals with colours, so that rows can be drawn.
    """

    def __init__(self) -> None:
        self.live = supports_colour(sys.stdout) and supports_colour(sys.stderr)
        self._status = ""
        self._unfinished: dict[tuple[int, str], str] = {}
        self._drawn_rows = 0

    def line(self, text: str, *, err: bool = False) -> None:
        """Write a line of the job; it is flushed by `settle`."""
        self._clear()
        text = printable(text, sys.stderr if err else sys.stdout)
        if err:
            sys.stdout.flush()
            sys.stderr.write((click.style(text, fg="yellow") if self.live else text) + "\n")
        else:
            sys.stdout.write(text + "\n")

    def say(self, text: str, **style: str | bool) -> None:
        """Print a message of ganger."""
        self._clear()
        sys.stdout.flush()
        text = printable(to_copy(text), sys.stderr)
        styled = style and supports_colour(sys.stderr)
        sys.stderr.write((click.style(text, **style) if styled else text) + "\n")  # type: ignore[arg-type]

    def unfinished(self, rank: int, stream: str, text: str) -> None:
        """Set the unfinished line of a rank's stream, such as a progress bar; "" removes it."""
        if self.live and text != self._unfinished.get((rank, stream), ""):
            self._clear()
            self._unfinished[rank, stream] = text
            if not text:
                del self._unfinished[rank, stream]

    def drop_unfinished(self) -> None:
        """Remove all unfinished lines."""
        if self._unfinished:
            self._clear()
            self._unfinished.clear()

    def status(self, text: str) -> None:
        """Set the status line, "" removes it. Has no effect without a terminal."""
        if self.live and text != self._status:
            self._clear()
            self._status = text

    def settle(self) -> None:
        """Flush everything and draw the rows; called when no more lines are pending."""
        sys.stdout.flush()
        if (self._status or self._unfinished) and not self._drawn_rows:
            size = shutil.get_terminal_size()
            rows = [cut(text, size.columns - 1) for text in self._unfinished_rows(size.lines - 2)]
            if self._status:
                rows.append(click.style(cut(printable(to_copy(self._status), sys.stderr), size.columns - 1), fg="cyan"))
            sys.stderr.write("\n".join(rows))
            self._drawn_rows = len(rows)
        sys.stderr.flush()

    def _unfinished_rows(self, most: int) -> list[str]:
        """Return the unfinished lines in order of ranks, as many as fit above the status line."""
        texts = [click.unstyle(printable(text, sys.stderr)) for _, text in sorted(self._unfinished.items())]
        shown = texts if len(texts) <= most else texts[: max(most - 1, 0)]
        return shown if shown == texts else [*shown, f"... {len(texts) - len(shown)} more"]

    def _clear(self) -> None:
        if self._drawn_rows:
            sys.stdout.flush()
            sys.stderr.write(_CLEAR_ROWS.format(up=self._drawn_rows - 1) if self._drawn_rows > 1 else _CLEAR)
            sys.stderr.flush()
            self._drawn_rows = 0
