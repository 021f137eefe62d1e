"""The position of a log follower, by which a new connection neither repeats nor skips a line.

Lines of a rank's stream are in order of time, so the last time, and the number of lines with it, are sufficient.
"""

import time
from collections.abc import Mapping
from typing import Any

Record = dict[str, Any]
Query = dict[str, str | int | None]
_Source = tuple[int, int, str]


class LogPosition:
    """The lines that one follower has received."""

    def __init__(self) -> None:
        """Start before the first line."""
        self._began_ms = time.time_ns() // 1_000_000
        self._first: tuple[int, int] | None = None
        self._last: dict[_Source, tuple[int, int]] = {}
        self._before: dict[_Source, tuple[int, int]] = {}

    def is_new(self, line: Record) -> bool:
        """Return whether the line was not received before, and count it."""
        generation, at_ms = line["generation"], line["t"]
        if line.get("unfinished"):
            return bool(at_ms >= self._before.get((generation, line["rank"], line["stream"]), (0, 0))[0])
        if self._first is None:
            self._first = generation, at_ms
        source = (generation, line["rank"], line["stream"])
        last_ms, same = self._last.get(source, (0, 0))
        self._last[source] = mark = (at_ms, same + 1 if at_ms == last_ms else 1)
        return not self._before or mark > self._before.get(source, (0, 0))

    def resumed(self, query: Mapping[str, str | int | None]) -> Query:
        """Return the query for the previous lines, from their start, and all that followed, also of older attempts.

        A tail is replaced by the time at which it began.
        """
        for source, mark in self._last.items():
            self._before[source] = max(mark, self._before.get(source, mark))
        self._last = {}
        generation, at_ms = self._first or (None, self._began_ms)
        again = dict(query) | {"tail": None}
        if query.get("attempt") is None:
            again["first"] = query.get("first") or generation
        if query.get("tail") is not None:
            again["since"] = max(at_ms, int(query.get("since") or 0))
        return again
