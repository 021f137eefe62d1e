"""The screen of `ganger top`: redrawn at intervals, controlled by keys."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ganger.cli.output.print_output import current_time_ms, format_clock, printable
from ganger.cli.output.top_view import Line

Draw = Callable[[str, str, int], Sequence[Line]]
"""Returns the lines of a view for a sort key and a width."""
SCROLL_KEYS = {b"\x1b[A": -1, b"\x1b[B": +1, b"k": -1, b"j": +1, b"\x1b[5~": -10, b"\x1b[6~": +10}
"""Keys that scroll -> number of lines."""
VIEW_KEYS = {b"\x1b[C": +1, b"\t": +1, b"l": +1, b"\x1b[D": -1, b"h": -1}
"""Keys that switch the view."""
SORT_KEYS = {b"s": +1, b">": +1, b"S": -1, b"<": -1}
"""Keys that change the sort key."""
QUIT_KEYS = (b"q", b"Q", b"\x03", b"\x04")


def watch(orders: Mapping[str, Sequence[str]], view: tuple[str, str], pause_s: float, draw: Draw) -> None:
    """Draw a view again and again until q or Ctrl-C.

    orders: view -> its sort keys.
    view: the first view and its sort key.
    """
    views, sorts = tuple(orders), dict.fromkeys(orders, 0)
    console, view_index, top_line = Console(), views.index(view[0]), 0
    sorts[view[0]] = orders[view[0]].index(view[1])
    with _keys() as key_within, Live(console=console, auto_refresh=False, screen=True) as screen:
        try:
            while True:
                name = views[view_index]
                by = orders[name][sorts[name] % len(orders[name])]
                lines = list(draw(name, by, console.width))
                until_s = time.monotonic() + pause_s
                key: bytes | None = b""
                while key is not None:
                    room = console.height - 2
                    top_line = max(0, min(top_line, len(lines) - room))
                    screen.update(_page(views, (name, by), lines[top_line : top_line + room]), refresh=True)
                    key = key_within(until_s - time.monotonic())
                    if key in QUIT_KEYS:
                        return
                    if key in VIEW_KEYS:
                        view_index, top_line = (view_index + VIEW_KEYS[key]) % len(views), 0
                        break
                    if key in SORT_KEYS:
                        sorts[name], top_line = sorts[name] + SORT_KEYS[key], 0
                        break
                    top_line += SCROLL_KEYS.get(key or b"", 0)
        except KeyboardInterrupt:
            return


def _page(views: Sequence[str], current: tuple[str, str], lines: Sequence[Line]) -> Text:
    now_ms = current_time_ms()
    page = Text(no_wrap=True, overflow="crop", end="")
    page.append("top ", style="bold")
    for view in views:
        page.append(f" {view} ", style="reverse" if view == current[0] else "dim")
    page.append(
        f"  {format_clock(now_ms, now_ms)}  \u2190 \u2192 views  s sorts: {current[1]}  q quits\n\n", style="dim"
    )
    for line in lines:
        for text, style in line:
            page.append(printable(text, sys.stdout), style=style)
        page.append("\n")
    return page


@contextmanager
def _keys() -> Iterator[Callable[[float], bytes | None]]:
    """Read single keys within the context; yield a function that returns the next key, or None on timeout.

    Without a terminal as input there are no keys.
    """
    if not sys.stdin.isatty():
        yield _sleep
        return
    stream = sys.stdin.fileno()
    before = termios.tcgetattr(stream)
    tty.setcbreak(stream)

    def key_within(pause_s: float) -> bytes | None:
        ready, _, _ = select.select([stream], [], [], max(0.0, pause_s))
        return os.read(stream, 8) if ready else None

    try:
        yield key_within
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def _sleep(pause_s: float) -> bytes | None:
    time.sleep(max(0.0, pause_s))
    return None
