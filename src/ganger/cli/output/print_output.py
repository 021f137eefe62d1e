"""The output of commands: tables, JSON, colours, times.

On a terminal, tables fit its width, and no head and no name is cut: heads wrap at words first, then sentences and lists
fold or are cut, and at last columns move below their row, with their heads. Elsewhere lines are as long as needed. JSON
bypasses all of this.
"""

import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TextIO, TypeVar

import click

from ganger import settings
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, format_duration

STATE_COLOURS: Final = {
    "pending": "yellow",
    "starting": "cyan",
    "running": "green",
    "resizing": "cyan",
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

GAP: Final = 2
SQUEEZED: Final = 32
"""Minimum width of a sentence in the last column."""
FOLDED: Final = 12
"""Minimum width of a cell that folds or is cut."""

_CONTROL: Final = re.compile(
    r"(\x1b\[[0-9;:]*m)"  # colours are kept
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
"""Control sequences of ECMA-48, with 7 or 8 bits; a string without its end reaches to the end of the line."""
_BEGINS_CONTROL: Final = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""A far quicker test for text without any."""

Row = Sequence[str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    right: aligned to the right, for numbers.
    state: coloured by state.
    folds: wrapped on a narrow terminal, as the last column is.
    cut: cut on a narrow terminal, since another command shows all of it.
    spare: moved below its row, with its title, on a narrow terminal.
    """

    title: str
    right: bool = False
    state: bool = False
    folds: bool = False
    cut: bool = False
    spare: bool = False


def to_copy(text: str) -> str:
    """Return a message of ganger in which commands to type reach the same cluster as this one."""
    ctx = click.get_current_context(silent=True)
    target = ctx.find_root().obj if ctx is not None else None
    if not target:
        return text
    given = ("--context", target["context"], *(("--namespace", target["namespace"]) if target["namespace"] else ()))
    prefix = f"{shlex.join(('ganger', *given))} "
    return re.sub(rf"\bganger (?=(?:{'|'.join(target['commands'])})(?![\w-]))", lambda _: prefix, text)


def supports_colour(stream: TextIO) -> bool:
    """Tell if colours and cursor movement are supported and welcome on `stream`."""
    return stream.isatty() and settings.wants_colour(os.environ) and os.environ.get("TERM") != "dumb"


def printable(text: str, stream: TextIO) -> str:
    """Return a text of a job as it may be written to `stream`: on a terminal, without control sequences but colours.

    Others could set the title or the clipboard, or make the terminal type an answer into the user's shell.
    """
    return _CONTROL.sub(r"\1", text) if stream.isatty() and _BEGINS_CONTROL.search(text) else text


def say(text: str, **style: Any) -> None:
    """Print a message of ganger to stderr, so that stdout only has the job's output; `style` as of click.style."""
    for line in one_command_a_line(printable(to_copy(text), sys.stderr), sys.stderr):
        click.echo(click.style(line, **style) if style else line, err=True, color=supports_colour(sys.stderr))


def one_command_a_line(text: str, stream: TextIO) -> list[str]:
    """Return a text of commands, separated by three spaces, as one line if the terminal is wide enough.

    A command that wraps in the middle cannot be copied as one line.
    """
    if not stream.isatty() or len(text) <= shutil.get_terminal_size().columns or "ganger " not in text:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    first, *others = text.strip().split("   ")
    return [indent + first, *(f"{indent}  {other.strip()}" for other in others)]


def show(text: str = "", **style: Any) -> None:
    """Print a line of output to stdout."""
    text = printable(to_copy(text), sys.stdout)
    click.echo(click.style(text, **style) if style else text, color=supports_colour(sys.stdout))


def show_prose(text: str) -> None:
    """Print a line of text; on a terminal it is wrapped at words with a hanging indent, commands after `next:` not."""
    if not supports_colour(sys.stdout) or text.lstrip().startswith("next: "):
        for line in one_command_a_line(text, sys.stdout):
            show(line)
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
    """Print a value as JSON, and nothing else, to stdout."""
    click.echo(printable(json.dumps(value, indent=2, ensure_ascii=False), sys.stdout))


def show_json_array(rows: Iterable[Any]) -> None:
    """Print a JSON array, one element per line, written as the elements come."""
    write = sys.stdout.write
    separator = "[\n"
    for row in rows:
        write(separator + printable(json.dumps(row, ensure_ascii=False), sys.stdout))
        separator = ",\n"
    write("[]\n" if separator == "[\n" else "\n]\n")


def show_json_line(row: Any) -> None:
    """Print one element of an endless stream, one object per line."""
    click.echo(printable(json.dumps(row, ensure_ascii=False), sys.stdout))


def show_table(columns: Sequence[Column], rows: Sequence[Row], empty: str) -> None:
    """Print a table to stdout, or the sentence `empty` if it has no rows."""
    if not rows:
        show(empty)
        return
    for line in fitted_lines(columns, rows):
        click.echo(line, color=supports_colour(sys.stdout))


def fitted_lines(columns: Sequence[Column], rows: Sequence[Row], indent: int = 0) -> list[str]:
    """Return the lines of a table for stdout, on a terminal `indent` columns narrower than that."""
    if not sys.stdout.isatty():
        return align_columns(columns, rows)
    rows = [[" ".join(click.unstyle(printable(cell, sys.stdout)).split("\n")) for cell in row] for row in rows]
    return table_lines(columns, rows, shutil.get_terminal_size().columns - indent)


def show_rows(columns: Sequence[Column], rows: Iterable[T], cells: Callable[[T], Row], empty: str, output: str) -> None:
    """Print rows as a table of their `cells`, or as a JSON array if `output` is json."""
    if output == "json":
        show_json_array(rows)
    else:
        show_table(columns, [cells(row) for row in rows], empty)


def align_columns(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Return the table as lines of plain text: two spaces between columns, none after the last."""
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


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines, each at most `width` columns wide, with bold heads and coloured states."""
    cells = [[column.title for column in columns], *rows]
    natural = [max(display_width(row[i]) for row in cells) for i in range(len(columns))]
    least = [_least_width(columns, rows, i) for i in range(len(columns))]
    kept = _kept(columns, least, width)
    widths = _widened({i: min(least[i], width) for i in kept}, natural, width)
    lines = [click.style(line, bold=True) for line in _row_lines(columns, cells[0], widths, is_head=True)]
    for row in rows:
        lines += _row_lines(columns, row, widths, is_head=False)
        lines += _lines_below(columns, row, kept, width)
    return lines


def display_width(text: str) -> int:
    """Return the number of columns of a text: a wide character takes two, a combining one none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # 20 ms, for text that is not ASCII

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Return the text, cut to a number of columns."""
    if display_width(text) <= width:
        return text
    if text.isascii():
        return text[: max(width - 1, 0)] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, max(width - 1, 0)) + "…"


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]], index: int) -> int:
    column, is_last = columns[index], index == len(columns) - 1
    head = max(map(len, column.title.split()), default=0)
    widest = max(display_width(row[index]) for row in rows)
    if column.cut or column.folds:
        return max(head, min(widest, FOLDED))
    return max(head, min(widest, SQUEEZED)) if is_last else max(head, widest)


