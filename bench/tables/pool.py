"""A pool of fungible GPUs: fifo, easy, greedy and sjf on whole clusters, against `pool_reference.csv`.

The published rules: jobs are rigid, all GPUs are equal, durations are known, overheads are zero. So the cluster is one
node with all GPUs, time limits are durations, and there is no preemption. fifo is `strict_fifo`, greedy is `first_fit`.
The first three must be equal to the printed digit; easy may be better, since a reserved start moves to an earlier time
when it can.
"""

import csv
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Final

from bench.measure import ROOT, Figure
from ganger import registry
from ganger.core.state.state import State
from ganger.model.cluster import Node
from ganger.model.policy import Rules, document_of
from ganger.simulation.metrics.scorecard import Scorecard
from ganger.simulation.trace_replay import TraceRun, simulate_trace
from ganger.simulation.traces.read_trace import read_jobs

TRACES: Final = ROOT.parent / "shared" / "traces"
ORDERS: Final = {"fifo": "strict_fifo", "greedy": "first_fit", "sjf": "sjf", "easy": "easy"}
EXACT: Final = ("fifo", "greedy", "sjf")
Row = dict[str, str]


def run() -> list[Figure]:
    """Print the table; return for each row the number of columns that differ, or for easy the average JCT."""
    figures, rows = [], list(published())
    print(f"{'trace':10} {'policy':7} {'column':15} {'published':>12} {'ours':>12} {'difference':>11}")
    with ProcessPoolExecutor() as processes:
        for row, card in zip(rows, processes.map(simulated, rows), strict=True):
            ours = columns(card)
            for name, value in ours.items():
                theirs = float(row[name])
                print(f"{row['trace']:10} {row['policy']:7} {name:15} {theirs:12g} {value:12g} {value - theirs:+11g}")
            figures.append(_held(row, ours))
    return figures


def published() -> Iterator[Row]:
    """Yield the rows of the policies that exist here."""
    with (TRACES / "expected" / "pool_reference.csv").open() as file:
        yield from (row for row in csv.DictReader(file) if row["policy"] in ORDERS)


def simulated(row: Row) -> Scorecard:
    """Simulate the same row."""
    trace = read_jobs(TRACES / "elasticflow" / f"{row['trace']}.csv.gz")
    pool = Node(name="pool", gpus=int(row["gpus"]), cpu_milli=1, memory_bytes=1)
    document = document_of(replace(Rules(), order=ORDERS[row["policy"]]), State().document.queues)
    return simulate_trace(TraceRun(trace=trace, nodes=(pool,), order=registry.order, document=document)).card


def columns(card: Scorecard) -> dict[str, float]:
    """Return the columns as the reference prints them."""
    return {
        "jobs": card.jobs,
        "avg_jct": round((card.jct_ms.mean or 0) / 1000, 3),
        "avg_wait": round((card.queueing_ms.mean or 0) / 1000, 3),
        "p99_wait": (card.queueing_ms.p99 or 0) / 1000,
        "bsld": round(card.slowdown[600_000].mean or 0, 4),
        "makespan": (card.makespan_ms or 0) / 1000,
        "gpu_allocation": round(card.allocation or 0, 4),
    }


def _held(row: Row, ours: dict[str, float]) -> Figure:
    name = f"pool_{row['trace']}_{row['gpus']}_{row['policy']}"
    if row["policy"] in EXACT:
        differ = sum(value != float(row[column]) for column, value in ours.items())
        return Figure(name=name, unit="columns that differ", samples=(differ,), value=differ, op="==", bar=0)
    jct = ours["avg_jct"]
    return Figure(name=f"{name}_jct", unit="s", samples=(jct,), value=jct, op="<=", bar=float(row["avg_jct"]))
