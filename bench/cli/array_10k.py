"""An array of 10,000 elements: submitted by the command line, and listed while it runs."""

import json

from bench.measure import Figure, median, wall_s
from bench.serving import GANGER, ganger, state_directory

ELEMENTS = 10_000
RUNS = 5
SUBMIT_BAR_S, LS_BAR_S = 1.0, 0.5


def run() -> list[Figure]:
    with state_directory() as environment:
        ganger(environment, "server", "start")
        submit = [GANGER, "submit", "--name", "sweep", "--array", f"0-{ELEMENTS - 1}%2", "--", "sleep", "600"]
        submitted, jobs, elements, all_json = [], [], [], []
        for _ in range(RUNS):
            submitted.append(wall_s(submit, env=environment))
            jobs.append(wall_s([GANGER, "ls"], env=environment))
            elements.append(wall_s([GANGER, "ls", "sweep"], env=environment))
            all_json.append(wall_s([GANGER, "ls", "sweep", "--all", "-o", "json"], env=environment))
            listed = json.loads(ganger(environment, "ls", "sweep", "--all", "-o", "json"))
            assert [row["index"] for row in listed] == list(range(ELEMENTS)), f"{len(listed)} elements listed"
            ganger(environment, "stop", "sweep")
    return [
        median("array_10k_submit", "s", submitted, under=SUBMIT_BAR_S),
        median("array_10k_ls", "s", jobs, under=LS_BAR_S),
        median("array_10k_ls_elements", "s", elements, under=LS_BAR_S),
        median("array_10k_ls_all_json", "s", all_json),
    ]
