"""Figures over time as one character each."""

import sys
from collections.abc import Sequence
from typing import Final

from ganger.cli.output.top_view import PLAIN

LEVELS: Final = "▁▂▃▄▅▆▇█"
UNKNOWN: Final = " "


def sparkline(permille: Sequence[int | None]) -> str:
    """Return a character for each value, from 0 to 1000; a blank for None."""
    top = len(LEVELS) - 1
    text = "".join(UNKNOWN if value is None else LEVELS[min(top, top * value // 1000)] for value in permille)
    return text if "utf" in (sys.stdout.encoding or "").lower() else text.translate(PLAIN)
