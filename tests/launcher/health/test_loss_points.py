"""The loss in reports and in log lines of unmodified programs, as it is sent to the server."""

import math
from typing import Any

import pytest

from ganger.launcher.health.loss_points import SEND_S, LossPoints, WatchedLog
from ganger.launcher.protocol.messages import MAX_POINTS
from ganger.model.watch.watch_rules import LOG_FORMATS

MEGATRON = (
    " [2026-08-01 09:44:55] iteration       10/ 3125000 | consumed samples:          960 | elapsed time per iteration "
    "(ms): 7231.0 | learning rate: 4.438E-07 | global batch size:    96 | lm loss: 1.010967E+01 | loss scale: 4096.0 | "
    "grad norm: 178.553 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
SKIPPED = " iteration 1/ 5 | loss scale: 65536.0 | number of skipped iterations:   1 | number of nan iterations:   0 |"
NAN = " iteration 2/ 5 | loss scale: 65536.0 | number of skipped iterations:   0 | number of nan iterations:   1 |"
DEEPSPEED = "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706"
TORCHTITAN = "[titan] - root - INFO - \x1b[31mstep:  3  \x1b[32mloss: 12.2  \x1b[38;2;180;60;0mgrad_norm:  1.5\x1b[39m"


class Sender:
    """Keeps what is sent."""

    is_up = True

    def __init__(self) -> None:
        self.points: list[tuple[int, int, float | None]] = []

    def send_state(self, kind: str, *, points: list[tuple[int, int, float | None]]) -> None:
        assert kind == "observed"
        self.points += points


def points_of(watch: dict[str, Any] | None, sender: Sender) -> LossPoints:
    return LossPoints(watch, sender)  # type: ignore[arg-type]


def read(log_format: str | dict[str, str], *lines: str) -> list[tuple[int, float | None]]:
    """Return step and loss of what is found in lines that a rank writes."""
    markers = log_format if isinstance(log_format, dict) else vars_of(log_format)
    sender = Sender()
    points = points_of({"metric": "loss", "markers": markers}, sender)
    for line in lines:
        points.line_written(0, 1_000, line)
    points.tick(1e9)
    return [(step, loss) for step, _, loss in sender.points]


def vars_of(name: str) -> dict[str, str]:
    markers = LOG_FORMATS[name]
    return {"step": markers.step, "loss": markers.loss, "nan_steps": markers.nan_steps or ""}


@pytest.mark.parametrize(
    ("log_format", "line", "expected"),
    [
        ("megatron", MEGATRON, [(10, 10.10967)]),
        ("megatron", SKIPPED, []),
        ("megatron", NAN, [(2, None)]),
        ("megatron", "validation loss at iteration 1000 | lm loss value: 2.3E+00 | lm loss PPL: 9.9E+00 |", []),
        ("megatron", MEGATRON.replace("1.010967E+01", "nan"), [(10, None)]),
        ("deepspeed", DEEPSPEED, [(200, 5.5508)]),
        ("deepspeed", "steps: 7 loss: inf iter time (s): 0.9", [(7, None)]),
        ("deepspeed", "[Rank 0] step=10, skipped=0, lr=[0.00015]", []),
        ("torchtitan", TORCHTITAN, [(3, 12.2)]),
    ],
)
def test_lines_of_known_programs(log_format: str, line: str, expected: list[tuple[int, float | None]]) -> None:
    assert read(log_format, line) == expected


def test_texts_of_a_job_match_literally_but_for_spaces() -> None:
    texts: dict[str, str] = {"step": "Step (global) ", "loss": "loss=", "nan_steps": ""}
    assert read(texts, "Step   (global)   12/100, val_loss=9, loss=0.5,") == [(12, 0.5)], "not within a word"
    assert read(texts, "Step (global) x, loss=0.5", "Step (global) 3", "loss=1", "", "Step (global) 4 loss=") == []
    assert read({**texts, "step": "(a+)+$ "}, "a" * 5_000 + "!", "(a+)+$ 5 loss=2") == [(5, 2.0)]


@pytest.mark.timeout(20)
def test_long_and_strange_lines_cost_little() -> None:
    for line in ("iteration " * 100_000, "iteration" + " " * 1_000_000 + "1", "1" * 1_000_000, "iteration 9" * 90_000):
        assert read("megatron", *[line] * 20) == []
    digits = "9" * 400
    assert read("deepspeed", f"steps: {digits} loss: 1", f"steps: 5 loss: {digits}", "steps: 1e999 loss: 1") == []


def test_reports_of_the_lowest_rank_count() -> None:
    sender = Sender()
    points = points_of({"metric": "loss", "markers": None}, sender)
    for rank, loss in ((3, 5.0), (1, 6.0), (3, 7.0), (1, None)):
        points.report_received(rank, {"step": 1, "t": 9, "metrics": {"loss": loss, "lr": 1.0}})
    points.report_received(0, {"step": 1, "t": 9, "metrics": {"lr": 1.0}})
    points.report_received(1, {"step": 2, "t": -9, "metrics": {"loss": 1.0}})
    points.report_received(1, {"metrics": {"loss": 1.0}})
    points.tick(1e9)
    assert sender.points == [(1, 9, 6.0), (1, 9, None)]


def test_a_fast_run_sends_few_points_and_no_bad_one_is_lost() -> None:
    sender = Sender()
    points = points_of({"metric": "loss", "markers": None}, sender)
    for step in range(10_000):
        loss = None if step == 5_000 else 1.0
        points.report_received(0, {"step": step, "t": step, "metrics": {"loss": loss}})
    points.tick(1e9)
    assert len(sender.points) <= MAX_POINTS
    assert (5_000, 5_000, None) in sender.points
    assert sender.points[-1][0] >= 9_900
    assert sender.points == sorted(sender.points, key=lambda point: point[0])


def test_points_wait_for_a_server_that_listens() -> None:
    sender = Sender()
    points = points_of({"metric": "loss", "markers": None}, sender)
    sender.is_up = False
    points.report_received(0, {"step": 1, "t": 1, "metrics": {"loss": math.nan}})
    points.tick(100.0)
    assert (sender.points, points.due) == ([], 100.0 + SEND_S)
    sender.is_up = True
    points.tick(points.due)
    assert sender.points == [(1, 1, None)]


def test_a_job_that_is_not_watched_sends_nothing() -> None:
    points = points_of(None, sender := Sender())
    points.report_received(0, {"step": 1, "t": 9, "metrics": {"loss": None}})
    points.line_written(0, 9, MEGATRON)
    points.tick(1e9)
    assert sender.points == []


def test_whole_lines_of_a_log_are_searched() -> None:
    class Kept:
        text = ""

        def write(self, records: str) -> None:
            self.text += records

    points = points_of({"metric": "loss", "markers": vars_of("deepspeed")}, sender := Sender())
    log = WatchedLog(Kept(), points, 0)  # type: ignore[arg-type]
    log.write("17 o steps: 1 loss: 2.5\n18 u steps: 2 loss: 2.4\n19 O steps: 3 lo\n20 e steps: 4 loss: 2.2 \n")
    points.tick(1e9)
    assert sender.points == [(1, 17, 2.5), (4, 20, 2.2)]
