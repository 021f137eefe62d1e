"""Cost of `ganger sim` as traces grow: memory with 100,000 jobs, and time with twice as many at equal load.

The jobs are those of ElasticFlow's cluster 04, one copy of the trace after the other, on 72 nodes x 8 GPUs, measured by
`bench.simulator.simulating`.
"""

import os
from typing import Final

from bench.measure import Figure, median
from bench.simulator.simulating import CLUSTER, simulated

JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "100000"))
RUNS: Final = 3
BAR_MB: Final = 300.0
BAR_TIMES: Final = 2.3
ONCE: Final = 4_000
"""Jobs of the compared runs: the same once and twice, so that load is equal."""


def run() -> list[Figure]:
    pairs = [(simulated(CLUSTER, first=ONCE, copies_to=2 * ONCE), simulated(CLUSTER, first=ONCE)) for _ in range(RUNS)]
    largest = simulated(CLUSTER, copies_to=JOBS)
    return [
        median("sim_growth", "times", [twice.run_s / once.run_s for twice, once in pairs], under=BAR_TIMES),
        Figure(
            name="sim_growth_memory", unit="MB", samples=(largest.peak_mb,), value=largest.peak_mb, op="<=", bar=BAR_MB
        ),
        median("sim_growth_100000", "s", [largest.run_s]),
    ]
