"""The lines in a piece of a log, as launchers write it: docs/launcher-protocol.md, "Files". Called by `told`."""

import re
from collections.abc import Iterator
from typing import Final

_RECORD: Final = re.compile(rb"^\d+ ([oeOE]) (.*)$", re.MULTILINE)


def lines(data: bytes) -> Iterator[str]:
    """Of both streams, in the order in which they ended; pieces are put together, what is no record is passed over."""
    pieces = {"o": "", "e": ""}
    for letter, content in _RECORD.findall(data):
        kind = letter.decode()
        text = pieces[kind.lower()] + content.decode(errors="replace")
        pieces[kind.lower()] = text if kind.isupper() else ""
        if kind.islower():
            yield text
    yield from filter(None, pieces.values())
