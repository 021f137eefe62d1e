"""Number of small faults in placement, shares and reservations that the tests miss: of 150, at most 15.

A fixed sample (`mutating`) of the changes that cosmic-ray can make to the files below. Each is tried in a copy of the
checkout, by the pictures first and then by the laws of its file; one that no test fails on survives, and is printed
with its change. Results are kept in mutants.json: a run resumes from it, and tries those again whose function has
changed. Needs `make setup-mutants`. All of it takes hours on two cores. Survivors are explained in
docs/explanation/mutants.md.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

from bench.measure import ROOT, Figure

FILES: Final = tuple(
    f"src/ganger/core/{name}.py"
    for name in (
        "placement/place",
        "queues/fair_share",
        "reservations/earliest_start",
        "reservations/reservations",
        "reservations/reservation_table",
        "reservations/availability_profile",
    )
)
SEED: Final = 6
SAMPLE_SIZE: Final = int(os.environ.get("GANGER_BENCH_MUTANTS", "150"))
BAR: Final = 0.1
COPIES: Final = 2
LIMIT_CPU_S: Final = 1_200
"""CPU time after which a mutant counts as endless, and so as detected; wall time would depend on other load."""
FIRST: Final = {
    "place": (
        "placement/test_topology",
        "placement/test_placement",
        "explain/test_sizes",
        "placement/test_labels",
        "placement/test_gpu_shares",
    ),
    "fair_share": ("queues/test_order", "queues/test_shares", "queues/test_quota"),
    "earliest_start": ("reservations/test_reserved", "reservations/test_backfill"),
    "reservations": (
        "reservations/test_reserved",
        "reservations/test_backfill",
        "reservations/test_maintenance",
        "reservations/test_large",
        "reservations/test_predicted",
    ),
    "reservation_table": (
        "reservations/test_reserved",
        "reservations/test_backfill",
        "reservations/test_maintenance",
        "placement/test_gpu_shares",
        "queues/test_quota",
    ),
    "availability_profile": (
        "reservations/test_reserved",
        "reservations/test_backfill",
        "reservations/test_maintenance",
    ),
}
"""Pictures of each file that detect most of its faults: most mutants end there."""
LAWS: Final = {
    "place": ("placement/test_placement", "placement/test_parts", "placement/test_domain_shares"),
    "fair_share": ("queues/test_fair_share", "queues/test_fair_division", "queues/test_policy"),
    "earliest_start": ("reservations/test_backfill", "reservations/test_earliest_start"),
    "reservations": (
        "reservations/test_backfill",
        "reservations/test_availability_profile",
        "reservations/test_reservations",
    ),
    "reservation_table": (
        "reservations/test_reservations",
        "reservations/test_backfill",
        "reservations/test_availability_profile",
    ),
    "availability_profile": (
        "reservations/test_availability_profile",
        "reservations/test_backfill",
        "reservations/test_reservations",
    ),
}
"""Laws of each file, tried before the other tests."""
LAST: Final = "cycle/test_every_cycle"
LAST_LINES: Final = 40
"""Lines printed of tests that fail without any change."""
TRIED: Final = ROOT / "bench/mutants/mutants.json"
"""Tried mutants by key: location, operator, and whether a test detects it."""
Mutant = dict[str, str | int]


def run() -> list[Figure]:
    mutants, tried = _sample(), _tried()
    with TemporaryDirectory(prefix="ganger-mutants-") as folder, ThreadPoolExecutor(COPIES) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(COPIES):
            copies.put(_copy(Path(folder) / str(number)))
        fresh = [mutant for mutant in mutants if mutant["key"] not in tried]
        unchanged = _tested(Path(folder) / "0", FILES) if fresh else None
        if unchanged and unchanged.returncode:
            last = "\n".join(unchanged.stdout.splitlines()[-LAST_LINES:])
            raise SystemExit(f"mutants: the tests fail without any change: fix them first\n{last}")
        # In the order of completion, so that a stopped run loses no result.
        tries = {pool.submit(_survives, mutant, copies): mutant for mutant in fresh}
        for tried_one in as_completed(tries):
            _note(tries[tried_one], lives=tried_one.result())
    tried = _tried()
    survivors = [mutant for mutant in mutants if not tried[str(mutant["key"])]["seen"]]
    for mutant in survivors:
        print(_difference(mutant))
    print(f"{len(survivors)} of {len(mutants)} survive")
    share = len(survivors) / len(mutants)
    return [Figure(name="mutants_survive", unit="of all", samples=(share,), value=share, op="<=", bar=BAR)]


def _tried() -> dict[str, Mutant]:
    return json.loads(TRIED.read_text()) if TRIED.exists() else {}


def _note(mutant: Mutant, *, lives: bool) -> None:
    location = {name: mutant[name] for name in ("file", "line", "operator")}
    tried = _tried() | {str(mutant["key"]): {**location, "seen": not lives}}
    TRIED.write_text(json.dumps(dict(sorted(tried.items())), indent=0) + "\n")


def _sample() -> list[Mutant]:
    python = ROOT / ".venv-mutants/bin/python"
    if not python.exists():
        raise SystemExit("mutants: cosmic-ray is not installed; run: make setup-mutants")
    command = [python, "bench/mutants/mutating.py", str(SEED), str(SAMPLE_SIZE), *FILES]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def _copy(to: Path) -> Path:
    for name in ("src", "tests", "bench", "docs", "tools"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def _survives(mutant: Mutant, copies: "SimpleQueue[Path]") -> bool:
    copy = copies.get()
    file = copy / str(mutant["file"])
    before = file.read_text()
    file.write_text(str(mutant["text"]))
    try:
        lives = not _tested(copy, [str(mutant["file"])]).returncode
    finally:
        file.write_text(before)
        copies.put(copy)
    print(f"{mutant['file']}:{mutant['line']} {mutant['operator']}: {'SURVIVES' if lives else 'seen'}", flush=True)
    return lives


def _tested(copy: Path, files: Collection[str]) -> "subprocess.CompletedProcess[str]":
    """Run the tests of these files in a copy; the exit code is 0 where all of them pass and end."""
    names = [Path(file).stem for file in files]
    first = dict.fromkeys(f"tests/pictures/{name}.py" for stem in names for name in FIRST[stem])
    laws = dict.fromkeys(f"tests/laws/{name}.py" for stem in names for name in (*LAWS[stem], LAST))
    options = ("-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", f"--basetemp={copy / 'tmp'}")
    options = (*options, "--timeout=0")  # that limit is wall time
    environment = os.environ | {"PYTHONPATH": f"{copy / 'src'}:{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    limited = ("prlimit", f"--cpu={len(names) * LIMIT_CPU_S}")
    command = [*limited, sys.executable, "-m", "pytest", *options, *first, "tests/core", "tests/pictures", *laws]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def _difference(mutant: Mutant) -> str:
    before = (ROOT / str(mutant["file"])).read_text().splitlines()
    lines = difflib.unified_diff(before, str(mutant["text"]).splitlines(), str(mutant["file"]), lineterm="", n=1)
    return "\n".join(lines)
