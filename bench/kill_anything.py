"""1,000 random faults on 50 gangs of real processes, 20,000 in virtual time: every job ends as its table says.

An oracle of its own says from the raw events what must have become of each job; the log is decided again, the state is
validated after each event, the accounts add up to wall time, and nothing is left behind. The seeds are fixed.
"""

import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from pathlib import Path

from bench.audited import Audit
from bench.measure import Figure
from bench.real_faults import endured
from bench.virtual_faults import Day, lived

REAL = int(os.environ.get("GANGER_BENCH_FAULTS", "1000"))
VIRTUAL = 20 * REAL
A_DAY = 200
SEED = 5
POLICIES = ("priority", "fifo", "fair_share", "las")
SHOWN = 20


def run() -> list[Figure]:
    days = [Day(A_DAY, SEED + at, policy) for at, policy in zip(range(max(1, VIRTUAL // A_DAY)), cycle(POLICIES))]
    virtual = Audit()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(_lived, days):
            virtual.add(found)
    print(f"virtual: {len(days) * A_DAY} faults, {virtual.jobs} jobs, {virtual.events} events")
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        real, done = endured(Path(name), REAL, SEED)
        if real.sentences() and (keep := os.environ.get("GANGER_BENCH_KEEP")):
            shutil.copytree(name, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    print(f"real: {done}, {real.jobs} jobs, {real.events} events")
    for line in [*virtual.sentences(), *real.sentences()][:SHOWN]:
        print(" ", line)
    return [*_figures("virtual", virtual), *_figures("real", real)]


def _lived(day: Day) -> Audit:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        return lived(day, Path(name) / "ganger.db")


def _figures(name: str, found: Audit) -> list[Figure]:
    counts = {
        "jobs_that_ended_otherwise": found.states,
        "states_unsound": found.unsound,
        "rounds_decided_otherwise": found.otherwise,
        "accounts_that_do_not_add_up": found.accounts,
        "left_behind": found.left,
    }
    return [
        Figure(name=f"kill_anything_{name}_{what}", unit="", samples=(n,), value=n, op="==", bar=0.0)
        for what, n in ((what, float(len(sentences))) for what, sentences in counts.items())
    ]
