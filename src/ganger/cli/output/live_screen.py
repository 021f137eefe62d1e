"""A screen that is drawn again every few seconds, and listens to keys: `ganger top` on a terminal."""

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

from ganger.cli.output.tables import clock, now_ms
from ganger.cli.output.top_view import Line

Draw = Callable[[str, str, int], Sequence[Line]]
"""The lines of a view, by an order, for a width."""
KEYS = {b"\x1b[A": -1, b"\x1b[B": +1, b"k": -1, b"j": +1, b"\x1b[5~": -10, b"\x1b[6~": +10}
"""Keys that go up and down, and by how many lines."""
TURNS = {b"\x1b[C": +1, b"\t": +1, b"l": +1, b"\x1b[D": -1, b"h": -1}
"""Keys that go to another view."""
SORTS = {b"s": +1, b">": +1, b"S": -1, b"<": -1}
"""Keys that go to another order."""
ENDS = (b"q", b"Q", b"\x03", b"\x04")


def watch(orders: Mapping[str, Sequence[str]], view: tuple[str, str], pause_s: float, draw: Draw) -> None:
    """Draw a view, again after every pause, until q or Ctrl-C. `orders`: of each view there is; `view`: the one to
    begin with, and its order."""
    views, sorts = tuple(orders), dict.fromkeys(orders, 0)
    console, at, first = Console(), views.index(view[0]), 0
    sorts[view[0]] = orders[view[0]].index(view[1])
    with _keys() as key_within, Live(console=console, auto_refresh=False, screen=True) as screen:
        try:
            while True:
                what = views[at]
                by = orders[what][sorts[what] % len(orders[what])]
                lines = list(draw(what, by, console.width))
                until_s = time.monotonic() + pause_s
                key: bytes | None = b""
                while key is not None:
                    room = console.height - 2
                    first = max(0, min(first, len(lines) - room))
                    screen.update(_page(views, (what, by), lines[first : first + room]), refresh=True)
                    key = key_within(until_s - time.monotonic())
                    if key in ENDS:
                        return
                    if key in TURNS:
                        at, first = (at + TURNS[key]) % len(views), 0
                        break
                    if key in SORTS:
                        sorts[what], first = sorts[what] + SORTS[key], 0
                        break
                    first += KEYS.get(key or b"", 0)
        except KeyboardInterrupt:
            return


def _page(views: Sequence[str], seen: tuple[str, str], lines: Sequence[Line]) -> Text:
    now = now_ms()
    page = Text(no_wrap=True, overflow="crop", end="")
    page.append("top ", style="bold")
    for view in views:
        page.append(f" {view} ", style="reverse" if view == seen[0] else "dim")
    page.append(f"  {clock(now, now)}  \u2190 \u2192 views  s sorts: {seen[1]}  q quits\n\n", style="dim")
    for line in lines:
        for text, style in line:
            page.append(text, style=style)
        page.append("\n")
    return page


@contextmanager
def _keys() -> Iterator[Callable[[float], bytes | None]]:
    """Inside it keys come one by one; gives a function that waits for one, None when the time is over. Where the input
    is no terminal there are none."""
    if not sys.stdin.isatty():
        yield _asleep
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


def _asleep(pause_s: float) -> bytes | None:
    time.sleep(max(0.0, pause_s))
    return None
