"""The recorded traces, compared with sums of their text that are made without the readers."""

import csv
import gzip
from collections import Counter
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from ganger.simulation.traces.ganger_format import write_jobs, write_nodes
from ganger.simulation.traces.read_trace import (
    read_faults,
    read_jobs,
    read_nodes,
)
from ganger.simulation.traces.trace import Finding, Flaw
from tests.examples import one_in_gate
from tests.simulator.trace_samples import TRACES

UNIT_MS = {"openb": 1000, "elasticflow": 1000, "muri": 1, "tiresias": 1000, "gavel": 1000}
JOBS = {
    "openb": sorted(TRACES.glob("openb/openb_pod_list_*")),
    "elasticflow": [*sorted(TRACES.glob("elasticflow/cluster*")), *sorted(TRACES.glob("elasticflow/*[be].csv.gz"))],
    "muri": sorted(TRACES.glob("muri/trace*")),
    "tiresias": sorted(TRACES.glob("muri/tiresias*")),
    "gavel": sorted(TRACES.glob("shockwave/*.trace.gz")),
}
SHOCKWAVE = [
    *("type", "command", "dir", "arg", "data", "num_iteration"),
    *("num_gpu", "mode", "weight", "slo", "duration", "submit_time"),
]
CLUSTERS = {
    # of the README beside the files: rows, GPU-hours, largest job
    "01": (1_595, 22_740, 64),
    "02": (5_778, 123_748, 64),
    "03": (3_011, 165_443, 64),
    "04": (15_802, 705_683, 64),
    "05": (3_629, 14_303, 8),
    "08": (13_047, 67_100, 32),
    "09": (11_134, 39_001, 1),
    "10": (260, 4_023, 16),
}


def raw(path: Path) -> list[dict[str, str]]:
    """Return the rows as the csv module reads them."""
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    if path.name.endswith(".trace.gz"):
        return [dict(zip(SHOCKWAVE, line.split("\t"), strict=True)) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines()))


def count(findings: tuple[Finding, ...]) -> dict[Flaw, int]:
    return {finding.flaw: finding.count for finding in findings}


SMALLEST = {name: min(paths, key=lambda path: path.stat().st_size) for name, paths in JOBS.items() if paths}
"""One file of each format is read for every change, and all of them in `make test-long`: they share their reader."""


def each(*formats: str) -> list[Any]:
    return [
        pytest.param(name, path, marks=() if path == SMALLEST[name] else pytest.mark.long)
        for name in formats
        for path in JOBS[name]
    ]


@pytest.mark.parametrize(("name", "path"), each("elasticflow", "muri", "tiresias", "gavel"), ids=str)
def test_gangs_equal_the_text(name: str, path: Path) -> None:
    rows, trace, unit_ms = raw(path), read_jobs(path), UNIT_MS[name]
    assert (trace.format, trace.rows, len(trace.records), trace.findings) == (name, len(rows), len(rows), ())
    submitted = "submission_time" if "submission_time" in rows[0] else "submit_time"
    steps = next(column for column in ("num_iteration", "iteration", "iterations") if column in rows[0])
    assert sum(job.gpus for job in trace.records) == sum(int(row["num_gpu"]) for row in rows)
    assert sum(job.iterations or 0 for job in trace.records) == sum(int(row[steps]) for row in rows)
    gpu_ms = sum(Fraction(row["duration"]) * int(row["num_gpu"]) * unit_ms for row in rows)
    assert sum((job.duration_ms or 0) * job.gpus for job in trace.records) == gpu_ms
    assert [job.submitted_ms for job in trace.records] == [Fraction(row[submitted]) * unit_ms for row in rows]
    deadlines = [Fraction(row.get("deadline") or row["ddl"]) * 1000 for row in rows] if name == "elasticflow" else []
    assert [job.deadline_ms for job in trace.records if job.deadline_ms is not None] == deadlines


@pytest.mark.parametrize("path", one_in_gate(JOBS["elasticflow"][:8]), ids=lambda path: path.name)
def test_clusters_equal_their_description(path: Path) -> None:
    jobs = read_jobs(path).records
    gpu_hours = sum((job.duration_ms or 0) * job.gpus for job in jobs) / 3_600_000
    assert (len(jobs), round(gpu_hours), max(job.gpus for job in jobs)) == CLUSTERS[path.name[7:9]]


