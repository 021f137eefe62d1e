"""Packages that `ganger --help` and `ganger ls` import, and their time: neither pydantic, FastAPI nor numpy."""

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping

from bench.measure import Figure, median, wall_s
from bench.serving import GANGER, fill, ganger, state_directory

HEAVY = frozenset(("pydantic", "pydantic_core", "fastapi", "starlette", "numpy"))
JOBS = 1_000
RUNS = 10
HELP_BAR_S, LS_BAR_S = 0.15, 0.5


def run() -> list[Figure]:
    with state_directory() as environment:
        fill(environment, JOBS)
        ganger(environment, "server", "start")
        bare_s = statistics.median(_times(environment, sys.executable, "-c", "pass"))
        return [
            _none("cli_import_help_heavy", imported("--help", environment=environment)),
            _none("cli_import_ls_heavy", imported("ls", environment=environment)),
            median("cli_import_help", "s", _times(environment, GANGER, "--help"), under=HELP_BAR_S, floor=bare_s),
            median("cli_import_ls", "s", _times(environment, GANGER, "ls"), under=LS_BAR_S, floor=bare_s),
        ]


def imported(*words: str, environment: Mapping[str, str] = os.environ) -> set[str]:
    """Return the top-level packages that a command has imported by its end, as Python reports them."""
    command = [sys.executable, "-X", "importtime", GANGER, *words]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [line for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def _none(name: str, packages: set[str]) -> Figure:
    heavy = sorted(packages & HEAVY)
    if heavy:
        print(f"{name}: {', '.join(heavy)}")
    return Figure(name=name, unit="packages", samples=(float(len(heavy)),), value=len(heavy), op="==", bar=0)


def _times(environment: dict[str, str], *command: str) -> list[float]:
    wall_s(command, env=environment)  # the first run compiles the modules
    return [wall_s(command, env=environment) for _ in range(RUNS)]
