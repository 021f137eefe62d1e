"""Metrics that a job has reported (`ganger.train.report`), as they are kept after its end."""

from dataclasses import dataclass, replace
from typing import Final

MAX_METRICS: Final = 32
"""Metrics of a job that are kept: the first that it reports. They are in its listing row, and in an event of each
attempt."""
SHOWN_METRICS: Final = 8
"""Metrics that are shown where other things are too."""
MAX_POINTS: Final = 1_000
"""Points of a curve, so many as a wide screen has columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetric:
    """A metric: its last value, and its lowest and highest, since ganger cannot know which of these is the best.

    Attributes:
        last: Of `last_step`; None for a value that is not a finite number.
        min, max: Over all attempts, also of steps that a later attempt repeated; None if no value was finite.
    """

    name: str
    last_step: int
    last: float | None
    min_step: int | None = None
    min: float | None = None
    max_step: int | None = None
    max: float | None = None

    def followed_by(self, later: "JobMetric") -> "JobMetric":
        """Return the metric over this time and a later one. Of equal extremes the first counts."""
        metric = replace(self, last_step=later.last_step, last=later.last)
        if later.min is not None and (self.min is None or later.min < self.min):
            metric = replace(metric, min_step=later.min_step, min=later.min)
        if later.max is not None and (self.max is None or later.max > self.max):
            metric = replace(metric, max_step=later.max_step, max=later.max)
        return metric


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetrics:
    """The metrics of a job in the order in which it first reported them; `left_out` counts those beyond the limits."""

    values: tuple[JobMetric, ...] = ()
    left_out: int = 0

    def followed_by(self, later: "JobMetrics") -> "JobMetrics":
        """Return the metrics over this time and a later one, such as the next attempt."""
        values = {metric.name: metric for metric in self.values}
        dropped = 0
        for metric in later.values:
            if metric.name in values:
                values[metric.name] = values[metric.name].followed_by(metric)
            elif len(values) < MAX_METRICS:
                values[metric.name] = metric
            else:
                dropped += 1
        # Names that are left out are not kept, so those of two attempts cannot be told apart: most are the same.
        return JobMetrics(values=tuple(values.values()), left_out=max(self.left_out, later.left_out + dropped))


def format_metric(value: float | None) -> str:
    """Return a value as it is shown: four digits; NaN for what is not a finite number."""
    return "NaN" if value is None else format(value, ".4g")


Point = tuple[int, int, float | None]
"""Step, Unix ms and value of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The reports of one metric over all attempts: of more than `MAX_POINTS`, evenly chosen ones and the last."""

    name: str
    points: tuple[Point, ...] = ()

    def followed_by(self, later: "Curve") -> "Curve":
        """Return the curve with that of a later attempt, which replaces steps that it repeats."""
        first_step = min((step for step, _, _ in later.points), default=None)
        kept = [point for point in self.points if first_step is None or point[0] < first_step]
        points = (*kept, *later.points)
        while len(points) > MAX_POINTS:
            points = (*points[: len(points) - 1 : 2], points[-1])
        return replace(self, points=points)
