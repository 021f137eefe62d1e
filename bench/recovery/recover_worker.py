"""A killed worker: time until the gang steps again, against a bare cold start and torchrun in the same run.

20 kills of a random rank; torchrun restarts the same script by --max-restarts.
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import Figure, median
from bench.recovery.recovering import DEADLINE_S, FOREVER, RANKS, SCRIPT, Victim, Watch, lines, measure_recoveries
from bench.serving import TORCH_BIN

TORCHRUN_KILLS = 4
TORCHRUN_DEADLINE_S = 60.0


def run() -> list[Figure]:
    figures = measure_recoveries("recover_worker", kill)
    chance = random.Random(4)
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        torchrun = [_under_torchrun_s(Path(name) / f"{number}", chance) for number in range(TORCHRUN_KILLS)]
    return [*figures, median("torchrun_recovery", "s", torchrun)]


def kill(victim: Victim) -> Callable[[], object]:
    """End a random rank by SIGKILL."""
    os.kill(victim.pids()[victim.chance.randrange(RANKS)], signal.SIGKILL)
    return lambda: None


def _under_torchrun_s(folder: Path, chance: random.Random) -> float:
    """Return the recovery time of one kill under a torchrun of its own.

    Restarted ranks can meet the dead ones' addresses in its store and then wait for them: a recovery that never comes
    counts as the deadline.
    """
    folder.mkdir()
    out = folder / "steps"
    command = [TORCH_BIN / "torchrun", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=100"]
    command += [SCRIPT, str(out), FOREVER]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            watch = Watch(out)
            pids = {int(rank): int(pid) for rank, pid in (line[2:] for line in lines(out) if line[0] == "pid")}
            killed = time.time()
            os.kill(pids[chance.randrange(RANKS)], signal.SIGKILL)
            return watch.wait_next_step(TORCHRUN_DEADLINE_S) - killed
        except TimeoutError as error:
            print(f"torchrun: {error}")
            return TORCHRUN_DEADLINE_S
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=DEADLINE_S)
