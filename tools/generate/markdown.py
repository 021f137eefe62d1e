"""Markdown tables and code spans."""

from collections.abc import Iterable, Iterator


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    head = tuple(head)
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def code(text: str) -> str:
    """Return a code span; nothing for empty text."""
    return f"`{text}`" if text else ""
