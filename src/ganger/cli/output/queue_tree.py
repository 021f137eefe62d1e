"""Queues as the tree that they are, each below its parent. Called by `queue`, `top` and `glance`."""

from collections.abc import Iterator, Sequence
from typing import Any

Record = dict[str, Any]


def in_tree(rows: Sequence[Record]) -> Iterator[tuple[int, Record]]:
    """Every queue with how many there are above it: right below its parent, beside its siblings as they came."""
    names = {row["name"] for row in rows}
    yield from _below(rows, [row for row in rows if row["parent"] not in names], 0)


def with_all_below(rows: Sequence[Record], name: str) -> set[str]:
    """The names of a queue and of those below it."""
    top = [row for row in rows if row["name"] == name]
    return {row["name"] for _, row in _below(rows, top, 0)}


def indented(depth: int, name: str) -> str:
    """A name as it stands in a tree."""
    return "  " * depth + name


def _below(rows: Sequence[Record], of: Sequence[Record], depth: int) -> Iterator[tuple[int, Record]]:
    for row in of:
        yield depth, row
        yield from _below(rows, [each for each in rows if each["parent"] == row["name"]], depth + 1)
