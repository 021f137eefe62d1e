"""How answers look: tables, JSON, colours, times. Called by every command.

On a terminal that welcomes colours, tables are rich's; anywhere else they are plain text in columns, and rich is not
even imported. JSON bypasses all of it.
"""

import json
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from ganger import settings
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STATE_COLOURS: Final = {
    "pending": "yellow",
    "starting": "cyan",
    "running": "green",
    "requeueing": "magenta",
    "failing": "red",
    "failed": "red",
    "suspending": "magenta",
    "suspended": "yellow",
    "finishing": "green",
    "stopping": "magenta",
    "succeeded": "green",
    "ready": "green",
    "cordoned": "yellow",
    "unready": "yellow",
    "lost": "red",
    "lost_cordoned": "red",
}

LONG: Final = 500
"""Rows beyond which a table is plain text even on a terminal: rich measures every cell, 10,000 rows take it seconds."""

SQUEEZED: Final = 32
"""Characters of the last column, a sentence most often, below which it is no pleasure to read."""

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Numbers stand to the right; a column of states is coloured; one that folds, and the last, is
    never cut short; one that is spare stands below its row, with its title, where a terminal is too narrow."""

    title: str
    right: bool = False
    state: bool = False
    folds: bool = False
    spare: bool = False


def fancy(stream: TextIO) -> bool:
    """Whether colours and moving lines are welcome on `stream`."""
    return stream.isatty() and settings.wants_colour(os.environ) and os.environ.get("TERM") != "dumb"


def say(text: str, **style: Any) -> None:
    """One line of ganger's own words on stderr, so that a job's output stays clean; `style` as of click.style."""
    click.echo(click.style(text, **style) if style else text, err=True, color=fancy(sys.stderr))


def show(text: str = "", **style: Any) -> None:
    """One line of an answer on stdout."""
    click.echo(click.style(text, **style) if style else text, color=fancy(sys.stdout))


def show_prose(text: str) -> None:
    """A line of an answer that says something: on a terminal no word of it is broken, and what follows is indented."""
    if not fancy(sys.stdout):
        show(text)
        return
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    wrapped = textwrap.wrap(
        text,
        width=shutil.get_terminal_size().columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
    for line in wrapped or [text]:
        show(line)


def show_json(value: Any) -> None:
    """An answer as JSON, and nothing else, on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_json_array(rows: Iterable[Any]) -> None:
    """A JSON array, an element a line, written as the elements come."""
    write = sys.stdout.write
    separator = "[\n"
    for row in rows:
        write(separator + json.dumps(row, ensure_ascii=False))
        separator = ",\n"
    write("[]\n" if separator == "[\n" else "\n]\n")


def show_json_line(row: Any) -> None:
    """One element of a stream that has no end: an object a line, at once."""
    click.echo(json.dumps(row, ensure_ascii=False))


def show_table(columns: Sequence[Column], rows: Sequence[Row], empty: str) -> None:
    """A table on stdout, or the sentence `empty` when there is nothing to show."""
    if not rows:
        show(empty)
    elif fancy(sys.stdout) and len(rows) <= LONG:
        from rich.console import Console

        _print(Console(file=sys.stdout, highlight=False), columns, rows)
    else:
        for line in aligned(columns, rows):
            click.echo(line)


def aligned(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """The table as lines of plain text: two spaces between columns, none after the last."""
    titles = [column.title for column in columns]
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(columns))]
    lines = []
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, width, cell in zip(columns, widths, row, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def rich_table(columns: Sequence[Column], rows: Sequence[Row]) -> "Table":
    """The same with bold titles and coloured states; a narrow terminal folds the last column and cuts others short."""
    return _table(columns, rows, len(columns) - 1)


def _print(console: "Console", columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """The table; what would be squeezed in the last column, and what is spare, stands below its row."""
    from rich.padding import Padding
    from rich.segment import Segment, Segments
    from rich.text import Text

    *widths, last = (max(map(len, cells)) for cells in zip([each.title for each in columns], *rows, strict=True))
    beside = console.width - sum(widths) - 2 * len(widths)
    if beside >= min(last, SQUEEZED) or any(each.folds for each in columns):
        console.print(rich_table(columns, rows))
        return
    kept = _kept(columns[:-1], widths, console.width)
    table = _table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], None)
    gone = [i for i in range(len(columns) - 1) if i not in kept]
    below = ("", *(_below(columns, row, gone) for row in rows))
    for line, cell in zip(console.render_lines(table, pad=False), below, strict=True):
        console.print(Segments([*line, Segment.line()]), end="")
        if cell not in ("", "-"):
            console.print(Padding(Text(cell, overflow="fold"), (0, 0, 0, 2)))


def _kept(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Which columns stay in a table so wide: of those that are spare the last goes first."""
    kept = list(range(len(columns)))
    for i in reversed(kept):
        if columns[i].spare and sum(widths[each] + 2 for each in kept) - 2 > room:
            kept.remove(i)
    return kept


def _below(columns: Sequence[Column], row: Row, gone: Sequence[int]) -> str:
    """What stands below a row: the columns that are gone, where they say anything, and the last one."""
    said = [f"{columns[i].title} {row[i]}" for i in gone if row[i] not in ("", "-")]
    return "  ".join([*said, *(cell for cell in row[-1:] if cell not in ("", "-"))])


def _table(columns: Sequence[Column], rows: Sequence[Row], folding: int | None) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        folds = column.folds or i == folding
        whole = i == 0 or column.state  # a name is there to be copied
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
            min_width=max(len(row[i]) for row in rows) if whole else None,
        )
    for row in rows:
        table.add_row(
            *(
                Text(cell, style=STATE_COLOURS.get(cell, "") if column.state else "")
                for column, cell in zip(columns, row, strict=True)
            )
        )
    return table


def coloured_state(state: str) -> str:
    """The state, coloured for a terminal (click takes the colours off elsewhere)."""
    return click.style(state, fg=STATE_COLOURS.get(state), bold=True)


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def ago(at_ms: int, now: int) -> str:
    """How long ago, in its largest unit: `3m ago`."""
    passed_ms = now - at_ms
    if passed_ms < SECOND_MS:
        return "now"
    for unit, unit_ms in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS)):
        if passed_ms >= unit_ms:
            return f"{passed_ms // unit_ms}{unit} ago"
    return f"{passed_ms // SECOND_MS}s ago"


def clock(at_ms: int, now: int) -> str:
    """The local time of day; with the date when it is another day."""
    local = datetime.fromtimestamp(at_ms / 1000).astimezone()
    today = datetime.fromtimestamp(now / 1000).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def when(at_ms: int, now: int) -> str:
    """Local and relative: `14:21:07 (3m ago)`; ahead of now, `14:21 (in 3m 00s)`. Less than a second away is now."""
    if at_ms - now >= SECOND_MS:
        return f"{clock(at_ms, now)} (in {format_duration(at_ms - now)})"
    return f"{clock(at_ms, now)} ({ago(at_ms, now)})"


def quoted(text: str) -> str:
    """`text` as a shell takes it, for a command to copy."""
    return shlex.quote(text)
