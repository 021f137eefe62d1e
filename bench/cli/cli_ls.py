"""Warm `ganger ls` with 10,000 finished jobs: the default page, and `--all -o json`."""

import json

from bench.measure import Figure, median, wall_s
from bench.serving import GANGER, fill, ganger, state_directory

JOBS = 10_000
RUNS = 10
PAGE_BAR_S, ALL_BAR_S = 0.5, 2.0


def run() -> list[Figure]:
    with state_directory() as environment:
        fill(environment, JOBS)
        ganger(environment, "server", "start")
        listed = json.loads(ganger(environment, "ls", "--all", "-o", "json"))
        assert len(listed) == JOBS, f"{len(listed)} of {JOBS} jobs listed"
        page = [wall_s([GANGER, "ls"], env=environment) for _ in range(RUNS)]
        all_json = [wall_s([GANGER, "ls", "--all", "-o", "json"], env=environment) for _ in range(RUNS)]
    return [
        median("cli_ls_page", "s", page, under=PAGE_BAR_S),
        median("cli_ls_all_json", "s", all_json, under=ALL_BAR_S),
    ]
