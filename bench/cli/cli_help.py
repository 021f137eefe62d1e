"""Wall time of `ganger --help`, with a bare Python start as the floor."""

import statistics
import sys
from pathlib import Path

from bench.measure import Figure, median, wall_s

RUNS = 10
BAR_S = 0.15


def run() -> list[Figure]:
    ganger = Path(sys.executable).with_name("ganger")
    wall_s([ganger, "--help"])  # the first run compiles the modules
    samples, bare = [], []
    for _ in range(RUNS):
        bare.append(wall_s([sys.executable, "-c", "pass"]))
        samples.append(wall_s([ganger, "--help"]))
    return [median("cli_help", "s", samples, under=BAR_S, floor=statistics.median(bare))]
