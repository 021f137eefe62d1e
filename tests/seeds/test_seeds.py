"""Worlds by seed: the whole product in one process on virtual time, with faults, then healed; every job must end."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.examples import one_in_gate
from tests.seeds.__main__ import describe_failure, main, run_seed

KEPT_FILE = Path(__file__).parent / "kept_seeds.txt"
KEPT = [int(line.split()[0]) for line in KEPT_FILE.read_text().splitlines() if not line.startswith("#")]
MANY = 100
PRINT_DIGESTS = """
import sys
from tests.seeds.__main__ import run_seed
for seed in map(int, sys.argv[1:]):
    print(run_seed(seed).digest)
"""


lived = cache(run_seed)


@pytest.mark.parametrize("seed", KEPT)
def test_no_law_is_broken(seed: int) -> None:
    outcome = lived(seed)
    assert not outcome.errors, describe_failure(outcome)
    assert sum(outcome.ends.values()) >= 8, "every job has ended"


@pytest.mark.parametrize("seed", one_in_gate([KEPT[-1], 8, 5]))
def test_a_seed_is_the_same_world_in_every_process(seed: int) -> None:
    command = [sys.executable, "-c", PRINT_DIGESTS, str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(Path.cwd())}
    other = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    digest = lived(seed).digest
    printed, _ = other.communicate()
    assert (other.returncode, printed.split()) == (0, [digest])


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_seeds(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", str(MANY)]) == 0, capfd.readouterr().out
