"""Readers and scorecard together: strict FIFO on a pool of GPUs, as `pool_reference.csv` has it, to the printed digit.

The pool is a function of this file and no part of ganger: what is tested is what goes in and how it is measured.
"""

import csv
import heapq

import pytest

from ganger.backends.simulator.scorecard import History, score
from ganger.backends.simulator.traces.read import read_jobs
from ganger.backends.simulator.traces.recorded import RecordedJob
from tests.simulator.recorded import TRACES


def expected() -> list[dict[str, str]]:
    path = TRACES / "expected" / "pool_reference.csv"
    return (
        [row for row in csv.DictReader(path.read_text().splitlines()) if row["policy"] == "fifo"]
        if path.exists()
        else []
    )


def run(jobs: tuple[RecordedJob, ...], gpus: int) -> list[History]:
    """Each job starts when those before it have, and its GPUs are free."""
    free, now_ms, ends, done = gpus, 0, list[tuple[int, int]](), []
    for job in jobs:
        now_ms = max(now_ms, job.submitted_ms)
        while ends and (ends[0][0] <= now_ms or free < job.gpus):
            end_ms, given_back = heapq.heappop(ends)
            now_ms, free = max(now_ms, end_ms), free + given_back
        free -= job.gpus
        duration_ms = job.duration_ms or 0
        heapq.heappush(ends, (now_ms + duration_ms, job.gpus))
        done.append(
            History(
                tenant="",
                gpu_milli=job.asked_gpu_milli,
                submitted_ms=job.submitted_ms,
                duration_ms=duration_ms,
                running=((now_ms, now_ms + duration_ms),),
                ended_ms=now_ms + duration_ms,
            )
        )
    return done


@pytest.mark.parametrize("row", expected(), ids=lambda row: f"{row['trace']}-{row['gpus']}")
def test_fifo_on_a_pool_is_measured_to_the_printed_digit(row: dict[str, str]) -> None:
    trace = read_jobs(TRACES / "elasticflow" / f"{row['trace']}.csv.gz")
    gpus = int(row["gpus"])
    card = score(run(trace.records, gpus), [(0, 1000 * gpus)], {})
    assert card.jct_ms.mean is not None
    assert card.queueing_ms.mean is not None
    assert card.queueing_ms.p99 is not None
    figures = {
        "jobs": card.jobs,
        "avg_jct": round(card.jct_ms.mean / 1000, 3),
        "avg_wait": round(card.queueing_ms.mean / 1000, 3),
        "p99_wait": card.queueing_ms.p99 / 1000,
        "bsld": round(card.slowdown[600_000].mean or 0, 4),
        "makespan": (card.makespan_ms or 0) / 1000,
        "gpu_allocation": round(card.allocation or 0, 4),
    }
    assert figures == {name: float(row[name]) for name in figures}
