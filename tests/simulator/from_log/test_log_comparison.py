"""`ganger sim compare --from-log`: the recorded run, the policy in force and other documents."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.simulator.from_log.test_log_input import written


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path / "copy.db")


def test_three_runs_are_compared(shell: Shell, log: Path, tmp_path: Path) -> None:
    sjf, report = tmp_path / "sjf.yaml", tmp_path / "report.html"
    sjf.write_text("order: sjf\n")
    asked = ("sim", "compare", "--from-log", str(log), "--document", str(sjf))
    said = shell(*asked, "--report", str(report), "-o", "json")
    assert said.code == 0, said.err
    comparison = json.loads(said.out)
    assert [run["name"] for run in comparison["runs"]] == ["recorded", "in force", str(sjf)]
    # Jobs of equal length on one node, one after the other, whatever the order: 60, 119 and 178 s.
    for run in comparison["runs"]:
        assert run["scorecard"]["jct_ms"]["mean"] == (60_000 + 119_000 + 178_000) / 3
    for name in ("recorded", "in force", str(sjf)):
        assert name in report.read_text()
    jobs = tmp_path / "jobs.csv"
    assert "recorded" in shell(*asked, "--jobs-out", str(jobs)).out
    rows = jobs.read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["policy", *["recorded"] * 3, *["in force"] * 3, *[str(sjf)] * 3]


def test_orders_are_compared_too(shell: Shell, log: Path) -> None:
    said = shell("sim", "compare", "--from-log", str(log), "--policies", "fifo,easy+fgd", "-o", "json")
    assert [run["name"] for run in json.loads(said.out)["runs"]] == ["recorded", "in force", "fifo", "easy+fgd"]


def test_a_trace_is_compared_under_documents_and_on_nodes_of_a_file(shell: Shell, tmp_path: Path) -> None:
    trace, cluster, document = (tmp_path / name for name in ("trace.csv", "nodes.csv", "las.yaml"))
    trace.write_text("name,submitted_ms,duration_ms,gpus\na,0,60000,8\nb,1000,60000,4\n")
    cluster.write_text("name,gpus,gpu_type\nbig,8,h100\nsmall,4,h100\n")
    document.write_text("order: las\n")
    asked = ("sim", "compare", str(trace), "--cluster", str(cluster), "--policies", "fifo", "--document", str(document))
    comparison = json.loads(shell(*asked, "-o", "json").out)
    assert [run["name"] for run in comparison["runs"]] == ["fifo", str(document)]
    assert (comparison["nodes"], comparison["gpus"], comparison["gpus_in_all"]) == (2, None, 12)
    assert [run["scorecard"]["jct_ms"]["mean"] for run in comparison["runs"]] == [60_000, 60_000]
    assert "2 nodes with 12 GPUs" in shell(*asked).out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--from-log", "absent.db"), "absent.db cannot be read"),
        (("--from-log", "LOG", "--policies", "best"), "there is no queue order best"),
        (("--from-log", "LOG", "--seeds", "3"), "none of these policies draws"),
        (("--from-log", "LOG", "--report", "no/such/report.html"), "there is no folder"),
        (("LOG",), "add --nodes N or --cluster FILE"),
        ((), "name a TRACE, or --from-log"),
    ],
)
def test_impossible_comparisons_are_refused(shell: Shell, log: Path, words: tuple[str, ...], what: str) -> None:
    said = shell("sim", "compare", *(str(log) if word == "LOG" else word for word in words))
    assert said.code == 2
    assert what in said.err
