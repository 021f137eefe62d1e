"""`ganger sim sweep`: points of a grid, which are not run again, and their Pareto front."""

import csv
import io
import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from tests.cli.conftest import Shell

JOBS = "name,submitted_ms,duration_ms,gpus\na,0,60000,8\nb,1000,60000,16\nc,2000,30000,4\nd,3000,20000,8\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def test_points_are_single_runs_and_a_sweep_goes_on_where_it_ended(shell: Shell, trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "swept"
    asked = ("sim", "sweep", str(trace), "--to", str(folder), "--start", "1s", "--measures", "nodes,queueing_ms.mean")
    first = shell(*asked, "--grid", "policy=easy,nodes=1,2")
    assert first.code == 0
    assert "1 point not compared, marked with -: fewer jobs ended than on the others" in first.out
    assert "finished before" not in first.out
    damaged, *_ = sorted((folder / "points").iterdir())
    damaged.write_text("{")
    result = json.loads(shell(*asked, "--grid", "policy=easy,sjf,nodes=1,2,4", "-o", "json").out)
    assert (result["reused"], len(result["points"]), result["failed"]) == (1, 6, [])
    for point in result["points"]:
        values = point["values"]
        assert point["is_complete"] is (values["nodes"] != "1")
        if values != {"policy": "easy", "nodes": "4"}:
            continue
        words = ("--nodes", "4", "--policy", "easy", "--start", "1s", "-o", "json")
        alone = json.loads(shell("sim", "run", str(trace), *words).out)
        assert point["run"]["scorecard"] == alone["scorecard"]
        # The one job with more than 8 GPUs does not wait on four nodes.
        assert point["run"]["large_gangs"]["queueing_ms"] == {"n": 1} | dict.fromkeys(("mean", "p50", "p95", "p99"), 0)
    again = shell(*asked, "--grid", "nodes=1,2,4,policy=easy,sjf", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(again.out)))
    assert again.out == (folder / "points.csv").read_text()
    of_front = {(point["values"]["policy"], point["values"]["nodes"]): point for point in result["points"]}
    for row in rows:
        point = of_front[row["policy"], row["nodes"]]
        assert row["is_on_front"] == str(point["is_on_front"])
        assert float(row["queueing_ms.mean"]) == point["run"]["scorecard"]["queueing_ms"]["mean"]
    picture = fromstring((folder / "pareto.svg").read_text())
    circles = [element for element in picture.iter() if element.tag.endswith("circle")]
    assert len(circles) == sum(point["is_complete"] for point in result["points"])
    assert sum(circle.get("class") == "front" for circle in circles) == sum(
        point["is_on_front"] for point in result["points"]
    )
    trace.write_text(JOBS.replace("60000,16", "90000,16"))
    changed = json.loads(shell(*asked, "--grid", "policy=easy,nodes=2", "-o", "json").out)
    assert changed["reused"] == 0, "a trace with other jobs is another sweep"


def test_points_are_compared_under_the_same_load(shell: Shell, trace: Path, tmp_path: Path) -> None:
    words = ("--grid", "load=1,0.01", "--grid", "policy=strict_fifo,sjf", "--nodes", "2", "--to", str(tmp_path / "s"))
    measures = ("--measures", "queueing_ms.mean,queueing_ms.p99")
    result = json.loads(shell("sim", "sweep", str(trace), *words, *measures, "-o", "json").out)
    fronts = {point["values"]["load"] for point in result["points"] if point["is_on_front"]}
    assert fronts == {"1", "0.01"}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--grid", "nodes=2"), "Missing option '--to'"),
        (("--grid", "nodes=2", "--to", "s", "--measures", "allocation"), "a front has two measures"),
        (("--grid", "nodes=2", "--to", "s", "--measures", "allocation,luck"), "there is no measure 'luck'"),
        (("--grid", "nodes=2,spares=1", "--to", "s"), "nodes=2 spares=1: --spares needs --faults"),
        (("--grid", "policy=best,nodes=2", "--to", "s"), "there is no queue order best"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    shell: Shell, trace: Path, words: tuple[str, ...], what: str
) -> None:
    refused = shell("sim", "sweep", str(trace), *words)
    assert refused.code == 2
    assert what in " ".join(refused.err.split())
    assert refused.out == ""
