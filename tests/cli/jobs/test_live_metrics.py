"""Metrics of jobs at a real server, while they run and after their end: get, ls -o wide, metrics, diff."""

import sys
from pathlib import Path

from tests.cli.live import Live, live, place
from tests.waiting import wait_until

__all__ = ["live", "place"]

TRAIN = """
import os, sys, time
from pathlib import Path
from ganger.train import report

lr, go = float(sys.argv[1]), Path(sys.argv[2])
for step in range(10):
    report(step=step, total_steps=10, acc=step / 10, loss=lr * (9 - step), bad=float("inf"))
if os.environ["GANGER_ATTEMPT"] == "1":
    while not go.exists():
        time.sleep(0.01)
    sys.exit(3)
report(step=5, loss=lr * 50)
"""


def test_metrics_outlive_the_job_and_the_server(live: Live, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = ("--", sys.executable, str(tmp_path / "train.py"))
    job = live.submit("--name", "exp", *command, "1", str(tmp_path / "go"))
    wait_until(lambda: "  metrics    total_steps 10 at step " in live("get", job).out, "it has reported")
    assert "  loss " in live("ls", "-o", "wide").out
    (tmp_path / "go").touch()
    live.until(job, "succeeded")
    other = live.submit("--name", "exp", *command, "2", str(tmp_path / "go"))
    live.until(other, "succeeded")
    assert live("server", "restart").code == 0

    detail = live("get", job).out
    assert "  metrics    total_steps 10 at step 9, min 10 at step 0, max 10 at step 0\n" in detail
    assert "             loss 50 at step 5, min 0 at step 9, max 50 at step 5\n" in detail
    assert "             bad NaN at step 9\n" in detail
    values = live.json("get", job)["row"]["metrics"]["values"]
    assert {value["name"]: value["last"] for value in values} == {
        "total_steps": 10,
        "acc": 0.9,
        "loss": 50,
        "bad": None,
    }
    head, *rows = live("ls", "-o", "wide", "--label", "none!=x").out.splitlines()
    assert [line[head.index("METRIC") :].split("  ")[0] for line in rows if "exp-" in line] == ["loss 100", "loss 50"]

    assert live("metrics", job).out.splitlines()[0].split() == ["METRIC", "LAST", "STEP", "MIN", "STEP", "MAX", "STEP"]
    assert "loss" in live("metrics", job).out
    head, *points = live("metrics", job, "loss").out.splitlines()
    assert head == "metric\tstep\ttime_ms\tvalue"
    assert [line.split("\t")[1::2] for line in points] == [
        *([str(step), f"{9.0 - step}"] for step in range(5)),
        ["5", "50.0"],
    ]
    [bad] = live.json("metrics", job, "bad")["metrics"]
    assert {value for _, _, value in bad["points"]} == {None}

    lines = [line.split() for line in live("diff", job, other).out.splitlines()]
    assert ["metrics.loss.last", "50", "100"] in lines
    assert ["metrics.loss.max", "50", "100"] in lines
    assert not [line for line in lines if line[0].startswith("metrics.acc")]

    assert live("delete", job).code == 0
    assert f"there is no job {job}" in live("metrics", job).err


def test_what_there_is_not_is_said(live: Live) -> None:
    job = live.submit("--name", "silent", "--", "true")
    live.until(job, "succeeded")
    assert live("metrics", job).out == f"{job} has reported no metrics: ganger.train.report(step, loss=...)\n"
    result = live("metrics", job, "loss")
    assert (result.code, result.err) == (
        2,
        f"error: {job} has reported no metric loss; its metrics: none\n  next: ganger metrics {job}\n",
    )
    assert live.json("metrics", job) == {"job": job, "metrics": [], "left_out": 0}
    array = live.submit("--name", "grid", "--array", "0-1", "--", "true")
    live.until(array, "succeeded")
    result = live("metrics", array)
    assert (result.code, result.err) == (
        2,
        f"error: {array} is an array: each element has metrics of its own\n  next: ganger ls {array}\n",
    )


LOSES_ITS_NODE = """
import os, time
from ganger.train import report

if os.environ["GANGER_ATTEMPT"] == "1":
    report(step=1, loss=3)
print("up", flush=True)
time.sleep(600)
"""


def test_metrics_outlive_the_node(live: Live, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOSES_ITS_NODE)
    job = live.submit("--name", "lost", "--", sys.executable, str(tmp_path / "train.py"))
    wait_until(lambda: live.json("get", job)["row"]["metrics"]["values"], "it has reported")
    node = live.json("get", job)["row"]["nodes"][0]
    assert live("node", "fail", node).code == 0
    wait_until(lambda: live.json("get", job)["row"]["generation"] == 2, "it starts elsewhere")
    assert live("stop", job, "--now").code == 0
    live.until(job, "stopped")
    assert live("node", "return", node).code == 0
    assert "  metrics    loss 3 at step 1, min 3 at step 1, max 3 at step 1\n" in live("get", job).out
    assert [row["kind"] for row in live.json("events", job)].count("metrics_kept") == 1
