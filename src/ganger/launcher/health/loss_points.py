"""Steps with their loss as the ranks report or print them, for the server's loss watch.

The lowest rank here that has any counts. Log lines are searched for the texts of the job's `watch` section: literally,
except that spaces match any spaces, so that a line costs no more than reading it.
"""

from __future__ import annotations

import math
import re

from ganger.launcher.protocol.messages import LARGEST, MAX_POINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple

    from ganger.launcher.logs.log_file import LogFile
    from ganger.launcher.logs.stdout_mirror import MirroredLog
    from ganger.launcher.protocol.link import MessageSender

    Point = Tuple[int, int, Optional[float]]
    Points = List[Point]

SEND_S = 0.5
SEARCHED_CHARACTERS = 4096
"""Beginning of a line that is searched."""
NEVER = float("inf")
_NUMBER = re.compile(r" ?([-+]?(?:nan|inf|\d{1,40}(?:\.\d{0,40})?(?:e[-+]?\d{1,4})?)(?!\d))", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


class LossPoints:
    """The points (step, Unix ms, loss or None) of one generation on this node, which are sent a few times a second."""

    def __init__(self, watch: dict[str, Any] | None, sender: MessageSender) -> None:
        self.due = NEVER
        self._metric = watch["metric"] if watch else None
        markers = watch["markers"] if watch else None
        self._markers = None if markers is None else {name: _squeeze(text) for name, text in markers.items()}
        self._sender = sender
        self._rank: int | None = None
        self._points: Points = []
        self._sent_at = -NEVER

    @property
    def follows_logs(self) -> bool:
        """True if the figures are in the log lines rather than in the reports."""
        return self._markers is not None

    def report_received(self, rank: int, record: dict[str, Any]) -> None:
        """Handle a record that a rank reported."""
        metrics = record.get("metrics")
        if self._markers is None and metrics is not None and "step" in record and self._metric in metrics:
            self._add(rank, record["step"], record.get("t", 0), metrics[self._metric])

    def line_written(self, rank: int, at_ms: int, text: str) -> None:
        """Handle a line that a rank wrote."""
        markers = self._markers
        if markers is None or (markers["step"].split(" ", 1)[0] not in text):
            return
        text = _squeeze(_COLOUR.sub("", text[:SEARCHED_CHARACTERS]))
        step, loss = _figure(text, markers["step"]), _figure(text, markers["loss"])
        if markers["nan_steps"] and (_figure(text, markers["nan_steps"]) or 0) > 0:
            loss = math.nan
        if step is not None and loss is not None and math.isfinite(step):
            self._add(rank, int(step), at_ms, loss)

    def tick(self, now: float) -> None:
        """Send what has come, if it is time and a server listens: a rank may be faster than the link."""
        if not self._points:
            return
        if now < self._sent_at + SEND_S:
            self.due = self._sent_at + SEND_S
            return
        if not self._sender.is_up:
            self.due = now + SEND_S
            return
        self._sent_at, self.due = now, NEVER
        points, self._points = self._points, []
        self._sender.send_state("observed", points=points)

    def _add(self, rank: int, step: int, at_ms: int, loss: float | None) -> None:
        if self._rank is None or rank < self._rank:
            self._rank, self._points = rank, []
        if rank != self._rank or not (-LARGEST <= step <= LARGEST and 0 <= at_ms <= LARGEST):
            return
        self._points.append((step, at_ms, loss if loss is not None and math.isfinite(loss) else None))
        self.due = min(self.due, self._sent_at + SEND_S)
        if len(self._points) > MAX_POINTS:
            self._points = _thinned(self._points)


class WatchedLog:
    """A log whose whole lines are also searched for the loss."""

    def __init__(self, log: LogFile | MirroredLog, points: LossPoints, rank: int) -> None:
        self._log = log
        self._points = points
        self._rank = rank

    def write(self, records: str) -> None:
        """Write records, as `LogFile.write` does."""
        self._log.write(records)
        for record in records.split("\n")[:-1]:
            at_ms, letter, text = record.split(" ", 2)
            if letter in ("o", "e"):
                self._points.line_written(self._rank, int(at_ms), text)

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _thinned(points: Points) -> Points:
    """Return every second point, and at most half of the room for those whose loss is not a finite number."""
    odd = [point for point in points if point[2] is None][: MAX_POINTS // 2]
    finite = [point for point in points if point[2] is not None]
    kept = finite[1::2] if len(finite) > MAX_POINTS // 4 else finite
    return sorted([*odd, *kept[-MAX_POINTS // 2 :]], key=lambda point: (point[1], point[0]))


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _figure(text: str, marker: str) -> float | None:
    """Return the number after the first occurrence of a marker that does not begin within a word."""
    at = text.find(marker) if marker else -1
    while at > 0 and _is_in_word(text[at - 1], marker[0]):
        at = text.find(marker, at + 1)
    match = _NUMBER.match(text, at + len(marker)) if at >= 0 else None
    return float(match[1]) if match else None


def _is_in_word(before: str, first: str) -> bool:
    return (before.isalnum() or before == "_") and (first.isalnum() or first == "_")
