"""The metrics that ranks report on this node: last, lowest and highest values for the server, and curves in a file.

Of each metric the lowest rank here that reports it counts: mostly all report the same, and where one alone has the
loss, as the last stage of a pipeline, that one.
"""

from __future__ import annotations

import json
import os
from array import array

from ganger.launcher.protocol.messages import LARGEST, MAX_CURVE_POINTS, MAX_KEPT_METRICS, METRIC_CHARACTERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

    from ganger.launcher.protocol.link import MessageSender

    Point = Tuple[int, int, Optional[float]]
    Summary = Tuple[int, int, Optional[float], Optional[int], Optional[float], Optional[int], Optional[float]]

FILE = "metrics.json"
SEND_S = 10.0  # as often as a milestone: figures of a job that runs are as old as that at most
MAX_LEFT_OUT = 1_000  # names that are remembered to count them: a script may make up new ones for ever
NEVER = float("inf")


class MetricCurves:
    """The metrics of one generation on this node."""

    def __init__(self, directory: str, sender: MessageSender) -> None:
        self.due = NEVER
        self._path = os.path.join(directory, FILE)
        self._sender = sender
        self._curves: dict[str, Curve] = {}
        self._left_out: set[str] = set()
        self._sent_at = -NEVER

    def report_received(self, rank: int, record: dict[str, Any]) -> None:
        """Handle a record that a rank reported."""
        metrics = record.get("metrics")
        if not metrics or "step" not in record:
            return
        for name, value in metrics.items():
            curve = self._curves.get(name)
            if curve is None or rank < curve.rank:
                if curve is None and (len(self._curves) == MAX_KEPT_METRICS or not is_kept(name)):
                    if len(self._left_out) < MAX_LEFT_OUT:
                        self._left_out.add(name)
                    continue
                curve = self._curves[name] = Curve(rank)
            if rank == curve.rank:
                curve.add(record["step"], max(0, record.get("t", 0)), value)
        self.due = min(self.due, self._sent_at + SEND_S)

    def tick(self, now: float) -> None:
        """Send and write what has changed, if it is time."""
        if self.due == NEVER or now < self.due:
            return
        self._sent_at, self.due = now if now < NEVER else self._sent_at, NEVER
        values = {name: curve.summary() for name, curve in self._curves.items()}
        self._sender.send_repeated("metrics_kept", values=values, left_out=len(self._left_out))
        curves = {name: {"rank": curve.rank, "points": curve.points()} for name, curve in self._curves.items()}
        draft = self._path + ".draft"
        try:
            with open(draft, "w", encoding="utf-8", errors="replace") as file:
                json.dump({"curves": curves}, file, ensure_ascii=False, separators=(",", ":"))
            os.replace(draft, self._path)
        except OSError:
            pass  # a full disk: they are written again with the next reports


def is_kept(name: str) -> bool:
    """Return True for a name that can stand in a table: short, and without a tab or the like."""
    return 0 < len(name) <= METRIC_CHARACTERS and name.isprintable()


class Curve:
    """The reports of one metric by one rank, in bounded memory.

    Kept is every `_stride`-th report. When MAX_CURVE_POINTS are kept, every second one is dropped and the stride
    doubles, so that the points stay evenly spaced over the whole run, and a report costs O(1) on average. A report of
    an earlier step, by a script that went back, drops the points from there on: each was added once, so this too is
    O(1) on average.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._steps, self._times_ms, self._values = array("q"), array("q"), array("d")  # NaN: not a finite number
        self._stride, self._skipped = 1, 0
        self._last: Point = (0, 0, None)
        self._min: tuple[int | None, float | None] = (None, None)
        self._max: tuple[int | None, float | None] = (None, None)

    def add(self, step: int, at_ms: int, value: float | None) -> None:
        """Add a report; `value` is None for a number that is not finite."""
        self._last = (step, min(at_ms, LARGEST), value)
        if value is not None:
            if self._min[1] is None or value < self._min[1]:
                self._min = step, value
            if self._max[1] is None or value > self._max[1]:
                self._max = step, value
        while self._steps and self._steps[-1] >= step:
            for column in (self._steps, self._times_ms, self._values):
                column.pop()
            self._skipped = self._stride - 1  # the step at which it goes on is kept
        self._skipped += 1
        if self._skipped < self._stride and self._steps:
            return
        self._skipped = 0
        if len(self._steps) == MAX_CURVE_POINTS:
            self._steps, self._times_ms, self._values = self._steps[::2], self._times_ms[::2], self._values[::2]
            self._stride *= 2
            # The newest of an even number of points was dropped: this report is a stride after it.
        self._steps.append(step)
        self._times_ms.append(self._last[1])
        self._values.append(float("nan") if value is None else value)

    def points(self) -> list[Point]:
        """Return the points that are kept, and the newest report, at most MAX_CURVE_POINTS."""
        points = [
            (step, at_ms, value if value == value else None)  # noqa: PLR0124 - NaN alone differs from itself
            for step, at_ms, value in zip(self._steps, self._times_ms, self._values)
        ]
        if points[-1][0] != self._last[0]:
            points[MAX_CURVE_POINTS - 1 :] = [self._last]
        return points

    def summary(self) -> Summary:
        """Return the rank, and step and value of the newest report, of the lowest and of the highest value."""
        return (self.rank, self._last[0], self._last[2], *self._min, *self._max)