def _kept(columns: Sequence[Column], least: Sequence[int], width: int) -> list[int]:
    """Return the indices of the columns that stay in the row."""
    last = len(columns) - 1
    others = [i for i in range(last, 0, -1) if not columns[i].state]
    order = [
        *([last] if not columns[last].cut and last else []),
        *(i for i in others if columns[i].spare),
        *(i for i in others if not columns[i].cut),
        *range(last, 0, -1),
    ]
    kept = set(range(len(columns)))
    for i in order:
        if sum(least[index] + GAP for index in kept) - GAP <= width:
            break
        kept.discard(i)
    return sorted(kept)


def _widened(widths: dict[int, int], natural: Sequence[int], width: int) -> dict[int, int]:
    """Return the widths, grown towards the natural ones as far as there is room, the narrowest first."""
    room = width - sum(widths.values()) - GAP * (len(widths) - 1)
    while room > 0 and (growing := [i for i in widths if widths[i] < natural[i]]):
        widths[min(growing, key=lambda i: widths[i])] += 1
        room -= 1
    return widths


def _row_lines(columns: Sequence[Column], row: Sequence[str], widths: dict[int, int], *, is_head: bool) -> list[str]:
    blocks = {
        i: [cut(row[i], width)] if columns[i].cut and not is_head else _wrapped(row[i], width)
        for i, width in widths.items()
    }
    height = max(map(len, blocks.values()))
    if is_head:  # heads stand at the bottom, cells at the top
        blocks = {i: [""] * (height - len(block)) + block for i, block in blocks.items()}
    return [
        (" " * GAP)
        .join(
            _aligned(columns[i], block[number] if number < len(block) else "", widths[i]) for i, block in blocks.items()
        )
        .rstrip()
        for number in range(height)
    ]


