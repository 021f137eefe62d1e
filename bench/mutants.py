"""How many small faults in what decides places, shares and reservations go unseen by the tests: of 150, at most 15.

A fixed sample (`mutating`) of the changes that cosmic-ray can make to the files below. Each is tried in a copy of the
checkout, by the pictures first and then by the laws of its file; one that no test sees survives, and is printed with
its change. Needs `make setup-mutants`. Takes hours on two cores. Survivors are explained in docs/mutants.md.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

from bench.measure import ROOT, Figure

FILES: Final = tuple(
    f"src/ganger/core/{name}.py" for name in ("place", "share", "backfill", "promises", "laid", "profile")
)
SEED: Final = 6
MANY: Final = int(os.environ.get("GANGER_BENCH_MUTANTS", "150"))
BAR: Final = 0.1
COPIES: Final = 2
LIMIT_CPU_S: Final = 1_200
"""A mutant that works for longer never ends: that is seen, too. Of the processor: a busy machine decides nothing."""
FIRST: Final = ("tests/pictures", "tests/core")
LAWS: Final = {
    "place": ("place", "parts", "shares_of_domains"),
    "share": ("share", "fair", "policy"),
    "backfill": ("backfill",),
    "promises": ("backfill", "profile", "promises"),
    "laid": ("promises", "backfill", "profile"),
    "profile": ("profile", "backfill", "promises"),
}
"""Of each file: those that say most of it, tried before the others."""
LAST: Final = "every_round"
Mutant = dict[str, str | int]


def run() -> list[Figure]:
    mutants = _sample()
    with TemporaryDirectory(prefix="ganger-mutants-") as folder, ThreadPoolExecutor(COPIES) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(COPIES):
            copies.put(_copy(Path(folder) / str(number)))
        if not all(_passes(Path(folder) / "0", file) for file in FILES):
            raise SystemExit("mutants: the tests fail without any change: mend them first")
        survives = list(pool.map(lambda mutant: _survives(mutant, copies), mutants))
    left = [mutant for mutant, lives in zip(mutants, survives, strict=True) if lives]
    for mutant in left:
        print(_difference(mutant))
    print(f"{len(left)} of {len(mutants)} survive")
    share = len(left) / len(mutants)
    return [Figure(name="mutants_survive", unit="of all", samples=(share,), value=share, op="<=", bar=BAR)]


def _sample() -> list[Mutant]:
    python = ROOT / ".venv-mutants/bin/python"
    if not python.exists():
        raise SystemExit("mutants: cosmic-ray is not there; make it with: make setup-mutants")
    command = [python, "bench/mutating.py", str(SEED), str(MANY), *FILES]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def _copy(to: Path) -> Path:
    for name in ("src", "tests", "bench", "docs"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def _survives(mutant: Mutant, copies: "SimpleQueue[Path]") -> bool:
    copy = copies.get()
    file = copy / str(mutant["file"])
    before = file.read_text()
    file.write_text(str(mutant["text"]))
    try:
        lives = _passes(copy, str(mutant["file"]))
    finally:
        file.write_text(before)
        copies.put(copy)
    print(f"{mutant['file']}:{mutant['line']} {mutant['operator']}: {'SURVIVES' if lives else 'seen'}", flush=True)
    return lives


def _passes(copy: Path, file: str) -> bool:
    """Whether every test of a file passes there, and ends."""
    laws = [f"tests/laws/test_{name}.py" for name in (*LAWS[Path(file).stem], LAST)]
    options = ("-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", f"--basetemp={copy / 'tmp'}")
    environment = os.environ | {"PYTHONPATH": f"{copy / 'src'}:{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    limited = ("prlimit", f"--cpu={LIMIT_CPU_S}")
    command = [*limited, sys.executable, "-m", "pytest", *options, *FIRST, *laws]
    return not subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode


def _difference(mutant: Mutant) -> str:
    before = (ROOT / str(mutant["file"])).read_text().splitlines()
    lines = difflib.unified_diff(before, str(mutant["text"]).splitlines(), str(mutant["file"]), lineterm="", n=1)
    return "\n".join(lines)
