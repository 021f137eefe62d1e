"""Markdown of the generated parts of pages: called by the other `generate_*.py`."""
# ruff: noqa: INP001 - a script's part, found by its path

from collections.abc import Iterable, Iterator


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table."""
    head = tuple(head)
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |"


def code(text: str) -> str:
    """As code; nothing for nothing."""
    return f"`{text}`" if text else ""