def _aligned(column: Column, text: str, width: int) -> str:
    padding = " " * (width - display_width(text))
    shown = click.style(text, fg=STATE_COLOURS[text]) if column.state and text in STATE_COLOURS else text
    return padding + shown if column.right else shown + padding


def _lines_below(columns: Sequence[Column], row: Sequence[str], kept: Sequence[int], width: int) -> list[str]:
    """Return what moved below a row: the columns with their heads, and a last sentence without."""
    last = len(columns) - 1
    sentence = None if columns[last].right else last
    moved = [i for i in range(len(columns)) if i not in kept and row[i] not in ("", "-")]
    parts = [row[i] if i == sentence else f"{columns[i].title} {row[i]}" for i in moved]
    return [f"  {line}" for line in _wrapped("  ".join(parts), max(width - 2, 1))] if parts else []


def _wrapped(text: str, width: int) -> list[str]:
    if display_width(text) <= width:
        return [text]
    wrapped = textwrap.wrap(text, width, break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False)
    return wrapped if len(text) == display_width(text) else [cut(line, width) for line in wrapped]


def colour_state(state: str) -> str:
    """Return the state with its colour; click removes colours where they are not supported."""
    return click.style(state, fg=STATE_COLOURS.get(state), bold=True)


def current_time_ms() -> int:
    """Return the current Unix milliseconds."""
    return time.time_ns() // 1_000_000


def format_age(at_ms: int, now_ms: int) -> str:
    """Return the age in its largest unit: `3m ago`."""
    age_ms = now_ms - at_ms
    if age_ms < SECOND_MS:
        return "now"
    for unit, unit_ms in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS)):
        if age_ms >= unit_ms:
            return f"{age_ms // unit_ms}{unit} ago"
    return f"{age_ms // SECOND_MS}s ago"


def format_clock(at_ms: int, now_ms: int) -> str:
    """Return the local time of day, with the date if it is another day."""
    local = datetime.fromtimestamp(at_ms / 1000).astimezone()
    today = datetime.fromtimestamp(now_ms / 1000).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def format_time(at_ms: int, now_ms: int) -> str:
    """Return local and relative time: `14:21:07 (3m ago)`, or in the future `14:21:07 (in 3m 00s)`."""
    return f"{format_clock(at_ms, now_ms)} ({format_relative(at_ms, now_ms)})"


def format_relative(at_ms: int, now_ms: int) -> str:
    """Return `3m ago`, or in the future `in 3m 00s`. Less than a second ahead is now."""
    is_future = at_ms - now_ms >= SECOND_MS
    return f"in {format_duration(at_ms - now_ms)}" if is_future else format_age(at_ms, now_ms)


def shell_quote(text: str) -> str:
    """Return `text` quoted for a shell."""
    return shlex.quote(text)
