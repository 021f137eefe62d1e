"""A gang of 512 pods bound under faults, a thousand times: always fully bound or not at all, and how soon.

Runs on the fake API server and on virtual time, with the whole controller; `bench.kubernetes.disrupting` defines the
faults. Also printed: the time until the gang was fully bound, or not at all, after the last fault or after the last
controller began to lead; and the longest time that it was partly bound without a new fault.

Results are appended to the file that GANGER_BENCH_KEPT names, if set; a run resumes from it.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.kubernetes.binding import bind_under_faults
from bench.kubernetes.disrupting import SETTLES_S, End
from bench.measure import Figure

LIVES = int(os.environ.get("GANGER_BENCH_LIVES", "1000"))
MEMBERS = int(os.environ.get("GANGER_BENCH_PODS", "512"))


def run() -> list[Figure]:
    def run_seeds(seeds: list[int]) -> Iterator[End]:
        with ProcessPoolExecutor() as processes:
            yield from processes.map(partial(bind_under_faults, members=MEMBERS), seeds)

    return figures("bind_faults", outcomes(LIVES, MEMBERS, run_seeds))


def outcomes(count: int, members: int, run_seeds: Callable[[list[int]], Iterator[End]]) -> list[End]:
    """Return the outcomes of `count` gangs; those recorded in the file of GANGER_BENCH_KEPT are not run again.

    `run_seeds` runs the gangs of the given seeds; each outcome is appended to the file.
    """
    results_file = os.environ.get("GANGER_BENCH_KEPT", os.devnull)
    rows = (
        [json.loads(line) for line in Path(results_file).read_text().splitlines()]
        if Path(results_file).exists()
        else []
    )
    by_seed = {row.pop("seed"): End(**row) for row in rows if row["members"] == members}
    seeds = [seed for seed in range(count) if seed not in by_seed]
    with Path(results_file).open("a") as file:
        for seed, end in zip(seeds, run_seeds(seeds) if seeds else (), strict=True):
            by_seed[seed] = end
            file.write(json.dumps({"seed": seed, **asdict(end)}) + "\n")
            file.flush()
    return [by_seed[seed] for seed in range(count)]


def figures(name: str, ends: list[End]) -> list[Figure]:
    """Return the figures of these outcomes."""
    for seed, end in enumerate(ends):
        if not end.holds:
            print(f"  {name}: life {seed}: {end}")
    struck = sum(bool(end.faults) for end in ends)
    bound = Counter("whole" if end.bound == end.members else "none" if not end.bound else "half" for end in ends)
    late = sum(end.bound_late == end.members for end in ends)
    killed = sum(end.kills for end in ends)
    print(f"{name}: {len(ends)} lives, {struck} with faults, {killed} controllers killed: {bound}; later {late} whole")
    halves = [float(not end.holds) for end in ends]
    settled = {"fault": [end.settled_s for end in ends if not end.is_led], "leader": _led(ends)}
    return [
        Figure(name=f"{name}_half_bound", unit="", samples=tuple(halves), value=sum(halves), op="==", bar=0),
        *(_longest(f"{name}_after_{after_event}", samples) for after_event, samples in settled.items() if samples),
        _longest(f"{name}_longest_half", [end.half_s for end in ends]),
    ]


def _longest(name: str, samples: list[float]) -> Figure:
    return Figure(name=name, unit="s", samples=tuple(samples), value=max(samples), op="<=", bar=SETTLES_S)


def _led(ends: list[End]) -> list[float]:
    return [end.settled_s for end in ends if end.is_led]
