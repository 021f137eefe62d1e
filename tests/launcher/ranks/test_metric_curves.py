"""Metrics of a node's ranks: last, lowest and highest value, and a curve in bounded memory."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from ganger.launcher.protocol.messages import MAX_CURVE_POINTS, MAX_KEPT_METRICS
from ganger.launcher.ranks.metric_curves import FILE, SEND_S, MetricCurves
from ganger.launcher_server import message_schema


class Sender:
    """Stands for a MessageSender: what was sent last, and how often."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send_repeated(self, kind: str, **fields: Any) -> None:
        assert kind == "metrics_kept"
        message = {"v": 2, "type": kind, "gang": "a", "node": "n", "generation": 1, **fields}
        self.sent.append(message_schema.message(json.dumps(message).encode()))


class Metrics:
    """The metrics of a generation in a directory."""

    def __init__(self, directory: Path) -> None:
        self.sender = Sender()
        self._directory = directory
        self.curves = MetricCurves(str(directory), self.sender)  # type: ignore[arg-type]

    def report(self, step: int, rank: int = 0, **metrics: float | None) -> None:
        self.curves.report_received(rank, {"step": step, "t": 1_000 + step, "metrics": metrics})

    def value(self, name: str) -> tuple[Any, ...]:
        """Return what the server is told of a metric."""
        self.curves.tick(float("inf"))
        return tuple(self.sender.sent[-1]["values"][name])

    def points(self, name: str) -> list[tuple[int, float | None]]:
        """Return step and value of the points in the file."""
        self.curves.tick(float("inf"))
        read = message_schema.curves((self._directory / FILE).read_bytes())
        return [(step, value) for step, _, value in read["curves"][name]["points"]]


def test_last_lowest_and_highest_value_have_their_steps(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    for step, loss in enumerate((2.0, 0.5, 0.5, 4.0, None)):
        metrics.report(step, loss=loss)
    assert metrics.value("loss") == (0, 4, None, 1, 0.5, 3, 4.0), "of equal values the first"
    assert metrics.points("loss") == [(0, 2.0), (1, 0.5), (2, 0.5), (3, 4.0), (4, None)]


def test_a_metric_that_was_never_finite_has_no_extremes(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.report(1, loss=None)
    assert metrics.value("loss") == (0, 1, None, None, None, None, None)


def test_a_long_curve_is_thinned_evenly_and_ends_with_the_newest_report(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    for step in range(10_001):
        metrics.report(step, loss=float(step))
    points = metrics.points("loss")
    assert MAX_CURVE_POINTS // 2 <= len(points) <= MAX_CURVE_POINTS
    assert (points[0], points[-1]) == ((0, 0.0), (10_000, 10_000.0))
    assert {later[0] - step for (step, _), later in pairwise(points[:-1])} == {16}
    for steps in range(995, 1_005):
        metrics = Metrics(tmp_path)
        for step in range(steps):
            metrics.report(step, loss=0.0)
        assert len(metrics.points("loss")) <= MAX_CURVE_POINTS
        assert metrics.points("loss")[-1][0] == steps - 1


def test_a_script_that_goes_back_replaces_the_points_from_there_on(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    for step in (0, 1, 2, 3, 1, 2):
        metrics.report(step, loss=float(10 * step + len(metrics.sender.sent)))
        metrics.value("loss")
    assert metrics.points("loss") == [(0, 0.0), (1, 14.0), (2, 25.0)]
    for step in (*range(5_000), 700):
        metrics.report(step, loss=-1.0)
    points = metrics.points("loss")
    assert points[-1] == (700, -1.0)
    assert points == sorted(points)


def test_the_lowest_rank_that_reports_a_metric_counts(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.report(1, rank=3, loss=3.0, stage=3.0)
    metrics.report(1, rank=2, loss=2.0)
    metrics.report(2, rank=3, loss=0.0, stage=4.0)
    assert metrics.value("loss") == (2, 1, 2.0, 1, 2.0, 1, 2.0)
    assert metrics.value("stage") == (3, 2, 4.0, 1, 3.0, 2, 4.0)


def test_metrics_beyond_the_limits_are_counted(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    for step in range(3):
        names = [f"m{index}" for index in range(MAX_KEPT_METRICS + 5)]
        metrics.report(step, **{"x" * 101: 1.0, "": 1.0, "a\tb": 1.0}, **dict.fromkeys(names, 1.0))
    metrics.curves.tick(1e9)
    assert list(metrics.sender.sent[-1]["values"]) == names[:MAX_KEPT_METRICS]
    assert metrics.sender.sent[-1]["left_out"] == 8
    for step in range(2_000):
        metrics.report(step, **{f"new{step}": 1.0})
    metrics.curves.tick(2e9)
    assert metrics.sender.sent[-1]["left_out"] == 1_000, "and no more are remembered"


def test_nothing_is_sent_before_its_time_or_without_a_change(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.curves.report_received(0, {"step": 1, "metrics": {}})
    metrics.curves.report_received(0, {"phase": "eval"})
    metrics.curves.tick(0.0)
    assert metrics.sender.sent == []
    metrics.report(1, loss=1.0)
    metrics.curves.tick(0.0)
    metrics.report(2, loss=1.0)
    metrics.curves.tick(SEND_S - 1)
    assert len(metrics.sender.sent) == 1
    metrics.curves.tick(float("inf"))
    metrics.curves.tick(float("inf"))
    assert len(metrics.sender.sent) == 2, "at the end at once"


def test_a_disk_that_takes_nothing_does_no_harm(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "gone")
    metrics.report(1, loss=1.0)
    assert metrics.value("loss")[:3] == (0, 1, 1.0)
