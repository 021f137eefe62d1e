"""A gang of 512 pods bound while things go wrong, a thousand times: always whole or nowhere, and how soon.

On the fake API server and on virtual time, the controller being the whole of it; `bench.disrupting` says what goes
wrong. Printed besides: how long it took to be whole, or nowhere, after the last fault, and after the last controller
began to lead if that came later; and the longest time that a part of it was bound though nothing went wrong meanwhile.

Lives are kept in the file that GANGER_BENCH_KEPT names, if it does, as they come; a run goes on where the last one was.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.binding import bound_under_faults
from bench.disrupting import SETTLES_S, End
from bench.measure import Figure

LIVES = int(os.environ.get("GANGER_BENCH_LIVES", "1000"))
MEMBERS = int(os.environ.get("GANGER_BENCH_PODS", "512"))


def run() -> list[Figure]:
    def live(seeds: list[int]) -> Iterator[End]:
        with ProcessPoolExecutor() as processes:
            yield from processes.map(partial(bound_under_faults, members=MEMBERS), seeds)

    return figures("bind_faults", lives(LIVES, MEMBERS, live))


def lives(count: int, members: int, live: Callable[[list[int]], Iterator[End]]) -> list[End]:
    """What became of so many gangs of so many pods: by GANGER_BENCH_KEPT if that names a file that tells of them, the
    others by `live`, which is given their seeds. They are kept there as they come."""
    kept = os.environ.get("GANGER_BENCH_KEPT", os.devnull)
    told = [json.loads(line) for line in Path(kept).read_text().splitlines()] if Path(kept).exists() else []
    found = {each.pop("seed"): End(**each) for each in told if each["members"] == members}
    left = [seed for seed in range(count) if seed not in found]
    with Path(kept).open("a") as file:
        for seed, end in zip(left, live(left) if left else (), strict=True):
            found[seed] = end
            file.write(json.dumps({"seed": seed, **asdict(end)}) + "\n")
            file.flush()
    return [found[seed] for seed in range(count)]


def figures(name: str, ends: list[End]) -> list[Figure]:
    """What these lives say together."""
    for seed, end in enumerate(ends):
        if not end.holds:
            print(f"  {name}: life {seed}: {end}")
    struck = sum(bool(end.faults) for end in ends)
    bound = Counter("whole" if end.bound == end.members else "none" if not end.bound else "half" for end in ends)
    late = sum(end.bound_late == end.members for end in ends)
    killed = sum(end.kills for end in ends)
    print(f"{name}: {len(ends)} lives, {struck} with faults, {killed} controllers killed: {bound}; later {late} whole")
    halves = [float(not end.holds) for end in ends]
    after = {"fault": [end.settled_s for end in ends if not end.is_led], "leader": _led(ends)}
    return [
        Figure(name=f"{name}_half_bound", unit="", samples=tuple(halves), value=sum(halves), op="==", bar=0),
        *(_longest(f"{name}_after_{last}", each) for last, each in after.items() if each),
        _longest(f"{name}_longest_half", [end.half_s for end in ends]),
    ]


def _longest(name: str, samples: list[float]) -> Figure:
    return Figure(name=name, unit="s", samples=tuple(samples), value=max(samples), op="<=", bar=SETTLES_S)


def _led(ends: list[End]) -> list[float]:
    return [end.settled_s for end in ends if end.is_led]
