"""The screen of a follower: permanent lines and, on a terminal, a status line at the bottom.

Lines of the job go to the stream to which the job wrote them; messages of ganger go to stderr, so that a pipe gets
only the job's output.
"""

import shutil
import sys
from typing import Final

import click

from ganger.cli.output.print_output import printable, supports_colour

_CLEAR: Final = "\r\x1b[K"


class Screen:
    """Prints lines and the status line.

    live: both streams are terminals with colours, so that a status line can be drawn.
    """

    def __init__(self) -> None:
        self.live = supports_colour(sys.stdout) and supports_colour(sys.stderr)
        self._status = ""
        self._drawn = False

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
        text = printable(text, sys.stderr)
        styled = style and supports_colour(sys.stderr)
        sys.stderr.write((click.style(text, **style) if styled else text) + "\n")  # type: ignore[arg-type]

    def status(self, text: str) -> None:
        """Set the status line, "" removes it. Has no effect without a terminal."""
        if self.live and text != self._status:
            self._clear()
            self._status = text

    def settle(self) -> None:
        """Flush everything and draw the status line; called when no more lines are pending."""
        sys.stdout.flush()
        if self._status and not self._drawn:
            columns = shutil.get_terminal_size().columns
            status = printable(self._status, sys.stderr)
            sys.stderr.write(click.style(_cut(status, columns - 1), fg="cyan"))
            self._drawn = True
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._drawn:
            sys.stdout.flush()
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._drawn = False


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: max(columns - 1, 0)] + "…"
