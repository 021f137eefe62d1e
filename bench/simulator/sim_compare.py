"""Time of `ganger sim compare` for the 8 ElasticFlow clusters, 60 days, 6 policies and a report of each.

Whole commands one after another, on as many cores as the process may use. The number of nodes of 8 GPUs was not
published: two clusters have those of the pool table (20 and 72 nodes), the others as many as leave half of them idle.
"""

import csv
import gzip
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.measure import ROOT, Figure, wall_s

TRACES: Final = ROOT.parent / "shared" / "traces" / "elasticflow"
BAR_S: Final = 120
NODES: Final = {"cluster03": 20, "cluster04": 72}
"""Clusters of `pool_reference.csv`, with 160 and 576 GPUs."""
GPUS: Final = 8


def run() -> list[Figure]:
    traces = sorted(TRACES.glob("cluster*.csv.gz"))
    with tempfile.TemporaryDirectory() as folder:
        taken = {trace: _compared(trace, Path(folder) / "report.html") for trace in traces}
    for trace, s in taken.items():
        print(f"{trace.name:20} {nodes_of(trace):4} nodes {s:7.1f} s")
    total = sum(taken.values())
    return [
        Figure(name="sim_compare", unit="s", samples=tuple(taken.values()), value=total, op="<", bar=BAR_S),
        Figure(name="sim_compare_cores", unit="cores", samples=(cores := len(os.sched_getaffinity(0)),), value=cores),
    ]


def nodes_of(trace: Path) -> int:
    """Return the number of simulated nodes."""
    if (known := NODES.get(trace.name.partition(".")[0])) is not None:
        return known
    with gzip.open(trace, "rt") as file:
        rows = [
            (float(row["submission_time"]), float(row["duration"]), int(row["num_gpu"])) for row in csv.DictReader(file)
        ]
    requested_gpu_s = sum(duration * gpus for _, duration, gpus in rows)
    lasted_s = max(submitted_s for submitted_s, _, _ in rows) - min(submitted_s for submitted_s, _, _ in rows)
    largest = max(gpus for _, _, gpus in rows)
    return max(math.ceil(largest / GPUS), math.ceil(2 * requested_gpu_s / lasted_s / GPUS))


def _compared(trace: Path, report: Path) -> float:
    nodes = str(nodes_of(trace))
    command: list[str | Path] = [
        Path(sys.executable).with_name("ganger"),
        "sim",
        "compare",
        trace,
        "--nodes",
        nodes,
        "--report",
        report,
    ]
    return wall_s([*command, "-o", "csv"])
