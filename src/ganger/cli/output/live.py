"""What a follower prints on: lines that stay and, on a terminal, one line at the bottom that changes.

Lines of the job go where the job wrote them; ganger's own words go to stderr, so that a pipe gets the job's output and
nothing else. Called by `follow`.
"""

import shutil
import sys
from typing import Final

import click

from ganger.cli.output.tables import fancy

_CLEAR: Final = "\r\x1b[K"


class Screen:
    """`live`: both streams are a terminal that welcomes colours, so a status line may be drawn."""

    def __init__(self) -> None:
        self.live = fancy(sys.stdout) and fancy(sys.stderr)
        self._status = ""
        self._drawn = False

    def line(self, text: str, *, err: bool = False) -> None:
        """A line of the job. It is on its way only after `settle`."""
        self._clear()
        if err:
            sys.stdout.flush()
            sys.stderr.write((click.style(text, fg="yellow") if self.live else text) + "\n")
        else:
            sys.stdout.write(text + "\n")

    def say(self, text: str, **style: str | bool) -> None:
        """A line of ganger's own."""
        self._clear()
        sys.stdout.flush()
        styled = style and fancy(sys.stderr)
        sys.stderr.write((click.style(text, **style) if styled else text) + "\n")  # type: ignore[arg-type]

    def status(self, text: str) -> None:
        """What the changing line says from now on; "" takes it away. Nothing where there is no terminal."""
        if self.live and text != self._status:
            self._clear()
            self._status = text

    def settle(self) -> None:
        """Bring everything out; call it when nothing more comes at once."""
        sys.stdout.flush()
        if self._status and not self._drawn:
            columns = shutil.get_terminal_size().columns
            sys.stderr.write(click.style(_cut(self._status, columns - 1), fg="cyan"))
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