@pytest.mark.parametrize(("name", "path"), each("openb"), ids=str)
def test_pods_equal_the_text(name: str, path: Path) -> None:
    rows, trace = raw(path), read_jobs(path)
    by_name = {job.name: job for job in trace.records}
    assert (trace.format, trace.rows, trace.dropped, len(by_name)) == (name, len(rows), 0, len(rows))
    for row in rows:
        job = by_name[row["name"]]
        gpus = int(row["num_gpu"])
        assert job.asked_gpu_milli == (int(row["gpu_milli"]) if gpus == 1 else 1000 * gpus)
        assert (job.cpu_milli, job.memory_bytes) == (int(row["cpu_milli"]), int(row["memory_mib"]) * 2**20)
        ran_s = int(row["deletion_time"]) - int(row["scheduled_time"]) if row["scheduled_time"] else None
        assert job.duration_ms == (None if ran_s is None else ran_s * 1000)
        assert job.extra == (row["qos"], row["pod_phase"])
    made = [int(row["creation_time"]) for row in rows]
    back = sum(time < latest for time, latest in zip(made[1:], accumulate(made, max), strict=False))
    found = count(trace.findings)
    assert found.get(Flaw.NO_DURATION, 0) == sum(not row["scheduled_time"] for row in rows)
    assert found.get(Flaw.TIME_BACK, 0) == back
    in_file_order = sorted(trace.records, key=lambda job: job.line)
    assert [job.name for job in in_file_order] == [row["name"] for row in rows]


@pytest.mark.parametrize("path", [path for path in JOBS["openb"] if "default" in path.name], ids=lambda path: path.name)
def test_openb_equals_its_description(path: Path) -> None:
    jobs = read_jobs(path).records
    kinds = Counter("share" if job.gpu_milli else job.gpus for job in jobs)
    assert kinds == {0: 1_088, "share": 3_078, 1: 3_911, 2: 16, 4: 15, 8: 44}
    assert (len(jobs), sum(job.asked_gpu_milli for job in jobs)) == (8_152, 6_086_800)
    nodes = read_nodes(path.parent / "openb_node_list_gpu_node.csv").records
    assert (len(nodes), sum(node.gpus for node in nodes)) == (1_213, 6_212)
    of_type = {"g2": 549, "t4": 404, "p100": 134, "v100m16": 55, "g3": 39, "v100m32": 30, "a10": 2}
    assert Counter(node.gpu_type for node in nodes) == of_type
    everyone = read_nodes(path.parent / "openb_node_list_all_node.csv").records
    assert (len(everyone), sum(node.gpus == 0 for node in everyone)) == (1_523, 310)


@pytest.mark.parametrize(("name", "path"), each(*JOBS), ids=str)
def test_jobs_survive_writing_and_reading(name: str, path: Path, tmp_path: Path) -> None:
    trace = read_jobs(path)
    write_jobs(trace, tmp_path / "jobs.csv.gz")
    again = read_jobs(tmp_path / "jobs.csv.gz")
    assert (again.format, again.records, again.extra_columns) == ("ganger", trace.records, trace.extra_columns)
    assert set(count(again.findings)) <= {Flaw.NO_DURATION}


@pytest.mark.parametrize("path", sorted(TRACES.glob("openb/openb_node_list_*")), ids=lambda path: path.name)
def test_nodes_survive_writing_and_reading(path: Path, tmp_path: Path) -> None:
    nodes = read_nodes(path).records
    write_nodes(nodes, tmp_path / "nodes.csv")
    assert read_nodes(tmp_path / "nodes.csv").records == nodes


@pytest.mark.parametrize("path", sorted(TRACES.glob("node_faults_348d.csv")), ids=lambda path: path.name)
def test_faults_equal_their_description(path: Path) -> None:
    trace, rows = read_faults(path), raw(path)
    assert (trace.rows, len(trace.records), len({fault.node for fault in trace.records})) == (584, 584, 231)
    assert count(trace.findings) == {Flaw.OVERLAP: 2}
    day_ms = 86_400_000
    down_ms = sum((Fraction(row["end_day"]) - Fraction(row["start_day"])) * day_ms for row in rows)
    assert sum(fault.end_ms - fault.start_ms for fault in trace.records) == down_ms
    assert round(float(down_ms) / (400 * 348 * day_ms), 3) == 0.023
    categories = Counter(fault.category for fault in trace.records)
    assert (round(categories["GPU"] / 5.84), round(categories["Unknown Error"] / 5.84)) == (27, 25)
