"""The jobs of a run as columns and files: they agree with the figures, and a file of them is a trace of its own."""

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ganger import simulation
from ganger.simulation.__main__ import main
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.results.job_file import check_job_file
from ganger.simulation.results.python_run import RunResult
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import Flaw, UnreadableTrace
from ganger.simulation.traces.trace_row import LARGEST, Row, iso_text

TRACE = """name,submitted,duration_ms,gpus,nodes,user,gpu_types,deadline,x_team,x_ended
large,2026-01-05T10:00:00+02:00,600000,16,2,ada,h100|a100,2026-01-05T09:00:00Z,nlp,never
small,2026-01-05 08:01:00.250Z,300000,2,,ben,,,"cv, vision",
unknown,2026-01-05T08:02:00Z,,2,,ben,,,,
huge,2026-01-05T08:03:00Z,60000,64,,ada,,,,
later,2026-01-05T08:04:00Z,60000,8,1,ada,,,,
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def run(trace: Path, **options: object) -> RunResult:
    return simulation.run(trace, nodes=2, gpu_type="h100", policy="fifo", start="10s", **options)


def test_columns_say_what_became_of_each_job(trace: Path) -> None:
    result = run(trace)
    jobs = result.jobs
    assert {len(column) for column in jobs.values()} == {5}
    assert [*jobs["name"]] == ["large", "small", "unknown", "huge", "later"]
    assert [*jobs["outcome"]] == ["ended", "ended", "no_duration", "left_out", "ended"]
    assert jobs["submitted"].dtype == jobs["ended"].dtype == np.dtype("datetime64[ms]")
    # 16 GPUs until 8:10:10; then two and eight GPUs beside each other.
    assert [str(time) for time in jobs["ended"]] == [
        "2026-01-05T08:10:10.000", "2026-01-05T08:15:20.000", "NaT", "NaT", "2026-01-05T08:11:20.000",
    ]  # fmt: skip
    assert [*jobs["queueing_ms"][:2]] == [0, 10 * 60_000 + 10_000 - 60_250]
    assert math.isnan(jobs["queueing_ms"][2])
    assert [*jobs["starts"]] == [1, 1, 0, 0, 1]
    assert "priority" not in jobs, "it is empty everywhere"
    for name in ("jct_ms", "queueing_ms"):
        assert result.figures["scorecard"][name]["mean"] == fmean(jobs[name][~np.isnan(jobs[name])])


def test_a_file_of_jobs_is_a_trace_of_the_simulated_cluster(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv.gz"
    asked = ["run", str(trace), "--nodes", "2", "--gpu-type", "h100", "--policy", "fifo", "--start-ms", "10000"]
    assert main([*asked, "--jobs-out", str(out)]) == 0
    given, again, jobs = read_jobs(trace), read_jobs(out), run(trace).jobs
    assert again.format == "ganger"
    started_ms = [None if np.isnat(time) else int(time.astype(np.int64)) for time in jobs["started"]]
    assert [replace(job, extra=()) for job in again.records] == [
        replace(job, started_ms=start_ms, extra=()) for job, start_ms in zip(given.records, started_ms, strict=True)
    ]
    team = again.extra_columns.index("team")
    assert [job.extra[team] for job in again.records] == ["nlp", "cv, vision", "", "", ""]
    # Run again it is the same run, whose results take the place of the results in the file.
    second = simulation.run(out, nodes=2, gpu_type="h100", policy="fifo", start="10s").jobs
    assert {*second} == {*jobs}
    for name, column in jobs.items():
        assert [*map(str, second[name])] == [*map(str, column)], name


@given(st.integers(0, LARGEST))
def test_every_time_survives_as_text(time_ms: int) -> None:
    text = iso_text(time_ms)
    assert Row(1, [text], {"at": 0}, ()).iso_time("at") == time_ms
    assert text.endswith("Z")


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("2026-01-05T10:00:00", Flaw.NOT_A_NUMBER),
        ("yesterday", Flaw.NOT_A_NUMBER),
        ("1767600000", Flaw.NOT_A_NUMBER),
        ("2026-13-05T10:00:00Z", Flaw.NOT_LEGAL),
        ("2026-02-30T10:00:00Z", Flaw.NOT_LEGAL),
        ("1969-12-31T23:59:59Z", Flaw.NEGATIVE),
        ("999999-01-05T10:00:00Z", Flaw.OUT_OF_RANGE),
        ("", Flaw.MISSING),
    ],
)
def test_what_is_no_time_is_dropped(text: str, flaw: Flaw, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"name,submitted,duration_ms,gpus\nfine,2026-01-05T10:00:00Z,1,1\nbad,{text},1,1\n")
    assert [(finding.flaw, finding.examples[0][0]) for finding in read_jobs(path).findings] == [(flaw, 3)]


def test_a_result_and_a_column_of_its_name_are_not_confused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("name,submitted_ms,duration_ms,gpus,ended,x_ended\na,0,1,1,,\n")
    with pytest.raises(UnreadableTrace, match="two columns are called 'ended'"):
        read_jobs(path)
    path.write_text("name,submitted_ms,duration_ms,gpus,finished\na,0,1,1,\n")
    with pytest.raises(UnreadableTrace, match="call it 'x_finished' to keep it"):
        read_jobs(path)


def test_columns_agree_with_a_file_of_csv(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv"
    assert main(["run", str(trace), "--nodes", "2", "--gpu-type", "h100", "--jobs-out", str(out)]) == 0
    jobs = simulation.run(trace, nodes=2, gpu_type="h100").jobs
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == [*jobs]
    assert [float(row["jct_ms"] or "nan") for row in rows] == pytest.approx([*jobs["jct_ms"]], nan_ok=True)


def test_parquet_has_the_columns_with_their_types(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs.parquet"
    asked = ["run", str(trace), "--nodes", "2", "--gpu-type", "h100", "--policy", "fifo", "--start-ms", "10000"]
    assert main([*asked, "--jobs-out", str(out)]) == 0
    table, jobs = parquet.read_table(out), run(trace).jobs
    assert table.column_names == [*jobs]
    types = {name: str(table.schema.field(name).type) for name in ("submitted", "ended", "gpus", "jct_ms", "gpu_types")}
    assert [*types.values()] == ["timestamp[ms, tz=UTC]", "timestamp[ms, tz=UTC]", "int64", "int64", "string"]
    for name, column in jobs.items():
        values = table[name].to_pylist()
        if np.issubdtype(column.dtype, np.datetime64):
            assert [time and time.replace(tzinfo=None) for time in values] == [*column.tolist()], name
        else:
            gaps = [None if value != value else value for value in column.tolist()]  # noqa: PLR0124 - NaN alone
            assert values == gaps, name
    assert [path.name for path in tmp_path.iterdir() if path != trace] == [out.name], "nothing half written is left"


def test_parquet_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidArgument, match=r"Parquet needs pyarrow, which is not installed") as refused:
        check_job_file(tmp_path / "jobs.parquet")
    assert refused.value.next.startswith("pip install 'ganger[parquet]', or --jobs-out ")


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"node": 2}, TypeError, r"run\(\) has no option 'node': did you mean 'nodes'\?"),
        ({"report": "x.html"}, TypeError, "has no option 'report'"),
        ({}, ValueError, "a trace does not define the nodes"),
        ({"nodes": 2, "policy": "best"}, ValueError, "there is no queue order best; name one of"),
        ({"nodes": 2, "start": "soon"}, ValueError, "'soon' is not a duration"),
        ({"nodes": 2, "from_log": "x.db"}, ValueError, "name a trace, or from_log"),
        ({"nodes": 2, "format": "swf"}, ValueError, "of the format swf can be used"),
    ],
)
def test_a_call_that_cannot_be_run_says_why(
    options: dict[str, object], error: type[Exception], what: str, trace: Path
) -> None:
    with pytest.raises(error, match=what):
        simulation.run(trace, **options)


def test_a_call_takes_the_load_and_throughputs_as_the_command_does(trace: Path, tmp_path: Path) -> None:
    throughputs = tmp_path / "throughputs.csv"
    throughputs.write_text("model,gpu_type,steps_per_s\nbert,v100,3\nbert,k80,1\n")
    options = {"nodes": 2, "gpu_type": "k80", "load_scale": 2, "throughputs": str(throughputs), "recorded_on": "v100"}
    findings = simulation.run(trace, **options).figures["findings"]
    assert "no_throughput" in [finding["flaw"] for finding in findings]
