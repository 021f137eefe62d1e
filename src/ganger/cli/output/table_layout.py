"""Layout of a table in the width of a terminal. Pure.

No head and no name is cut. Where the natural widths do not fit, heads wrap at words first, then sentences and lists
fold or are cut, and at last columns move below their row, with their heads.
"""

import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Final

import click

from ganger.cli.output.print_output import STATE_COLOURS, Column

GAP: Final = 2
SQUEEZED: Final = 32
"""Minimum width of a sentence in the last column."""
FOLDED: Final = 12
"""Minimum width of a cell that folds or is cut."""


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
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def cut(text: str, width: int) -> str:
    """Return the text, cut to a number of columns."""
    if display_width(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while display_width(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


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
    moved = [i for i in range(len(columns)) if i not in kept and row[i] not in ("", "-")]
    parts = [row[i] if i == last else f"{columns[i].title} {row[i]}" for i in moved]
    return [f"  {line}" for line in _wrapped("  ".join(parts), max(width - 2, 1))] if parts else []


def _wrapped(text: str, width: int) -> list[str]:
    if display_width(text) <= width:
        return [text]
    wrapped = textwrap.wrap(text, width, break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False)
    return wrapped if len(text) == display_width(text) else [cut(line, width) for line in wrapped]
