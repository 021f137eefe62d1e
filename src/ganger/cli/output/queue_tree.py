"""Queues as a tree, each below its parent."""

from collections.abc import Iterator, Sequence
from typing import Any

Record = dict[str, Any]


def tree_rows(rows: Sequence[Record]) -> Iterator[tuple[int, Record]]:
    """Yield (depth, queue): each queue directly below its parent, siblings in the given order."""
    names = {row["name"] for row in rows}
    yield from _subtrees(rows, [row for row in rows if row["parent"] not in names], 0)


def subtree_names(rows: Sequence[Record], name: str) -> set[str]:
    """Return the names of a queue and its descendants."""
    top = [row for row in rows if row["name"] == name]
    return {row["name"] for _, row in _subtrees(rows, top, 0)}


def indent_name(depth: int, name: str) -> str:
    """Indent a name by its depth in the tree."""
    return "  " * depth + name


def _subtrees(rows: Sequence[Record], parents: Sequence[Record], depth: int) -> Iterator[tuple[int, Record]]:
    for row in parents:
        yield depth, row
        yield from _subtrees(rows, [child for child in rows if child["parent"] == row["name"]], depth + 1)
