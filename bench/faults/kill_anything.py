"""1,000 random faults on 50 gangs of real processes, 20,000 in virtual time: every job ends as its table says.

An independent oracle computes from the raw events how each job must have ended; the log is replayed, the state is
validated after each event, the accounts add up to wall time, and nothing is left behind. The seeds are fixed.
"""

import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from pathlib import Path

from bench.faults.audited import Audit
from bench.faults.real_faults import run_faults
from bench.faults.virtual_faults import Day, run_day
from bench.measure import Figure

REAL = int(os.environ.get("GANGER_BENCH_FAULTS", "1000"))
VIRTUAL = 20 * REAL
A_DAY = 200
SEED = 5
POLICIES = ("priority", "fifo", "fair_share", "las")
SHOWN = 20


def run() -> list[Figure]:
    days = [
        Day(A_DAY, SEED + number, policy) for number, policy in zip(range(max(1, VIRTUAL // A_DAY)), cycle(POLICIES))
    ]
    virtual = Audit()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for day_audit in pool.map(_run_day, days):
            virtual.add(day_audit)
    print(f"virtual: {len(days) * A_DAY} faults, {virtual.jobs} jobs, {virtual.events} events")
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        real, fault_counts = run_faults(Path(name), REAL, SEED)
        if real.sentences() and (keep := os.environ.get("GANGER_BENCH_KEEP")):
            shutil.copytree(name, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    print(f"real: {fault_counts}, {real.jobs} jobs, {real.events} events")
    for line in [*virtual.sentences(), *real.sentences()][:SHOWN]:
        print(" ", line)
    return [*_figures("virtual", virtual), *_figures("real", real)]


def _run_day(day: Day) -> Audit:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        return run_day(day, Path(name) / "ganger.db")


def _figures(name: str, audit: Audit) -> list[Figure]:
    counts = {
        "jobs_that_ended_otherwise": audit.states,
        "states_unsound": audit.invalid,
        "cycles_decided_otherwise": audit.otherwise,
        "accounts_that_do_not_add_up": audit.accounts,
        "left_behind": audit.left,
    }
    return [
        Figure(name=f"kill_anything_{name}_{kind}", unit="", samples=(count,), value=count, op="==", bar=0.0)
        for kind, count in ((kind, float(len(sentences))) for kind, sentences in counts.items())
    ]
